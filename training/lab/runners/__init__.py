"""The processes that run the society, on this machine or another. Read `pool` first, then `runner` and `agent`."""
