"""The tasks: `tasks` loads and splits them. `pubmedqa` reads PubMedQA, `own` your data, `generated/` makes tasks."""
