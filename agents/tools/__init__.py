"""What the scientists can search. Read `toolbox` first; models read the docstrings of its tools."""
