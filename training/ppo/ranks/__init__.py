"""An update by several processes, here or on the nodes of a Ray cluster: `ranks` is the engine that a phase sees."""
