"""One file or folder for each algorithm: `gather`, `sft/`, `ppo/`, `bandit/`, `rejection`, `dpo/`. Read `rejection` first."""
