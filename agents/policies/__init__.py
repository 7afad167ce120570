"""What a role can be given beside its model: policies that were learned and take a part of its work.

Read `choice` first: who chooses among the hypotheses of one rollout, and with which probabilities. `bandit` is the
policy that learns to choose, `features` what it sees, `models` how it predicts rewards.
"""
