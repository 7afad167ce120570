"""Scorers, the judge, metrics and comparisons."""
