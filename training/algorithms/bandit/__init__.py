"""The supervisor's contextual bandit. Read `phase` first, then `policy`."""
