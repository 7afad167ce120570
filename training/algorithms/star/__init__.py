"""STaR: fine-tuning on right answers in rounds, where a hint helps if no answer is right. Read `phase` first."""
