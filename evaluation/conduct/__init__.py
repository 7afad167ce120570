"""Rollouts without runners, and making what an evaluation lacks. Read `conductor` first, then `direct`."""
