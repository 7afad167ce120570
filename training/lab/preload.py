"""What the process that runners and gateway are forked from imports once, so that its children start at once.

Everything here is shared memory to them; `gc.freeze` keeps the collector from touching, and so copying, these pages.
Imports take seconds, in which this process would not notice that its parent has ended: it is watched meanwhile.
"""

import atexit
import gc
import os

from chimera.run.parent import ends_with_parent

with ends_with_parent():
    import agentlightning  # noqa: F401  imported for its side effect: loaded modules
    import openai  # noqa: F401  as above
    import sklearn.feature_extraction.text  # noqa: F401  as above

    import training.lab.gateway.process
    import training.lab.runner  # noqa: F401  as above

# Unloading all this takes seconds too. What is registered last is called first; forked children call none of it.
atexit.register(os._exit, 0)

gc.collect()
gc.freeze()
