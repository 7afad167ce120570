"""What a run will need, before it is started. Read `sizes.py` first: a model's numbers; then `needs.py`, `plan.py`."""
