"""The Weights & Biases process: follows a run's metrics.jsonl and shows it as a W&B run.

The W&B run's id is that of the run directory, and line n of metrics.jsonl is row n of W&B's history. So online a
resumed run continues after the last row that W&B has. Offline it becomes a new, complete W&B run.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.schemas import ExperimentProtocol
from chimera.core.secrets import redact
from chimera.run.jsonl import read_lines
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutRecord
from training.watch.metrics import ARTIFACT, PROTOCOLS
from training.watch.wandb_overview import CHARTS, SECTION, Overview
from training.watch.wandb_steps import PhaseSteps

if TYPE_CHECKING:
    import wandb

INIT_SECONDS = "30"
"""Default limit for W&B's server to answer. After it the run is written offline."""
OFFLINE_INIT_SECONDS = "300"
"""Limit offline, where only this machine can be slow."""
FINISH_SECONDS = "15"
"""Default limit for W&B to send the last rows."""
LOOK_SECONDS = 0.5
FLUSH_SECONDS = 10.0
BLOCK = 32768
"""Size of the blocks in which W&B writes its file."""
COLUMNS = ("task", "goal", "answer", "decision", "label", "reward", *ExperimentProtocol.model_fields, "amendments")
"""Columns of a table of protocols."""


@dataclass(frozen=True, slots=True)
class WandbSpec:
    """The specification of the W&B process.

    Attributes:
        protocols: Largest number of rows in a table of protocols.
        environment: W&B's own variables, with its key.
    """

    folder: Path
    run_id: str
    project: str
    entity: str | None
    protocols: int
    config: Mapping[str, Any]
    environment: Mapping[str, str] = field(repr=False)


def serve(spec: WandbSpec, mode: str, orders: Connection, reports: Connection) -> None:
    """Follow the run until `orders` is closed. Reports are pairs: has W&B started, and a message for the user."""
    folder = spec.folder / "wandb"
    folder.mkdir(exist_ok=True)
    os.environ |= {
        "WANDB_INIT_TIMEOUT": INIT_SECONDS,
        "WANDB_FINISH_TIMEOUT": FINISH_SECONDS,
        **spec.environment,
        **({"WANDB_INIT_TIMEOUT": OFFLINE_INIT_SECONDS} if mode == "offline" else {}),
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_CACHE_DIR": str(folder / "cache"),
    }
    try:
        run = start(spec, mode)
    except Exception as error:  # noqa: BLE001  whatever W&B raises, the run goes on without it
        reports.send((False, f"W&B cannot be used {mode}: {_reason(error)}"))
        return
    place = f"W&B is offline: watch live with: wandb leet {folder}" if mode == "offline" else f"W&B: {run.url}"
    reports.send((True, place))
    mirror = Mirror(run, spec, lambda text: reports.send((True, text)))
    while not orders.poll(LOOK_SECONDS):
        mirror.follow()
        if mode == "offline":
            mirror.flush()
    mirror.follow()
    later = f"with: {sync(spec.folder)}"
    try:
        run.finish()
        _end_service()
    except Exception as error:  # noqa: BLE001  it is all on disk
        reports.send((True, f"W&B did not take everything ({_reason(error)}); send the rest {later}"))
    else:
        if mode == "offline":
            reports.send((True, f"W&B: send the run to W&B {later}"))


def _end_service() -> None:
    """Wait until W&B's service has written the end of its file.

    `finish` of wandb 0.28 only tells the service to close the run, and a handler at the interpreter's exit waits for
    it. A forked process ends without such handlers, and the service ends as soon as it sees that. What is not in the
    file by then is lost: of a short run everything.
    """
    import wandb

    wandb.teardown()


def sync(folder: Path) -> str:
    """The command that sends the run's newest W&B run to W&B."""
    return f"wandb sync {folder / 'wandb' / 'latest-run'}"


def start(spec: WandbSpec, mode: str) -> "wandb.Run":
    """Start or continue the W&B run.

    W&B collects nothing by itself: no console, no code, no system metrics, nothing about the machine.
    """
    import wandb

    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        host="",
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        finish_timeout_raises=True,
    )
    return wandb.init(
        project=spec.project,
        entity=spec.entity,
        id=spec.run_id,
        name=spec.folder.name,
        dir=spec.folder,
        mode="online" if mode == "online" else "offline",
        resume="allow" if mode == "online" else None,
        config=dict(spec.config),
        notes=f"Look at the section '{SECTION}' first. Other metrics have no chart of their own; Add panel finds them.",
        settings=settings,
    )


