"""The deterministic grader that stands in for reviewers and judge. Read `grader` first."""
