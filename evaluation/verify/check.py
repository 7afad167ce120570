"""Checks a report: its bytes and its run must be unchanged, and computing it again must give the same report.

Nothing is taken from the report: the evaluation's arguments are in the run's ledger, a hash chain that also holds the
hash of every file. Checks in order: the ledger, the run's files, the report's bytes, every number and rollout. Pages,
Markdown and drawings are held by their hashes alone.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import ChimeraError, RunError
from chimera.run.chain import Entry, read_chain
from chimera.run.directory import LEDGER, Run
from chimera.run.environment import describe_code
from chimera.run.hashes import hash_artifact
from chimera.run.inputs import changed_inputs
from chimera.run.policies import WENT_LIVE
from chimera.run.seals import history, unlike_disk
from evaluation.conduct.recorded_study import load_study
from evaluation.records.study import Study
from evaluation.report.build import FORMAT, VERSION, build
from evaluation.report.files import DATA, read_report, report_file_in, sheets
from evaluation.verify import again
from evaluation.verify.again import Verification
from evaluation.verify.asked import EVALUATED, Evaluated, RunThen, folder_in, hashes_of
from evaluation.verify.impossible import impossible

NOT_COMPARED = ("plots.", "written.", "run.path.")
"""Drawings have their hashes, the time of writing with the ledger; the run may have been moved since."""
SHOWN = 200
"""Longer texts are cut in messages."""


def verify(report_file: Path, run: Run | None, *, expect: str | None = None) -> Verification:
    """Check that a report is true.

    Args:
        report_file: report.json, the folder that it is in, or the run directory that has it in `report/`.
        run: The run that it is about (`find_run`); without one nothing can be recomputed, which is a problem too.
        expect: A hash that the run's ledger had when it was published.

    Raises:
        RunError: There is no run, and the file cannot be read or is no report.
    """
    file = report_file_in(report_file)
    if run is None:
        absent = f"the run of {report_file} was not found, so no number could be computed again: name it with --run"
        return Verification([*impossible(read_report(report_file)), absent])
    try:
        entries = read_chain(run.path / LEDGER)
    except RunError as error:
        return Verification([str(error)])
    head = entries[-1].hash if entries else None
    problems = list(_unlike_ledger(run, entries, expect))
    position = _entry_of(file, run, entries)
    if position is None:
        absent = f"{LEDGER} has no evaluation that wrote {file}: it was removed, or the report is of another run"
        return Verification([*problems, absent], len(entries), head)
    try:
        evaluated = Evaluated.load(entries[position].record)
    except (KeyError, TypeError, ValueError) as error:
        other = f"{LEDGER} says of {file} what this version of Chimera cannot read ({error}): verify it with its own"
        return Verification([*problems, other], len(entries), head)
    problems += _unlike_bytes(file.parent, evaluated)
    then = RunThen.at(run, entries[: position + 1], evaluated.name)
    try:
        changed = list(changed_inputs(run.events(), run.config))
        if changed:  # Of other inputs, nothing could be computed again.
            return Verification([*problems, *changed], len(entries), head)
        computed = _computed(read_report(report_file), evaluated, then, file)
    except ChimeraError as error:
        return Verification([*problems, str(error)], len(entries), head)
    return Verification([*problems, *computed.problems], len(entries), head, computed.rollouts, computed.replayed)


def _unlike_ledger(run: Run, entries: Sequence[Entry], expect: str | None) -> Iterator[str]:
    """A ledger without the hash `expect`, and files that are not as it says: each by its last seal, policies as they
    went live."""
    if expect is not None and expect not in {entry.hash for entry in entries}:
        yield f"{LEDGER} has no entry with the hash {expect}: its history was rebuilt, or it is another run's"
    seals = history(entry.record for entry in entries)
    if not seals:
        yield f"{LEDGER} seals no file, so nobody can tell whether the run's files are as they were written"
        return
    yield from unlike_disk(run.path, seals)
    for entry in entries:
        if entry.record["event"] == WENT_LIVE:
            for name, digest in entry.record.get("artifacts", {}).items():
                if (run.path / name).exists() and hash_artifact(run.path / name) != digest:
                    yield f"{name} is not the policy that went live after {entry.record['phase']}: it was changed"


def _entry_of(file: Path, run: Run, entries: Sequence[Entry]) -> int | None:
    """Which entry is about a report: the last that has its hash, else the last about its folder, else the last."""
    digest, folder = (
        hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "",
        folder_in(run, file.parent),
    )
    about = [
        (place, entry.record["report"]) for place, entry in enumerate(entries) if entry.record["event"] == EVALUATED
    ]
    ranked = [
        [place for place, report in about if report["files"].get(DATA) == digest],
        [place for place, report in about if report["folder"] == folder],
        [place for place, _ in about],
    ]
    return next((places[-1] for places in ranked if places), None)


def _unlike_bytes(folder: Path, evaluated: Evaluated) -> Iterator[str]:
    """Files of the report that differ from those that were written."""
    hashes = hashes_of(folder)
    for name in dict.fromkeys([*evaluated.files, *hashes]):
        if name not in hashes:
            yield f"{folder / name} is missing: the ledger has its hash"
        elif name not in evaluated.files:
            yield f"{folder / name} is no file of the report that the ledger knows: it was added"
        elif hashes[name] != evaluated.files[name]:
            yield f"{folder / name} was changed: its bytes do not have the hash that the ledger holds"


def _computed(report: Mapping[str, Any], evaluated: Evaluated, run: RunThen, file: Path) -> Verification:
    """Problems of a report, found by computing all of it again from the run at that time."""
    problems = impossible(report)
    if (report.get("format"), report.get("version")) != (FORMAT, VERSION):
        problems.append(
            f"the report's format is {report.get('format')!r}, version {report.get('version')!r}, not {FORMAT!r}, "
            f"version {VERSION}, so its numbers cannot be computed again"
        )
        return Verification(problems)
    if report.get("written") != evaluated.written:
        problems.append(f"written is {_brief(report.get('written'))}, but {_brief(evaluated.written)} in the ledger")
    try:
        plan, dataset = evaluated.asked.plan(run, evaluated.settings)
        study = load_study(run, plan, evaluated.settings)
        problems += unlike(report, study, file.parent)
        checked = asyncio.run(again.rollouts(study, dataset))
        repaired = asyncio.run(again.repairs(study, dataset))
        problems += [*checked.problems, *repaired.problems, *again.scores(study), *again.baselines(study, dataset)]
    except ChimeraError as error:
        return Verification([*problems, f"the run does not give this report: {error}"])
    commit, current = evaluated.written.get("commit"), describe_code()["commit"]
    if problems and commit != current:
        problems.append(f"commit {commit} made the report, and this is {current}: verify it with that one")
    rollouts, replayed = checked.rollouts + repaired.rollouts, checked.replayed + repaired.replayed
    return Verification(problems, rollouts=rollouts, replayed=replayed)


def unlike(report: Mapping[str, Any], study: Study, folder: Path) -> list[str]:
    """How a report in `folder` differs from the one that its study gives, one sentence each."""
    problems = [
        f"{place} is {_brief(stated)} in the report, but {_brief(computed)} from the run"
        for place, stated, computed in again.differences(report, build(study, (), folder))
        if not f"{place}.".startswith(NOT_COMPARED)
    ]
    return problems or _unlike_sheets(report, folder)


def find_run(report_file: Path) -> Run | None:
    """The run directory that a report lies in, else the one that it names relative to its folder; None without any."""
    folder = report_file_in(report_file).parent.resolve()
    for above in (folder, *folder.parents):
        if (above / "config.yaml").is_file() and (above / LEDGER).is_file():
            return Run(above)
    about = read_report(report_file).get("run")
    path = about.get("path") if isinstance(about, Mapping) else None
    if not isinstance(path, str):
        return None
    named = (folder / path).resolve()
    return Run(named) if (named / "config.yaml").is_file() else None


def _unlike_sheets(report: Mapping[str, Any], folder: Path) -> list[str]:
    """The report's spreadsheets that do not hold the numbers of the (true) `report`."""
    return [
        f"{folder / name} does not show what {DATA} holds: it was changed, or another version of Chimera made it"
        for name, text in sheets(report).items()
        if (folder / name).is_file() and (folder / name).read_bytes() != text.encode(errors="backslashreplace")
    ]


def _brief(value: Any) -> str:
    words = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}..."
