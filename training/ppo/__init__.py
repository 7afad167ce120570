"""PPO, on rollouts or on answers to recorded prompts. Read `phase` first, then `loop`.

sources             the samples of a step, from rollouts or from recorded prompts
credit              what each call earns of its rollout's reward
engine/advantages   advantages of samples, and importance weights
engine/update       one update, in this process; ranks/: by several
learner             the engine in a thread of its own
verl/               all that configures or patches VeRL
"""
