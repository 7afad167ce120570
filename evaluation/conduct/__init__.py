"""Runs the missing rollouts of an evaluation, and answers questions. Read `conductor` first."""
