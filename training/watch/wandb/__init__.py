"""Weights & Biases: `mirror` sends a run's metrics.jsonl with wandb's own API, `rows` says what a line becomes there,
`history` reads it back, and `hook` serves any Agent Lightning runner.
"""
