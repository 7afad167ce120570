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

    Judges keep their own, so that they score as in training, unless another role has their slot.
    """
    if temperature is None:
        return dict(endpoints)
    roles = {slot for role, slot in config.roles.slots().items() if role != JUDGE}
    judges = {config.slot(JUDGE), *config.rollouts.judges} - roles
    return {
        slot: endpoint if slot in judges else replace(endpoint, temperature=min(endpoint.temperature, temperature))
        for slot, endpoint in endpoints.items()
    }
