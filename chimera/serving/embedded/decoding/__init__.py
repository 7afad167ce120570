"""Writes answers token by token, for many requests at once. Read `batcher` first; it knows nothing of chat or HTTP."""
