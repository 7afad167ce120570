"""One file or folder for each algorithm: gather, sft, ppo, bandit, rejection, dpo, star. Read `rejection` first."""
