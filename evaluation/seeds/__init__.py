"""Several training runs together: what a training gives on new tasks and with a new training seed.

Read `crossed.py` first: the two-level interval. `runs.py` reads the runs' reports, `rows.py` compares over them,
`study_report.py` is study.json, and `study_text.py` shows it.
"""
