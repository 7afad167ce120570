"""The embedded model server. Read `service` first, then `batcher` and `engine`."""
