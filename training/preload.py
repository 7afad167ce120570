"""What the process that runners and gateway are forked from imports once, so that its children start at once.

Everything here is shared memory to them; `gc.freeze` keeps the collector from touching, and so copying, these pages.
"""

import gc

import agentlightning  # noqa: F401  imported for its side effect: loaded modules
import openai  # noqa: F401  as above
import sklearn.feature_extraction.text  # noqa: F401  as above

import training.bandit_policy
import training.gateway.process
import training.runner  # noqa: F401  as above

gc.collect()
gc.freeze()
