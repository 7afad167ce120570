"""`python -m chimera.study`: train and evaluate with several seeds, and report over all of them."""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.config.arguments import add_config_arguments, config_from
from chimera.config.differences import differences
from chimera.core.cli import count, parse_arguments, run_command
from chimera.core.errors import ConfigError, RunError
from chimera.core.files import replace_file
from chimera.run.hashes import hash_artifact

if TYPE_CHECKING:
    from chimera.config.tree import Config

STATE, DATA, TEXT = "study.jsonl", "study.json", "study.md"
FREE_S = 30.0
"""Seconds to wait for a run whose study was killed; it stops within this time."""

EPILOG = """
Each run is a whole `python -m chimera.train` and a `python -m chimera.eval`, one after another: by default about six
minutes and five on two cores, so that --seeds 5 --data-seeds 2 takes almost two hours. Give the same command again
after Ctrl-C, kill -9 or a failure: what is finished is not made again, what was interrupted goes on. More --seeds or
--data-seeds add runs to a study. One training seed can give no interval over seeds.

Everything is in runs/NAME/: the runs, study.json, study.md, study.jsonl (what was started and finished), and logs/ with
the runs' output. Training seeds count from seed=, data seeds from data.seed=.
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One run of a study: its name, training seed and data seed."""

    name: str
    seed: int
    data_seed: int


@dataclass(frozen=True, slots=True)
class StudyJob:
    """The work of a study, from the command line.

    Attributes:
        runs: Its runs, ordered by data seed.
        arguments: Command-line arguments of each run: its configuration file and settings.
        stages: The stages to evaluate; None for all.
        keys: Names of the environment variables with API keys that the configuration names.
        trust: Options that trust the modules and programs that the configuration names.
    """

    folder: Path
    runs: tuple[Wanted, ...]
    phases: tuple[str, ...]
    arguments: tuple[str, ...]
    stages: str | None
    keys: tuple[str, ...]
    trust: tuple[str, ...]


def main(argv: list[str]) -> None:
    arguments = parse_arguments(_parser(), argv)
    from training.configuration import load_config

    config = config_from(arguments, load=load_config)
    job = _job(arguments, config)
    _begin(job, config)
    for number, run in enumerate(job.runs, start=1):
        _make(job, run, f"{number}/{len(job.runs)}")
    _report(job)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chimera.study",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=count, default=3, metavar="N", help="training seeds (default 3)")
    parser.add_argument(
        "--data-seeds",
        type=count,
        default=1,
        metavar="N",
        help="sets of generated tasks, each with all training seeds (default 1)",
    )
    parser.add_argument("--name", default="study", help="the study's name (default study)")
    parser.add_argument("--phases", metavar="A,B", help="the phases of each run, as of chimera.train")
    parser.add_argument(
        "--stages", metavar="A,B", help="the stages that are evaluated, as of chimera.eval; all without it"
    )
    add_config_arguments(parser)
    return parser


def _job(arguments: argparse.Namespace, config: "Config") -> StudyJob:
    """The job that the command line describes."""
    from chimera.config.trust import named_code
    from chimera.run.directory import check_name
    from training.phases import choose_names

    if arguments.data_seeds > 1 and config.data.path != "generated":
        raise ConfigError(
            f"--data-seeds {arguments.data_seeds} needs generated tasks: splits of data.path={config.data.path} share "
            "questions, so that two would count some of them twice; use --data-seeds 1"
        )
    folder = config.runs_dir / check_name(arguments.name)
    if (folder / "config.yaml").exists():
        raise RunError(f"{folder} is a run: give the study another --name")
    seeds = range(config.seed, config.seed + arguments.seeds)
    data_seeds = range(config.data.seed, config.data.seed + arguments.data_seeds)
    runs = tuple(Wanted(f"data{data}-seed{seed}", seed, data) for data in data_seeds for seed in seeds)
    overrides = [
        text for text in arguments.overrides if text.partition("=")[0].strip() not in ("seed", "data.seed", "runs_dir")
    ]
    file = ["--config", str(arguments.config)] if arguments.config else []
    names = choose_names(arguments.phases, config)
    trust = tuple(f"--trust={code.name}" for code in dict.fromkeys(named_code(config, "training")))
    return StudyJob(folder, runs, names, (*file, *overrides), arguments.stages, _keys(config), trust)


def _keys(config: "Config") -> tuple[str, ...]:
    """The environment variables with the keys that a run's models and tools need."""
    from chimera.serving.providers import CREDENTIALS

    providers = dict.fromkeys(model.provider or "" for model in config.models.values())
    return (*config.secret_names(), *(name for provider in providers for name in CREDENTIALS.get(provider, ())))


def _begin(job: StudyJob, config: "Config") -> None:
    """Make the study's folder, or check that an existing study has the same settings."""
    from chimera.config.loader import effective

    settings = effective(config)
    del settings["seed"], settings["runs_dir"], settings["data"]["seed"]
    identity = {"phases": list(job.phases), **json.loads(json.dumps(settings, default=str))}
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{job.folder} cannot be made ({error.strerror}): set runs_dir to another folder") from error
    begun = next((event["settings"] for event in _events(job) if event["event"] == "created"), None)
    if begun is None:
        _note(job, "created", settings=identity)
    elif changed := differences(begun, identity):
        key, (old, new) = next(iter(changed.items()))
        raise RunError(
            f"study {job.folder} was made with {key}={old}, not {new}: keep it, or give another --name, because runs "
            "with different settings cannot be pooled"
        )
    print(f"study {job.folder}: {len(job.runs)} runs of {', '.join(job.phases)}", flush=True)


