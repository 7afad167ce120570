"""A run's metrics out of Weights & Biases, as the lines of metrics.jsonl that `wandb_mirror` showed there.

W&B keeps one row for each line: row n is line n, with the phase before each key and mappings flattened. What it never
had does not come back: values that were None, artifacts, and tables of protocols.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigError, RunError
from chimera.core.secrets import redact
from evaluation.records.study import GATE
from training.watch.metrics import PROTOCOLS
from training.watch.wandb_steps import step_key

if TYPE_CHECKING:
    from wandb.apis.public import Run

KEY = "WANDB_API_KEY"
SECONDS = 30
"""How long W&B may take to answer one request."""
LONGEST = 300
"""Characters of W&B's own words in an error."""
MAPPINGS = ("parts", "counts", "selected_by_role")
"""Values of metrics.jsonl that are mappings; elsewhere a slash belongs to the name, as in VeRL's "actor/entropy"."""
WITHOUT_STEPS = ("gather", "gate")
"""Phases whose lines have no step, like those of held-out stages; W&B numbers them."""


def lines_of(path: str, secrets: Mapping[str, str]) -> list[dict[str, Any]]:
    """The metrics of the W&B run at `path`, "entity/project/run".

    Args:
        path: As in the address of the run's page, whose last part is the run's id.
        secrets: With W&B's key.

    Raises:
        ConfigError: `path` has not three parts, or there is no key.
        RunError: W&B knows no such run, refuses the key, does not answer, or the run is none of ours.
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
    for row in sorted(rows, key=lambda row: row["_step"]):
        phase = _phase(row)
        if phase is None:
            continue
        step = row[step_key(phase)]
        # The line about a phase as a whole is drawn at the phase's last step.
        whole = phase in WITHOUT_STEPS or phase.startswith(f"{GATE}-") or last.get(phase) == step
        last[phase] = step
        time = datetime.fromtimestamp(row["_timestamp"], UTC).isoformat()
        lines.append({"time": time, "phase": phase, "step": None if whole else step, **_values(row, phase)})
    return lines


def _phase(row: Mapping[str, Any]) -> str | None:
    """Which phase a row is about; None if it is none of metrics.jsonl's lines."""
    for key in row:
        phase = key.partition("/")[0]
        if phase != PROTOCOLS and key == step_key(phase) and row[key] is not None:
            return phase
    return None


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
    """What was wrong in the first place; W&B reports many a dead network as a wrong key."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(redact(f"{type(error).__name__}: {error}").split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
