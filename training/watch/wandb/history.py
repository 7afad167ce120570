"""Reads a run's metrics from Weights & Biases as the lines of metrics.jsonl that `rows` showed there.

W&B keeps one row for each line: row n is line n, with the phase before each key and flattened mappings. Values that
were None, artifacts and tables of protocols are missing.
"""

import textwrap
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError, RunError
from chimera.core.secrets import redact
from evaluation.records.study import GATE
from training.watch.metrics import PROTOCOLS
from training.watch.wandb.rows import step_key

if TYPE_CHECKING:
    from wandb.apis.public import Run

KEY = "WANDB_API_KEY"
SECONDS = 30
"""Time limit of one request to W&B."""
LONGEST = 300
"""Number of characters of W&B's text in an error."""
MAPPINGS = ("parts", "counts", "selected_by_role")
"""Keys of metrics.jsonl whose values are mappings. Elsewhere a slash is part of the name: VeRL's "actor/entropy"."""
WITHOUT_STEPS = ("gather", "gate")
"""Phases whose lines have no step, like those of validation stages. W&B numbers their lines."""


def lines_of(path: str, secrets: Mapping[str, str]) -> list[dict[str, Any]]:
    """The metrics of the W&B run at `path`, "entity/project/run".

    Args:
        path: Path in the address of the run's page. Its last part is the run's id.

    Raises:
        ConfigError: `path` does not have three parts, or there is no key.
        RunError: W&B has no such run, refuses the key or does not answer, or Chimera did not make the run.
    """
    parts = path.strip("/").split("/")
    if len(parts) != 3 or not all(parts):
        raise ConfigError(f"{path!r} names no W&B run: give entity/project/run, as in the address of the run's page")
    if KEY not in secrets:
        raise ConfigError(f"reading {path} from W&B needs {KEY}: set it, or leave out --wandb to use metrics.jsonl")
    lines = lines_from(_rows("/".join(parts), secrets[KEY]))
    if not lines:
        raise RunError(f"the W&B run {path} has no metrics of this program: it is another kind of run, or an empty one")
    return lines


def lines_from(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a W&B history as lines of metrics.jsonl, in the order of their rows."""
    lines: list[dict[str, Any]] = []
    last: dict[str, int] = {}
    ordered = [(phase, row) for row in sorted(rows, key=lambda row: row["_step"]) if (phase := _phase(row)) is not None]
    ends = {phase: place for place, (phase, _) in enumerate(ordered)}
    for place, (phase, row) in enumerate(ordered):
        step = row[step_key(phase)]
        # The line about a whole phase is its last one, drawn at its last step. Others repeat a step of a resumed run.
        ending = last.get(phase) == step and ends[phase] == place
        whole = phase in WITHOUT_STEPS or phase.startswith(f"{GATE}-") or ending
        last[phase] = step
        time = datetime.fromtimestamp(row["_timestamp"], UTC).isoformat()
        lines.append({"time": time, "phase": phase, "step": None if whole else step, **_values(row, phase)})
    return lines


def _phase(row: Mapping[str, Any]) -> str | None:
    """The phase of a row; None if the row is not a line of metrics.jsonl."""
    phases = (key.partition("/")[0] for key in row)
    return next((phase for phase in phases if phase != PROTOCOLS and row.get(step_key(phase)) is not None), None)


def _values(row: Mapping[str, Any], phase: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in row.items():
        if not key.startswith(f"{phase}/") or key == step_key(phase) or value is None:
            continue
        name = key.removeprefix(f"{phase}/")
        outer, _, inner = name.partition("/")
        if outer in MAPPINGS and inner:
            values.setdefault(outer, {})[inner] = value
        else:
            values[name] = value
    return values


def _rows(path: str, key: str) -> list[dict[str, Any]]:
    """The whole history of a W&B run."""
    import wandb

    try:
        run: Run = wandb.Api(api_key=key, timeout=SECONDS).run(path)
        return [dict(row) for row in run.scan_history(use_cache=False)]
    except Exception as error:
        raise RunError(f"{path} cannot be read from W&B ({_reason(error)}): check path, {KEY} and network") from error


def _reason(error: BaseException) -> str:
    """The original cause of an error: W&B often reports a dead network as a wrong key."""
    while error.__cause__ is not None:
        error = error.__cause__
    return textwrap.shorten(redact(f"{type(error).__name__}: {error}"), LONGEST, placeholder="...")
