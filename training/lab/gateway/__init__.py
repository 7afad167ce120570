"""The gateway of a run: it attributes, forwards and records every model call.

Read `process` first (the gateway seen from the main process), then `thin` (how it handles a call) and `exchanges` (how
it writes exchanges into the store). `litellm` is Agent Lightning's gateway, for providers that need it.
"""
