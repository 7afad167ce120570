"""Chimera's evaluation: scorers, the judge, metrics and comparisons."""
