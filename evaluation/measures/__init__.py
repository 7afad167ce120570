"""Statistics over many rollouts: metrics, intervals, paired differences, baselines. Read `metrics` first."""
