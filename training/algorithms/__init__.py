"""A file or folder for each algorithm: gather, sft, ppo, bandit, rejection, dpo, star, distil. Read rejection first."""
