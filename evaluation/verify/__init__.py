"""Checks that a report is true. Read `check` first."""
