"""The run directory: writes everything that later commands need, durably, and reads it back.

    runs/<name>/  config.yaml  environment.json  ledger.jsonl  metrics.jsonl  rollouts/<phase>.jsonl

The ledger is a hash chain (`chimera.run.chain`) and holds the SHA-256 of every other file (`chimera.run.seals`).

Only one process at a time owns a run and may write to it; its children may append too. Reading needs no ownership.
"""

import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from chimera.config.differences import differences, first_few
from chimera.config.loader import effective
from chimera.config.source import read_yaml, to_yaml
from chimera.config.tree import Config, load_config
from chimera.core.errors import RunError, suggestion
from chimera.core.files import read_json_object, replace_file
from chimera.core.secrets import load_secrets, redact_tree
from chimera.run.chain import read_events
from chimera.run.environment import describe_environment, now
from chimera.run.hashes import hash_artifact
from chimera.run.inputs import CREATED, hash_inputs, same_inputs
from chimera.run.jsonl import append_line, read_lines
from chimera.run.owner import EVALUATES

LEDGER = "ledger.jsonl"
LONGEST_NAME = 64
SAFE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
FIXED_ON_RESUME = ("seed", "data.", "models.", "roles.", "society.", "tools.", "reward.", "gate.", "rollouts.judges")
"""Settings that a resumed run keeps. Other tasks, models or rewards would mix two experiments under one name."""

FREE_ON_RESUME = (".ranks", ".shards", ".micro_batch_size", ".ppo_max_token_len_per_gpu", ".min_examples")
"""Settings of a begun phase that may change all the same: they say where and in which parts it computes, or after how
many examples it gives up."""

ALWAYS_WRITTEN = ("seed", "data", "models", "society", "reward", "pipeline", "gate", "evaluation")
"""Sections of every run's config.yaml, including the last one. A file without one of them was emptied or cut off."""
START = {LEDGER, "config.yaml", "environment.json"}
"""Files that the start of a run writes before any phase begins."""

TRIAL = "this is a trial (--quick): it shows that everything works, and its figures mean little"

_owned: dict[Path, int] = {}
"""Open lock files of the runs that this process owns. The operating system ends these locks with the process."""
_owned_guard = threading.Lock()


