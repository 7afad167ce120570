"""Imports of the same process as `preload`, for runs in which a learned policy chooses: its features need scikit-learn.

scikit-learn brings scipy and pandas: nearly half of the time of all these imports.
"""

import gc

from chimera.processes.parent import ends_with_parent

gc.disable()
with ends_with_parent():
    import sklearn.feature_extraction.text  # noqa: F401  imported for its side effect: loaded modules
gc.collect()
gc.freeze()
gc.enable()
