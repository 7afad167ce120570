"""How many processes decode for a server of embedded models."""

from chimera.config.sections.models import ServingConfig

SMALL = 60_000_000
"""Up to so many parameters two processes decode by default, because each has a copy of all weights. On two cores they
write 1.4 to 1.5 times as many tokens as one, with 2 million parameters and with 57 million."""


def decoding_processes(serving: ServingConfig, parameters: int, cores: int) -> int:
    """`serving.processes`, or if that is None what suits the model and the machine; each process has a slot at least.

    Args:
        parameters: Of all sets of weights together.
        cores: That the server may use.
    """
    if serving.processes is not None:
        return min(serving.processes, serving.slots)
    return 2 if parameters <= SMALL and serving.threads == 1 and min(cores, serving.slots) > 1 else 1
