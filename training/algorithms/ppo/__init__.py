"""PPO of the seniors. Read `phase` first, then `steps`."""
