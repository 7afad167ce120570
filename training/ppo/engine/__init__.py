"""The update of PPO: a step's samples become advantages, and these new weights. Read `update` first."""
