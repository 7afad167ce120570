"""Scores of one rollout: judge, rewards, second judge, canaries. Read `rewards` first."""
