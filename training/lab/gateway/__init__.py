"""The gateway in front of every model call of a run: it attributes, forwards and records.

Read `process` first (the gateway as the main process sees it), then `thin` (what it does with a call) and `exchanges`
(how an exchange comes into the store). `litellm` is Agent Lightning's own gateway, for providers that need it.
"""
