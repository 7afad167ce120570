"""The lines of a run's metrics.jsonl for one W&B run.

Line n of the file is row n of W&B's history: so a later start knows which lines W&B has, and sends none twice.
"""

import json
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutRecord
from training.watch.metrics import ARTIFACT, PROTOCOLS
from training.watch.wandb.rows import COLUMNS, Rows, protocol_rows

if TYPE_CHECKING:
    import wandb

FLUSH_SECONDS = 10.0
PROTOCOL_ROWS = 20
"""Largest number of rows in a table of protocols."""
BLOCK = 32768
"""Size of the blocks in which W&B writes its file."""


class Feed:
    """Sends new lines to W&B.

    Args:
        shown: The W&B run.
        first: Number of lines that W&B has already.
    """

    def __init__(self, run: Run, shown: "wandb.Run", first: int) -> None:
        self._run, self._shown, self._first = run, shown, first
        self._rows = Rows(shown)
        self._read = self._count = 0
        self._flushed = (0, -math.inf)

    def send(self) -> Iterator[tuple[str, Exception]]:
        """Send new lines. Yields each table or artifact that W&B did not take, and why; the figures go on."""
        for line in self._lines():
            if line["phase"] not in (ARTIFACT, PROTOCOLS):
                row = self._rows.row(line)
                if self._count >= self._first:
                    self._shown.log(row, step=self._count, commit=True)
            elif self._count >= self._first:
                try:  # Both need W&B's server, whereas rows wait for it.
                    (self._send_policy if line["phase"] == ARTIFACT else self._send_protocols)(line)
                except Exception as error:  # noqa: BLE001  W&B raises anything
                    yield f"{line['phase']} of {line.get('of', line.get('version'))}", error
            self._count += 1
        if self._shown.offline:
            self._flush()

    def _lines(self) -> Iterator[dict[str, Any]]:
        """New complete lines. A line that is being written is left for later."""
        file = self._run.path / "metrics.jsonl"
        if not file.exists():
            return
        with file.open("rb") as opened:
            opened.seek(self._read)
            whole = opened.read().rpartition(b"\n")[0]
        if whole:
            self._read += len(whole) + 1
            yield from map(json.loads, whole.split(b"\n"))

    def _send_policy(self, line: dict[str, Any]) -> None:
        """Log the policy's files by reference: paths and checksums, no copy."""
        import wandb

        policy = Policy.load({key: line[key] for key in line.keys() - {"time", "phase", "step"}})
        artifact = wandb.Artifact(f"{policy.target}-{self._shown.id}", type="model", metadata=policy.dump())
        artifact.add_reference((self._run.path / policy.folder).resolve().as_uri(), checksum=True)
        self._shown.log_artifact(artifact, aliases=[policy.version])

    def _send_protocols(self, line: dict[str, Any]) -> None:
        import wandb

        records = [RolloutRecord.load(record) for record in self._run.lines(f"rollouts/{line['of']}.jsonl")]
        table = wandb.Table(columns=list(COLUMNS), data=[*protocol_rows(records, PROTOCOL_ROWS)])
        self._shown.log({f"{PROTOCOLS}/{line['of']}": table}, step=self._count, commit=True)

    def _flush(self) -> None:
        """Make W&B write its buffer to its file at intervals, so that `wandb leet` can show it.

        wandb 0.28 writes a block only when it is full, later releases every 15 s (their pull request 12742): an empty
        record with a name as long as a block completes the one before. `wandb sync` reads over it.
        """
        from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]  generated

        count, when = self._flushed
        if self._count > count and time.monotonic() - when >= FLUSH_SECONDS:
            publish = self._shown._interface._publish  # pyright: ignore[reportAttributeAccessIssue,reportOptionalMemberAccess]  no public name
            publish(Record(telemetry={}, uuid="-" * BLOCK))
            self._flushed = (self._count, time.monotonic())


def lines_in_files(folder: Path) -> int:
    """Number of lines of metrics.jsonl in W&B's files of earlier starts; the torn end of a file is left out."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]  generated
    from wandb.sdk.internal.datastore import DataStore

    rows = {-1}
    for file in folder.glob("*run-*/*.wandb"):
        store = DataStore()
        with suppress(AssertionError):  # How `DataStore` says that a file is torn.
            store.open_for_scan(str(file))
            while (data := store.scan_data()) is not None:
                items = Record.FromString(data).history.item
                rows |= {int(item.value_json) for item in items if "_step" in (item.key, *item.nested_key)}
    return max(rows) + 1
