"""The tasks: `tasks` loads and splits them, `pubmedqa` reads the real ones, `generated/` makes the offline ones."""
