"""The configuration: one frozen tree. Read `tree` first; most of its sections lie in sections/."""
