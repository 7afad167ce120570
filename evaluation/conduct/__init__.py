"""The one rollout, and making what an evaluation lacks. Read `rollout` first, then `direct` and `conductor`."""
