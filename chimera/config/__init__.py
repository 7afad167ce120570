"""The configuration: one frozen tree. Read `tree` first; phases are in `learning`, reports in `evaluation`."""
