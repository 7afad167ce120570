"""Imports of the process from which runners and gateway are forked, so that its children start at once.

Children share this memory. `gc.freeze` keeps the garbage collector from touching, and so copying, these pages. Imports
take seconds in which this process would not notice that its parent has ended, so a watch runs meanwhile.
"""

import atexit
import gc
import os

from chimera.processes.parent import ends_with_parent

gc.disable()  # The collector would look through all that was loaded again and again: a third of the imports' time.
with ends_with_parent():
    import agentlightning  # noqa: F401  imported for its side effect: loaded modules
    import aiohttp  # noqa: F401  as above

    import training.lab.gateway.process
    import training.lab.runners.runner  # noqa: F401  as above

# Unloading the modules takes seconds too. The last registered handler runs first. Forked children run none.
atexit.register(os._exit, 0)

gc.collect()
gc.freeze()
gc.enable()
