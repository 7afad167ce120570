"""Runs one rollout, and the missing rollouts of an evaluation. Read `rollout` first, then `direct` and `conductor`."""
