"""A file for each algorithm that learns weights or the choice; PPO is in `training.ppo`. Read rejection first."""
