"""The one road of every rollout. Read `make` first, which makes one; then `worker` and `crew`."""
