"""All that configures or patches VeRL 0.9.1, which is built for clusters of its own."""
