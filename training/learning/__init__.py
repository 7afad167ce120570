"""What an algorithm is, and makes its data from finished rollouts. Read `base` first, then `episodes` and `groups`."""
