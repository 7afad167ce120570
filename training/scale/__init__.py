"""Several processes, here or on the nodes of a Ray cluster: `ranks` share an update, `actors` make rollouts."""
