"""The run directory: stores everything that later commands need. Read `directory` first, then `chain`.

Also the child processes of a run: `children` is the manager, `forks` is one of two ways to start a child, `parent` ends
a child with its parent, and `child_environment` chooses a child's variables.
"""
