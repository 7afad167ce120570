"""Fine-tuning in a child process, through TRL: `training.learning.base.Bench.fine_tune` for all algorithms."""
