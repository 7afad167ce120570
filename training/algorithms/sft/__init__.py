"""Supervised fine-tuning of the juniors, in a process of its own. Read `phase` first."""