def _make(job: StudyJob, member: Wanted, place: str) -> None:
    """Train and evaluate one run; skips what is finished."""
    from chimera.run.directory import Run
    from chimera.run.inputs import check_inputs

    report = job.folder / member.name / "report" / "report.json"
    if not _trained(job, member):
        _child(job, member, place, "training", "chimera.train", _training_arguments(job, member))
        if not _trained(job, member):
            raise RunError(
                f"training of run {member.name} ended, but its ledger lacks phases of {', '.join(job.phases)}"
            )
    run = Run.open(member.name, job.folder)
    check_inputs(run.events(), run.config)
    if _evaluated(job, member, report):
        print(f"{place} {member.name}: finished before", flush=True)
        return
    stages = [] if job.stages is None else ["--stages", job.stages]
    _child(
        job,
        member,
        place,
        "evaluation",
        "chimera.eval",
        ["--run", member.name, *stages, f"runs_dir={job.folder}", *job.trust],
    )
    _note(job, "evaluated", run=member.name, stages=job.stages, report=hash_artifact(report))


def _training_arguments(job: StudyJob, member: Wanted) -> list[str]:
    """Arguments that start a new run, or resume an interrupted one."""
    run = job.folder / member.name
    resume = (run / "config.yaml").is_file()
    if run.exists() and not resume:
        shutil.rmtree(run)  # It was killed before its configuration was written, so it is empty.
    rest = (
        ["--resume", *job.trust] if resume else [*job.arguments, f"seed={member.seed}", f"data.seed={member.data_seed}"]
    )
    return ["--name", member.name, "--phases", ",".join(job.phases), *rest, f"runs_dir={job.folder}"]


def _child(job: StudyJob, member: Wanted, place: str, what: str, module: str, arguments: Sequence[str]) -> None:
    from chimera.processes.study_children import run_child
    from chimera.run.directory import Run

    log = job.folder / "logs" / f"{member.name}.{what}.log"
    _wait_until_free(job, member)
    print(f"{place} {member.name}: {what} ... (tail -f {log})", flush=True)
    _note(job, f"{what} started", run=member.name)
    began = time.monotonic()
    begun = (job.folder / member.name / "config.yaml").is_file()
    keys = job.keys + (_keys(Run.open(member.name, job.folder).config) if begun else ())
    run_child(module, arguments, log, what=f"{what} of run {member.name}", keys=keys)
    seconds = time.monotonic() - began
    _note(job, f"{what} finished", run=member.name, seconds=round(seconds, 1))
    print(f"{place} {member.name}: {what} took {seconds / 60:.1f} min", flush=True)


def _wait_until_free(job: StudyJob, member: Wanted) -> None:
    """Wait until processes of a killed study no longer write the run."""
    from chimera.run.directory import Run

    if not (job.folder / member.name / "config.yaml").is_file():
        return
    limit = time.monotonic() + FREE_S
    while True:
        try:
            Run.open(member.name, job.folder).own().close()
            return
        except RunError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.5)


def _trained(job: StudyJob, member: Wanted) -> bool:
    """True if the run has finished every phase."""
    from chimera.run.directory import Run

    events = Run(job.folder / member.name).events()
    return {event["phase"] for event in events if event["event"] == "phase_finished"} >= set(job.phases)


def _evaluated(job: StudyJob, member: Wanted, report: Path) -> bool:
    """True if the report of the same stages exists and is unchanged."""
    evaluations = [event for event in _events(job) if event["event"] == "evaluated" and event["run"] == member.name]
    if not evaluations or not report.is_file():
        return False
    return evaluations[-1]["stages"] == job.stages and evaluations[-1]["report"] == hash_artifact(report)


def _report(job: StudyJob) -> None:
    """Write study.json and study.md, and show the tables."""
    from rich.console import Console

    from chimera.run.environment import describe_code
    from chimera.show import markdown, terminal
    from evaluation.seeds.compare import build
    from evaluation.seeds.runs import SeedRun
    from evaluation.seeds.study_text import about, brief, document, notes

    read = [
        SeedRun.read(member.name, member.seed, member.data_seed, job.folder / member.name / "report" / "report.json")
        for member in job.runs
    ]
    study = {**build(read), "written": describe_code()}
    replace_file(job.folder / DATA, json.dumps(study, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    replace_file(job.folder / TEXT, markdown.render(document(study)))
    console = Console(highlight=False)
    terminal.show(console, brief(study))
    for line in (about(study), *notes(study), f"study: {job.folder / TEXT} (also {DATA}; each run has a report/)"):
        console.print(line, markup=False, soft_wrap=True)


def _events(job: StudyJob) -> list[dict[str, Any]]:
    from chimera.run.jsonl import read_lines

    return list(read_lines(job.folder / STATE))


def _note(job: StudyJob, event: str, **fields: Any) -> None:
    from chimera.run.environment import now
    from chimera.run.jsonl import append_line

    append_line(job.folder / STATE, {"time": now(), "event": event, **fields}, sync=True)


if __name__ == "__main__":
    run_command(main)
