"""The embedded model server. Read `service` first, then `decoding`."""