@dataclass(frozen=True)
class Run:
    """One run directory; `writable` if this process, or the parent that passed it, owns it."""

    path: Path
    writable: bool = False

    @classmethod
    def create(cls, name: str | None, config: Config, *, resume: bool = False) -> "Run":
        """Make the run `config.runs_dir/name` and own it; None: the name is the time.

        With `resume` an existing run is continued: changed settings are recorded in its ledger and replace config.yaml.
        A run whose start was killed before a phase began is empty, so its name may be reused.

        Raises:
            RunError: the folder cannot be made, the name is unsafe or taken, another process writes the run, or
                `resume` would change its tasks.
        """
        load_secrets(config.secret_names())
        try:
            path = new_folder(config.runs_dir) if name is None else _named_folder(name, config.runs_dir, resume)
        except OSError as error:
            raise RunError(
                f"runs_dir={config.runs_dir} cannot be written to ({error.strerror}): set runs_dir to another folder"
            ) from error
        run = cls(path).own()
        try:
            if not (resume and (path / "config.yaml").exists()):
                _clear_start(path)  # The run is owned by now, so no other process can begin it.
            run._start(config)
        except OSError as error:
            run.close()
            raise RunError(
                f"run {path} cannot be written to ({error.strerror}): make room, or copy it elsewhere"
            ) from error
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, name: str, runs_dir: Path | str = "runs") -> "Run":
        """Open an existing run for reading; `name` may also be its path below `runs_dir`.

        Raises:
            RunError: there is no such run.
        """
        folder = Path(runs_dir)
        plain = Path(name).name if Path(name).parent == folder else name
        path = folder / check_name(plain)
        if not (path / "config.yaml").is_file():
            names = [run.name for run in list_runs(folder)]
            others = f"the newest are {', '.join(names[-5:])}" if names else "there is none; is runs_dir right?"
            raise RunError(f"there is no run {plain!r} in {folder}: {suggestion(plain, names, others)}")
        return cls(path)

    @classmethod
    def latest(cls, runs_dir: Path | str = "runs") -> "Run":
        """Open the run that was created last for reading; raises RunError if there is none."""
        runs = list_runs(Path(runs_dir))
        if not runs:
            raise RunError(f"there is no run in {runs_dir}: make one with python -m chimera train")
        return runs[-1]

    def own(self, *, evaluates: bool = False) -> "Run":
        """The same run, owned by this process and open for appending. Use it in a `with` block.

        Args:
            evaluates: True if the run is owned to evaluate it and not to train it, which others can then see.

        Raises:
            RunError: another process writes the run, or its folder cannot be written to.
        """
        try:
            _take_ownership(self.path, EVALUATES if evaluates else "")
        except OSError as error:
            raise RunError(f"run {self.path} cannot be written to ({error.strerror}): copy it elsewhere") from error
        return Run(self.path, writable=True)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Config:
        """The configuration with which the run was last written; no module that it names is imported."""
        return load_config(self.config_file, own_question=True, recorded=True)

    @property
    def config_file(self) -> Path:
        """The file of that configuration, which holds every section.

        Raises:
            RunError: It is empty or was cut off, and with defaults the run would be another experiment; or an earlier
                version wrote it.
            ConfigError: It cannot be read.
        """
        file = self.path / "config.yaml"
        sections = {key.partition(".")[0] for key in read_yaml(file)}
        missing = [name for name in ALWAYS_WRITTEN if name not in sections]
        if missing:
            raise RunError(
                f"{file} has no {missing[0]!r}: it was emptied or cut off; restore it from a copy of the run, because "
                "with default settings in its place the run would be another experiment"
            )
        return file

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, platform and commit with which the run was made, and its time (`created`).

        Raises:
            RunError: environment.json is missing or broken.
        """
        file = self.path / "environment.json"
        try:
            record = read_json_object(file)
        except (OSError, ValueError) as error:
            raise RunError(
                f"{file}, which tells what the run was made with, is broken ({error}): restore it from a copy of the "
                "run"
            ) from error
        if not isinstance(record.get("created"), str):
            raise RunError(f"{file} does not tell when the run was created: restore it from a copy of the run")
        return record

    def rollouts_file(self, phase: str) -> Path:
        """The file of the rollouts of `phase`, one JSON object a line."""
        return self.path / _rollouts(phase)

    def append_rollout(self, record: Mapping[str, Any], *, phase: str) -> None:
        self._append(self.rollouts_file(phase), record, sync=True)

    def rollouts(self, phase: str) -> Iterator[dict[str, Any]]:
        """The recorded rollouts of `phase`, oldest first."""
        return self.lines(_rollouts(phase))

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        self._append(self.path / "metrics.jsonl", {"time": now(), **record})

    def metrics(self) -> Iterator[dict[str, Any]]:
        return self.lines("metrics.jsonl")

    def ledger(
        self, event: str, *, phase: str | None = None, artifacts: Iterable[Path | str] = (), **fields: Any
    ) -> None:
        """Write an event durably, with the SHA-256 of each artifact (files or folders below the run)."""
        hashes = {str(item): hash_artifact(self.path / item) for item in artifacts}
        record = {"time": now(), "event": event, "phase": phase, "artifacts": hashes, **fields}
        self._append(
            self.path / LEDGER,
            {key: value for key, value in record.items() if value not in (None, {})},
            sync=True,
            chained=True,
        )

    def events(self) -> Iterator[dict[str, Any]]:
        """The ledger, oldest first; each line holds the hash of the one before (`chimera.run.chain`).

        Raises:
            RunError: A line is broken or was changed.
        """
        return read_events(self.path / LEDGER)

    @property
    def gate_temperature(self) -> float | None:
        """At which the gate samples: `evaluation.temperature` when the run began; None for each slot's own.

        Runs of earlier versions, whose ledger does not say, sampled at each slot's own.
        """
        return next((event.get("temperature") for event in self.events() if event["event"] == CREATED), None)

    def lines(self, file: str) -> Iterator[dict[str, Any]]:
        """The records of a file that holds one JSON object a line; its path is relative to the run."""
        return read_lines(self.path / file)

    def close(self) -> None:
        """Release ownership, so that this process can no longer append. No effect on a read-only run."""
        with _owned_guard:
            descriptor = _owned.pop(self.path.resolve(), None)
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, file: Path, record: Mapping[str, Any], *, sync: bool = False, chained: bool = False) -> None:
        if not self.writable:
            raise RunError(f"run {self.name!r} was opened to read: create or resume it to write")
        append_line(file, record, sync=sync, chained=chained)

    def _start(self, config: Config) -> None:
        (self.path / "rollouts").mkdir(exist_ok=True)
        file, environment_file = self.path / "config.yaml", self.path / "environment.json"
        environment = describe_environment()
        if file.exists():
            changed = self.changed(config)
            before = self.environment
            moved = differences(before, environment | {"created": before["created"]})
            self.ledger("resumed", changed=changed or None, environment=moved or None)
        else:
            replace_file(environment_file, json.dumps(environment, indent=2) + "\n")
            self.ledger(CREATED, inputs=hash_inputs(config), temperature=config.evaluation.temperature)
        replace_file(file, to_yaml(redact_tree(effective(config))))

    def changed(self, config: Config) -> dict[str, tuple[Any, Any]]:
        """The settings that `config` changes, each with its value before and now.

        Raises:
            RunError: A resumed run keeps one of them.
        """
        changed = differences(effective(self.config), effective(config) | {"runs_dir": self.config.runs_dir.as_posix()})
        begun = tuple(
            f"pipeline.{event['phase']}."
            for event in self.events()
            if event["event"] in ("phase_learned", "phase_finished")
            or (event["event"] == "phase_started" and self._has_work(event["phase"]))
        )
        same = same_inputs(self.events(), config)
        relevant = [key for key in changed if key not in same and not key.endswith(FREE_ON_RESUME)]
        if fixed := [key for key in relevant if key.startswith(FIXED_ON_RESUME + begun)]:
            named = first_few([f"{key}={changed[key][0]} (not {changed[key][1]})" for key in fixed])
            raise RunError(
                f"run {self.name!r} was made with {named}: keep {'them' if len(fixed) > 1 else 'it'}, or take another "
                "name"
            )
        return changed

    def _has_work(self, phase: str) -> bool:
        """True if a phase has made what depends on its settings."""
        return self.rollouts_file(phase).exists() or (self.path / "checkpoints" / phase).exists()


def _rollouts(phase: str) -> str:
    """The file of the rollouts of `phase`, relative to the run."""
    return f"rollouts/{check_name(phase)}.jsonl"


def is_trial(events: Iterable[Mapping[str, Any]]) -> bool:
    """True if `--quick` made the run."""
    return any(event.get("trial") for event in events)


def phases_before(events: Iterable[Mapping[str, Any]], phase: str) -> set[str] | None:
    """The phases that were started before the first start of `phase`; None if it was never started."""
    phases: set[str] = set()
    for event in events:
        if event["event"] == "phase_started":
            if event["phase"] == phase:
                return phases
            phases.add(event["phase"])
    return None


def check_name(name: str) -> str:
    """`name` if it is safe as a file name; raises RunError if it is not."""
    if not SAFE_NAME.fullmatch(name) or ".." in name:
        raise RunError(
            f"{name!r} cannot name a run or a phase: use at most 64 letters, digits, '.', '_' and '-', "
            "with a letter or digit first and no '..'"
        )
    return name


def short_name(name: str) -> str:
    """`name`, or if it is too long for a phase its beginning and eight digits of its SHA-256."""
    if len(name) <= LONGEST_NAME:
        return name
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - len(digits) - 1]}-{digits}"


def list_runs(runs_dir: Path) -> list[Run]:
    """The complete runs in `runs_dir`, oldest first."""
    if not runs_dir.is_dir():
        return []
    folders = [folder for folder in runs_dir.iterdir() if (folder / "config.yaml").is_file()]
    return [Run(folder) for folder in sorted(folders, key=lambda folder: (_created(folder), folder.name))]


def new_folder(parent: Path, mode: int = 0o777) -> Path:
    """Make a folder in `parent` that is called after the time."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir(mode)
            return path
        except FileExistsError:
            number += 1


