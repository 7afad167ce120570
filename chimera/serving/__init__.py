"""Models behind OpenAI's API. Read `client` first, then `process`, which starts the embedded server."""
