"""The configuration: one frozen tree. Read `tree` first; each of its sections has a file of its own."""
