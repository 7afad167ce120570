"""The temperature at which the society answers: in gates, evaluations, and questions that people ask.

Training explores at each slot's own temperature, because it learns from answers that differ. Whoever wants an answer
wants the likely one.
"""

from collections.abc import Mapping
from dataclasses import replace

from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.serving.client import Endpoint


def answering(endpoints: Mapping[str, Endpoint], config: Config, temperature: float | None) -> dict[str, Endpoint]:
    """The endpoints of all slots, sampled at `temperature` at most; None: each at its own.

    The judge keeps its own, so that it scores as in training.
    """
    if temperature is None:
        return dict(endpoints)
    judge = config.slot(JUDGE)
    return {
        slot: endpoint if slot == judge else replace(endpoint, temperature=min(endpoint.temperature, temperature))
        for slot, endpoint in endpoints.items()
    }
