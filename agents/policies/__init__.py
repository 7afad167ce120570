"""Learned policies that do a part of a role's work beside its model.

Read `choice` first: it says who selects a hypothesis in a rollout, and with which probabilities. `bandit` is the policy
that learns to select, `features` are its inputs, `models` are its reward models.
"""
