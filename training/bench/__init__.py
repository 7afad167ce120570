"""The lab as an algorithm sees it: `training.learning.base.Bench` over a run's lab. Read `lab_bench` first.

`branches` asks one recorded prompt again, `replays` goes on from a recorded rollout, and `side_calls` records model
calls that belong to no rollout.
"""
