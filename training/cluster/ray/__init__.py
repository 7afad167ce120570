"""Ranks and runners on the nodes of a Ray cluster. Read `driver.py` first: the only process of a run that Ray is in."""
