"""The run directory: everything that a later command needs, written durably. Read `directory` first, then `chain`.

Also how the child processes of a run are started with a clean environment (`child_environment`) and end (`parent`).
"""
