"""An update by several processes. Read `team.py` first: the main process's side; `rank.py` is the other.

`ray/` places ranks, and runners, on the nodes of a Ray cluster.
"""