def _named_folder(name: str, runs_dir: Path, resume: bool) -> Path:
    path = runs_dir / check_name(name)
    if not resume:
        check_free(name, runs_dir)
    runs_dir.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=True)
    return path


def check_free(name: str, runs_dir: Path) -> None:
    """Refuse, before anything is made, a name that a new run in `runs_dir` cannot have.

    Raises:
        RunError: it is unsafe, or another run has it.
    """
    path = runs_dir / check_name(name)
    if path.exists() and not (path.is_dir() and is_blank(path)):
        raise RunError(f"run {path.name!r} exists in {path.parent}: choose another name")


def is_blank(path: Path) -> bool:
    """True if `path` is the folder of a run whose start was killed or stopped before a phase began."""
    names = {item.name for item in path.iterdir() if not item.name.startswith(".")}
    if not names <= START | {"rollouts", "logs", "wandb"} or any(path.glob("rollouts/*")):
        return False
    return all(event["event"] != "phase_started" for event in read_lines(path / LEDGER))


def _clear_start(path: Path) -> None:
    """Remove the files that an interrupted start left in the folder of a new run."""
    check_free(path.name, path.parent)
    for name in START:
        (path / name).unlink(missing_ok=True)


def _take_ownership(path: Path, work: str) -> None:
    key = path.resolve()
    with _owned_guard:
        if key in _owned:
            raise RunError(f"run {path.name!r} is already being written by this process")
        descriptor = os.open(key / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A POSIX lock and not flock: children do not inherit it, so a dead owner's run is free at once.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip().partition(" ")[0]
            os.close(descriptor)
            raise RunError(f"run {path.name!r} is being written by process {owner}: wait for it or stop it") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {work}".strip().encode() + b"\n", 0)
        _owned[key] = descriptor


def _created(folder: Path) -> str:
    """The time at which a run was made. If environment.json is broken: the time at which config.yaml was last written.

    So one damaged run does not keep the others from being listed.
    """
    try:
        return Run(folder).environment["created"]
    except RunError:
        written = (folder / "config.yaml").stat().st_mtime
        return datetime.fromtimestamp(written, UTC).isoformat(timespec="microseconds")
