"""Statistics over many rollouts: metrics, intervals, paired differences, verdicts. Read `metrics` first."""
