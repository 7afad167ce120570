"""Work on the nodes of a Ray cluster: `cluster` joins it, `actors` makes rollouts there."""
