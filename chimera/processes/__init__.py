"""The child processes of a run: each has a log and few variables, and ends with its parent. Read `children` first.

`programs` and `guard` start programs of others; `parent` ends a child with its parent, and `child_environment` chooses
a child's variables.
"""
