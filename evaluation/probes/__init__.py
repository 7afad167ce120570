"""What `python -m chimera doctor` tries before a run: models, tools, the machine, and one whole rollout.

Read `probed` first, then `models`: what each slot's server can do, found by asking it as the society would.
"""
