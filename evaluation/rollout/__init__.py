"""The one road of every rollout. Read `worker` first, which makes one; then `crew`."""
