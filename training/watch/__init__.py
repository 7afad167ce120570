"""What is measured, and who is shown it: metrics, terminal view, Weights & Biases. Read `metrics` first."""
