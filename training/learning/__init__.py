"""Makes the data of algorithms from finished rollouts. Read `episodes` first, then `adapter`."""
