"""The report of an evaluation. Read `build` first."""
