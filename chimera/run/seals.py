"""Seals: the ledger holds the SHA-256 of every file of its run, so that later changes are detected.

    {"event": "sealed", "files": {"traces/a.jsonl.gz": ["<SHA-256>", <bytes>], "ppo/checkpoints/3/x": null, ...}}

A seal lists the files that are new, changed or removed (null) since the previous seal. Some files only grow: each seal
covers their first bytes, which may never change again. Traces never change. For all other files the last seal counts.
Logs, W&B's files, hidden files (drafts, the lock) and the ledger itself are not sealed.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import read_json_object
from chimera.run.directory import LEDGER, Run
from chimera.run.hashes import BLOCK, hash_artifact, hashes

SEALED = "sealed"
UNSEALED = ("logs", "wandb")
GROWING = (
    *("metrics.jsonl", "rollouts/*.jsonl", "evaluation/*/*.jsonl", "gate/*.jsonl"),
    *("phases/*/calls.jsonl", "phases/*/replays.jsonl"),
)
FIXED = ("traces/*",)
Seal = tuple[str, int]
"""SHA-256, and the number of first bytes of the file that it covers."""


def seal(run: Run, below: str = "") -> list[str]:
    """Write the hashes of all files that are new or have changed into the run's ledger.

    A file that was changed but may not change keeps its old seal, so that `unlike_disk` still names it.

    Args:
        run: A run that this process owns.
        below: A folder of the run, to seal only its files.

    Returns:
        The files that were changed but may not change.

    Raises:
        RunError: The run is not owned by this process, or a file cannot be read.
    """
    before = {name: seals for name, seals in history(run.events()).items() if _is_below(name, below)}
    on_disk = dict(_files(run.path, below))
    fresh: dict[str, Seal | None] = {}
    broken: list[str] = []
    for name, file in on_disk.items():
        seals = before.get(name, [])
        if (current := _seal_of(name, file)) is None or (seals and seals[-1] == current):
            continue
        if _is(name, GROWING + FIXED) and not _kept(name, file, seals[-1:]):
            broken.append(name)
        else:
            fresh[name] = current
    for name, seals in before.items():
        if name not in on_disk and seals[-1] is not None:
            if _is(name, GROWING + FIXED):
                broken.append(name)
            else:
                fresh[name] = None
    if fresh:
        run.ledger(SEALED, files=dict(sorted(fresh.items())))
    return sorted(broken)


def history(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Seal | None]]:
    """Every seal of every file, oldest first; None means that the file was removed."""
    seals: dict[str, list[Seal | None]] = {}
    for event in events:
        if event["event"] == SEALED:
            for name, entry in event["files"].items():
                seals.setdefault(name, []).append(None if entry is None else (str(entry[0]), int(entry[1])))
    return seals


def read_report(run: Run) -> dict[str, Any] | None:
    """The run's report; None if there is none. Raises RunError if it was changed since, or is no report."""
    file = run.path / "report" / "report.json"
    if not file.exists():
        return None
    checked(run, "report", "evaluate the run again")
    try:
        return read_json_object(file)
    except (OSError, ValueError) as error:
        raise RunError(f"{file} is no report ({error}): evaluate the run again") from error


def checked(run: Run, name: str, remedy: str = "restore it from a copy of the run, or make a new run") -> Path:
    """Compare a folder of the run with the ledger's hashes before it is used; returns its path.

    A folder without hashes in the ledger is not checked. A process hashes an unchanged file only once.

    Args:
        name: The folder, relative to the run.
        remedy: What the user can do about damage, for the message.

    Raises:
        RunError: A file was changed, removed or added since it was recorded; the message names it.
    """
    folder, events, whole = run.path / name, list(run.events()), None
    seals = {file: of_file[-1] for file, of_file in history(events).items() if _is_below(file, name)}
    for event in events:
        if name in event.get("artifacts", {}):
            whole = event["artifacts"][name]
        elif event["event"] == SEALED and any(_is_below(file, name) for file in event["files"]):
            whole = None
    if whole is not None and folder.exists() and hash_artifact(folder) == whole:
        return folder
    on_disk = dict(_files(run.path, name))
    for file, entry in sorted(seals.items()):
        if entry is not None and file not in on_disk:
            raise RunError(f"{run.path / file} is missing, and the run's ledger has its hash: {remedy}")
        if file in on_disk and (entry is None or not _kept(file, on_disk[file], [entry])):
            raise RunError(f"{run.path / file} is not what the run wrote, by the hash in its ledger: {remedy}")
    if seals and (added := sorted(set(on_disk) - set(seals))):
        raise RunError(f"{run.path / added[0]} was added to what the run wrote, by the hashes in its ledger: {remedy}")
    if whole is not None:
        raise RunError(f"{folder} is not what the run wrote, by the hash in its ledger: {remedy}")
    return folder


def unlike_disk(folder: Path, seals: Mapping[str, list[Seal | None]]) -> Iterator[str]:
    """Yield one sentence for each file of a run that differs from its seals.

    Args:
        seals: The result of `history`.
    """
    on_disk = dict(_files(folder))
    for name, of_file in sorted(seals.items()):
        last, file = of_file[-1], on_disk.get(name)
        if file is None:
            if last is not None:
                yield f"{name} is missing: the ledger has its hash"
        elif last is None:
            yield f"{name} was removed during the run, and now it is there again"
        elif not _kept(name, file, of_file if _is(name, GROWING + FIXED) else of_file[-1:]):
            yield f"{name} was changed: its bytes do not have the hash that the ledger holds"
        elif _is(name, GROWING) and _length(file) > last[1]:
            yield (
                f"{name} has lines after byte {last[1]} that the ledger knows nothing of: they were added, or the run "
                "is under way or was killed, and its next seal takes them in"
            )
    for name in sorted(set(on_disk) - set(seals)):
        yield (
            f"{name} is a file that the ledger knows nothing of: it was added, or the run is under way or was killed, "
            "and its next seal takes it in"
        )


def _kept(name: str, file: Path, seals: Iterable[Seal | None]) -> bool:
    """True if a file has the bytes that its seals cover, and further bytes only if it may grow."""
    present = [seal for seal in seals if seal is not None]
    size = file.stat().st_size
    if any(size < seal[1] if _is(name, GROWING) else size != seal[1] for seal in present):
        return False
    return hashes(file, (seal[1] for seal in present)) == [seal[0] for seal in present]


def _seal_of(name: str, file: Path) -> Seal | None:
    """The file's current seal; for a growing file, up to its last whole line. None if the file was just removed."""
    try:
        size = _length(file) if _is(name, GROWING) else file.stat().st_size
        return hashes(file, [size])[0], size
    except FileNotFoundError:
        return None


def _length(file: Path) -> int:
    """Offset of the end of the last whole line."""
    with file.open("rb") as opened:
        end = opened.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - BLOCK)
            opened.seek(start)
            at = opened.read(end - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
    return 0


def _is(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_below(name: str, folder: str) -> bool:
    return not folder or name.startswith(f"{folder}/")


def _files(folder: Path, below: str = "") -> Iterator[tuple[str, Path]]:
    """Every file to seal, with its path relative to the run. A link counts as the file that it leads to."""
    for at, folders, names in os.walk(folder / below):
        here = Path(at)
        folders[:] = sorted(
            entry for entry in folders if not (entry.startswith(".") or (here == folder and entry in UNSEALED))
        )
        for name in sorted(names):
            file = here / name
            if not name.startswith(".") and not (here == folder and name == LEDGER) and file.is_file():
                yield file.relative_to(folder).as_posix(), file
