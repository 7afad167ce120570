"""The deterministic grader that can play the reviewers and the judge. Read `grader` first."""
