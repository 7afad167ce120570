"""From finished rollouts to the data that algorithms need. Read `episodes` first, then `adapter`."""
