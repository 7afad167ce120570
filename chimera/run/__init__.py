"""The run directory: everything that a later command needs, written durably. Read `directory` first, then `chain`.

Also the child processes of a run: `children` is the manager, `forks` one of the two ways to start a child, `parent`
ends a child with its parent, and `child_environment` says which variables it gets.
"""
