"""Generated tasks in PubMedQA's form. Read `tasks` first."""
