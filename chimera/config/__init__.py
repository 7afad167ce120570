"""The configuration: one frozen tree. Read `tree` first; `learning` and `evaluation` hold the phases' and reports' part."""
