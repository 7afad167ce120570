"""The tasks: `tasks` loads and splits them, `pubmedqa` reads PubMedQA, `generated/` makes the offline tasks."""
