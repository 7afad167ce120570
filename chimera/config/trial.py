"""A trial (`python -m chimera.train --quick`): the sizes of any configuration, lowered to a few minutes' work.

A size that is smaller already stays, and so does every other setting: a trial does what the configuration does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.config.loader import absent, keys
from chimera.config.pipeline import DEFAULT, algorithm_of
from chimera.config.source import Setting, parse_overrides, read_yaml

if TYPE_CHECKING:
    from chimera.config.tree import Config

SIZES = Path(__file__).parents[1] / "assets" / "quick.yaml"
FROM_TRIAL = "from --quick"
"""The place of these settings in messages."""
OF_TRAIN, OF_VALIDATION = ("tasks", "tasks_per_step"), ("test_tasks",)
"""Settings of a phase that may not be larger than a split of the data."""


def trial_sizes(file: Mapping[str, Setting], tree: "Config") -> dict[str, Setting]:
    """The settings of a trial that are smaller than those of a file, or else than the defaults.

    A phase that has another name or algorithm than the default one gets the sizes of one that learns alike.
    """
    sizes = {key: setting.value for key, setting in read_yaml(SIZES).items()}
    named = dict.fromkeys(key.split(".")[1] for key in sizes if key.startswith("pipeline."))
    for name, phase in tree.pipeline.items():
        if name not in DEFAULT or algorithm_of(name) != phase.algorithm:
            same = next((other for other in named if algorithm_of(other) == phase.algorithm), "sft")
            prefix = f"pipeline.{same}."
            of_phase = {key.removeprefix(prefix): size for key, size in sizes.items() if key.startswith(prefix)}
            sizes |= {f"pipeline.{name}.{last}": size for last, size in of_phase.items()}
    now = {key.name: key.default for key in keys(tree)}
    now |= {key: setting.value for key, setting in file.items() if key in now}
    return {
        key: Setting(size, FROM_TRIAL)
        for key, size in sizes.items()
        if isinstance(now.get(key), int | float) and size < now[key]
    }


def too_large(config: "Config", overrides: Sequence[str], *, train: int, validation: int) -> dict[str, int]:
    """The sizes that the data are too small for, with what they have: `train` and `validation` tasks.

    Those that the command line sets are left out: they were asked for.
    """
    limits = {"gate.tasks": (config.gate.tasks, max(2, validation))}
    for name, phase in config.pipeline.items():
        for fields, limit in ((OF_TRAIN, train), (OF_VALIDATION, validation)):
            limits |= {f"{name}.{field}": (getattr(phase, field, 0), limit) for field in fields}
    settled = {key.removeprefix("pipeline.") for key in (*absent(config), *parse_overrides(overrides))}
    return {key: limit for key, (size, limit) in limits.items() if size > limit and key not in settled}
