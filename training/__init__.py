"""Chimera's training: rollouts through Agent Lightning, and the phases that train each role."""

import os

from training.lightning import postpone_proxy

# Without it, importing LiteLLM (through Agent Lightning 0.3.0) waits for a price list from the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
postpone_proxy()
