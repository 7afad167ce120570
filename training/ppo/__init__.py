"""PPO, on rollouts or on answers to recorded prompts. Read `phase` first, then `loop` and `sources`."""