class Mirror:
    """Shows the lines of a run's metrics.jsonl as rows of a W&B run, from the first line that W&B lacks."""

    def __init__(self, run: "wandb.Run", spec: WandbSpec, report: Callable[[str], None]) -> None:
        self._run = run
        self._spec = spec
        self._report = report
        self._overview = Overview(run)
        self._steps = PhaseSteps(run, CHARTS)
        self._read = 0
        self._row = 0
        self._flushed = (0, -math.inf)

    def follow(self) -> None:
        """Show new lines."""
        for line in self._lines():
            self._show(line, new=self._row >= self._run.starting_step)
            self._row += 1

    def flush(self) -> None:
        """Make W&B write its buffer to its file at intervals, so that `wandb leet` can show it.

        wandb 0.28 writes a block only when it is full, later releases every 15 s (their pull request 12742): an empty
        record with a name as long as a block completes the one before. `wandb sync` reads over it.
        """
        from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]  generated

        row, when = self._flushed
        if self._row > row and time.monotonic() - when >= FLUSH_SECONDS:
            publish = self._run._interface._publish  # pyright: ignore[reportAttributeAccessIssue,reportOptionalMemberAccess]  no public name
            publish(Record(telemetry={}, uuid="-" * BLOCK))
            self._flushed = (self._row, time.monotonic())

    def _lines(self) -> Iterator[dict[str, Any]]:
        """New complete lines. A line that is being written is left for later."""
        file = self._spec.folder / "metrics.jsonl"
        if not file.exists():
            return
        with file.open("rb") as opened:
            opened.seek(self._read)
            whole = opened.read().rpartition(b"\n")[0]
        if whole:
            self._read += len(whole) + 1
            yield from map(json.loads, whole.split(b"\n"))

    def _show(self, line: dict[str, Any], *, new: bool) -> None:
        phase, step, when = line.pop("phase"), line.pop("step"), datetime.fromisoformat(line.pop("time"))
        if phase == ARTIFACT:
            self._artifact(Policy.load(line))
        elif phase == PROTOCOLS:
            if new and self._spec.protocols:
                self._protocols(line["of"])
        else:
            beside = self._overview.of(phase, step, line)
            self._steps.log(phase, step, line, row=self._row, time=when, send=new, beside=beside)

    def _artifact(self, policy: Policy) -> None:
        """Log the policy's files by reference: paths and checksums, no copy. W&B recognises files that it has."""
        import wandb

        artifact = wandb.Artifact(f"{policy.target}-{self._run.id}", type="model", metadata=policy.dump())
        with self._optional(f"the files of {policy.version}"):
            artifact.add_reference((self._spec.folder / policy.folder).resolve().as_uri(), checksum=True)
            self._run.log_artifact(artifact, aliases=[policy.version])

    def _protocols(self, phase: str) -> None:
        import wandb

        lines = read_lines(self._spec.folder / "rollouts" / f"{phase}.jsonl")
        rows = protocol_rows([RolloutRecord.load(line) for line in lines], self._spec.protocols)
        table = wandb.Table(columns=list(COLUMNS), data=[*rows])
        with self._optional(f"the protocols of {phase}"):
            self._run.log({f"{PROTOCOLS}/{phase}": table}, step=self._row, commit=True)

    @contextmanager
    def _optional(self, what: str) -> Iterator[None]:
        """Run an optional step that needs W&B's server, and only report a failure. Rows wait for the server instead."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  W&B raises anything; the figures go on
            self._report(f"W&B did not take {what}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """The first sentence of an error, on one line. The rest is often wrong advice."""
    return " ".join(redact(f"{type(error).__name__}: {error}").partition(". ")[0].split())


def protocol_rows(records: Sequence[RolloutRecord], limit: int) -> list[list[Any]]:
    """Protocols with their results, best reward first. Of more than `limit`, half are the best and half the worst."""
    known = sorted(
        (record for record in records if record.reward is not None and "final_protocol" in record.outputs),
        key=lambda record: record.reward or 0.0,
        reverse=True,
    )
    if len(known) > limit:
        known = known[: limit - limit // 2] + known[len(known) - limit // 2 :]
    return [
        [
            record.task_id,
            record.outputs["research_goal"],
            record.answer,
            record.decision,
            record.label,
            record.reward,
            *(record.outputs["final_protocol"].get(name) for name in ExperimentProtocol.model_fields),
            "; ".join(record.outputs["final_protocol"]["amendments"]),
        ]
        for record in known
    ]
