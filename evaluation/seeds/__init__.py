"""Compares several training runs: the effect of training on new tasks and with a new training seed.

Read `crossed.py` first: the two-level interval. `runs.py` reads the runs' reports, `compare.py` makes study.json of
them, and `study_text.py` shows it as text and tables.
"""
