"""A Ray cluster: membership of it, and rollouts in its actors."""
