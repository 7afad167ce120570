"""Metrics and their displays: terminal view, Weights & Biases. Read `metrics` first."""
