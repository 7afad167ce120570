"""A run's files as they grow, read no further than what is new. Read `watched` first.

`growing` reads one file on, `rows` makes a row of each rollout, and `folder` keeps all runs of a folder.
"""
