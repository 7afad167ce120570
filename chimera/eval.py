"""`python -m chimera.eval`: evaluate a run's stages on tasks that it has not learned from, and write a report."""

import argparse
import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.cli import add_trust_argument, count, parse_arguments, run_command
from chimera.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from chimera.config.tree import Config
    from chimera.data.tasks import Dataset
    from chimera.run.directory import Run
    from chimera.run.policies import Policy
    from chimera.serving.process import ModelServers
    from evaluation.conduct.conductor import Again, Conductor
    from evaluation.records.rollouts import RolloutInput
    from evaluation.records.study import Plan, Study
    from evaluation.verify.asked import AskedEvaluation
    from training.learning.fine_tuning import TuneSettings
    from training.watch.view import View

READS = (
    *("evaluation", "serving", "telemetry", "data", "runs_dir"),
    *(f"rollouts.{name}" for name in ("concurrency", "timeout_s", "retries", "pause_s")),
)
"""Settings that may differ from the run's. Society, models and rewards may not: they are evaluated."""

PROBLEMS_SHOWN = 50
"""Most problems that `--verify` prints. A report of other tasks or settings has thousands."""

EPILOG = """
what is recorded counts: rollouts of the gate during training and of earlier evaluations are not made again.
--resume makes what failed again (rollouts, a single agent's answers, judges' scores), --fresh everything. Settings:
evaluation.*, serving.*, rollouts.concurrency, .timeout_s, .retries, .pause_s, telemetry.*, data.*
"""


def main(argv: list[str]) -> int | None:
    arguments = parse_arguments(_parser(), argv)
    if arguments.verify is not None:
        return _verify(arguments)
    print("loading configuration, data and libraries ...", flush=True)
    run, config = _open(arguments)

    from chimera.config.trust import check_trusted
    from chimera.run.inputs import check_inputs
    from evaluation.measures.families import check as check_families
    from evaluation.verify.asked import AskedEvaluation

    request = AskedEvaluation.of(arguments.split, arguments.limit, arguments.seeds, arguments.stages, config.data)
    check_trusted(config, run.config_file, "answers", arguments.trust)
    check_inputs(run.events(), run.config)  # Also with other data: the run's own tell which tasks it has seen.
    check_families(config)
    plan, dataset = request.plan(run, config.evaluation)
    lines = _lines(run, arguments.wandb)
    out = arguments.out or run.path / "report"
    again = "everything" if arguments.fresh else "failed" if arguments.resume else "nothing"

    from rich.console import Console

    from chimera.run.seals import seal
    from chimera.show.next import after_evaluation, print_next
    from evaluation.conduct.recorded_study import load_study
    from training.watch.view import make_view

    console = Console(highlight=False)
    with (
        make_view(console, config.rollouts.concurrency) as view,
        view.doing("evaluating"),
        run.own(evaluates=True) as owned,
    ):
        try:
            _fill(owned, plan, config, dataset, again, console, view)
        finally:
            with view.doing("recording what was made"):
                for name in seal(owned):
                    view.warn(f"{name} was changed after the run had written it")
        with view.doing("reading the rollouts"):
            study = load_study(owned, plan, config.evaluation)
        report = _write(study, request, lines, out, view)
        seal(owned)
    _show(report, study, out, console)
    _print_head(run)
    print_next(after_evaluation(run.name, out, run.path.parent))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chimera.eval", description=__doc__, epilog=EPILOG)
    parser.add_argument("--run", metavar="NAME", help="the run; the latest without it")
    parser.add_argument(
        "--stages",
        metavar="A,B",
        help="such as base,final; base and after each phase without it; all: also each phase's policy alone (only-ppo) "
        "and left out (final-without-ppo), and each slot back at base (final-with-junior-at-base); "
        "evaluation.contributions adds those that it needs",
    )
    parser.add_argument(
        "--split",
        choices=("test", "val"),
        default="test",
        help="test tasks, which no decision of training used (default), or the gate's validation tasks",
    )
    parser.add_argument(
        "--limit",
        type=count,
        metavar="N",
        help="tasks; all of test without it, of val as many as the gate had",
    )
    parser.add_argument("--seeds", type=count, default=1, metavar="N", help="rollouts of each task in each stage")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes (default: the run's report/)")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="make again what failed or has no score")
    again.add_argument("--fresh", action="store_true", help="make all rollouts again, and what is made from them")
    parser.add_argument(
        "--judge",
        metavar="JUDGE",
        help="the second judge: checklist, none, or MODEL@URL of an endpoint",
    )
    parser.add_argument(
        "--wandb", metavar="PATH", help="draw learning curves from a W&B run (entity/project/run), not metrics.jsonl"
    )
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="REPORT",
        help="recompute a report (its folder or report.json) from the run, and check the run's files; nothing is run",
    )
    parser.add_argument(
        "--expect",
        metavar="HASH",
        help="with --verify: a hash of the run's ledger that was published; a ledger without it was rebuilt",
    )
    add_trust_argument(parser)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, such as rollouts.concurrency=4")
    return parser


def _open(arguments: argparse.Namespace) -> "tuple[Run, Config]":
    """The run and its configuration, with the overrides of the command line."""
    from chimera.config.loader import within
    from chimera.config.tree import load_config
    from chimera.run.directory import Run

    overrides = [*_judge_settings(arguments.judge), *arguments.overrides]
    for override in overrides:
        key = override.partition("=")[0].strip()
        if within(key, READS) is None:
            raise ConfigError(
                f"{key} cannot be changed here, because it is part of what is evaluated: only {', '.join(READS)} can"
            )
    folders = [override for override in overrides if override.partition("=")[0].strip() == "runs_dir"]
    runs_dir = load_config(None, folders, own_question=True).runs_dir
    run = Run.open(arguments.run, runs_dir) if arguments.run else Run.latest(runs_dir)
    return run, load_config(run.config_file, overrides, recorded=True)


def _judge_settings(judge: str | None) -> list[str]:
    if judge is None:
        return []
    if judge in ("checklist", "none"):
        return [f"evaluation.auditor.kind={judge}"]
    if match := re.fullmatch(r"(.+)@(https?://.+)", judge):
        # Without the key of the run's own second judge, which would be sent to another address.
        settings = {"kind": "endpoint", "model": match[1], "base_url": match[2], "api_key_env": None}
        return [f"evaluation.auditor={json.dumps(settings, ensure_ascii=False)}"]
    raise ConfigError(
        f"--judge={judge} is neither checklist, none nor MODEL@URL, such as qwen3@http://127.0.0.1:11434/v1"
    )


def _fill(
    run: "Run", plan: "Plan", config: "Config", dataset: "Dataset", again: "Again", console: "Console", view: "View"
) -> None:
    """Make the rollouts, baseline answers and scores that are missing."""
    from agents.tools.toolbox import build_toolbox
    from chimera.core.machine import allow_files
    from chimera.core.secrets import load_secrets
    from chimera.run.policies import learned_slots
    from chimera.serving.process import check_models, serve
    from evaluation.baselines.single_agent import ROLE
    from evaluation.conduct.conductor import Conductor
    from evaluation.scores.auditor import Auditor
    from evaluation.telemetry.sender import telemetry

    secrets = load_secrets(config.secret_names())
    learning = learned_slots(run.events()) | ({config.slot(ROLE.name)} if config.evaluation.labels else set())
    check_models(config.used(), secrets, learning=learning)
    allow_files(config.rollouts.concurrency)
    settings = _label_settings(run, config) if config.evaluation.labels else None
    conductor = Conductor(
        run=run,
        plan=plan,
        config=config,
        dataset=dataset,
        toolbox=build_toolbox(
            config.tools, dataset.documents(), secrets, roles=config.roles, conclusions=dataset.conclusions()
        ),
        auditor=Auditor.configured(config, secrets),
        progress=view,
        again=again,
    )
    todo = {stage.name: conductor.missing(stage) for stage in plan.stages}
    _announce(run, plan, sum(map(len, todo.values())), console)
    view.plan([stage.name for stage in plan.stages], costs=conductor.costs(todo))
    with ExitStack() as stack:
        stack.enter_context(telemetry(run, config.telemetry, secrets, view.note))
        servers = None
        if conductor.needs_models(todo):
            log = run.path / "logs" / "eval-models.log"
            stack.enter_context(view.doing("stopping model servers"))
            with view.doing("starting model servers"):
                servers = stack.enter_context(
                    serve(
                        config.used(),
                        config.serving,
                        secrets,
                        log_file=log,
                        learning=learning,
                        on_warning=view.warn,
                    )
                )
        try:
            asyncio.run(_make(conductor, servers, todo, settings))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _make(
    conductor: "Conductor",
    servers: "ModelServers | None",
    todo: "dict[str, list[RolloutInput]]",
    settings: "TuneSettings | None",
) -> None:
    from training.interrupt import interruptible

    task = asyncio.current_task()
    assert task is not None
    with interruptible(task):
        try:
            with conductor.progress.doing("answers of the baselines without a model"):
                await asyncio.to_thread(conductor.baselines)
            if conductor.labels_left():
                assert settings is not None
                conductor = replace(conductor, labels=await _learn_labels(conductor, settings))
            if servers is not None:
                await conductor.run_stages(servers, todo)
            await conductor.audit()
        finally:
            if conductor.auditor is not None:
                await conductor.auditor.aclose()


def _label_settings(run: "Run", config: "Config") -> "TuneSettings":
    """How the baseline of labels alone is fine-tuned: as the run's first phase that fine-tunes.

    Raises:
        ConfigError: No phase fine-tunes, or the juniors' weights are not here.
    """
    from evaluation.baselines.single_agent import ROLE
    from training.configuration import load_config
    from training.learning.fine_tuning import TuneSettings

    slot = config.slot(ROLE.name)
    if not config.models[slot].has_weights:
        raise ConfigError(
            f"evaluation.labels=true fine-tunes models.{slot}, and kind {config.models[slot].kind} has no "
            "weights here: set it to false"
        )
    phases = load_config(run.config_file, recorded=True).pipeline
    for settings in phases.values():
        if isinstance(settings, TuneSettings):
            return settings
    raise ConfigError(
        f"evaluation.labels=true takes learning rate and epochs from a phase that fine-tunes, and none of "
        f"{', '.join(phases)} does: set it to false"
    )


async def _learn_labels(conductor: "Conductor", settings: "TuneSettings") -> "Policy":
    from chimera.serving.embedded.checkpoint import locate
    from evaluation.baselines.single_agent import ROLE
    from training.learning.examples import FirstWeights
    from training.tune.labels import learn_labels

    config = conductor.config
    slot = config.slot(ROLE.name)
    first = FirstWeights(locate(config.models[slot].path), conductor.plan.stages[0].versions[slot])
    tasks = conductor.dataset.train
    return await learn_labels(conductor.run, slot, first, settings, tasks, conductor.progress, config.seed)


def _announce(run: "Run", plan: "Plan", missing: int, console: "Console") -> None:
    total = len(plan.stages) * len(plan.tasks) * plan.repeats
    console.print(
        f"run {run.path}: stages {', '.join(stage.name for stage in plan.stages)} on {len(plan.tasks)} tasks of "
        f"{plan.data} ({plan.split}); {total} rollouts: {total - missing} recorded, {missing} to make",
        markup=False,
        soft_wrap=True,
    )


def _write(
    study: "Study", request: "AskedEvaluation", lines: "list[dict[str, Any]]", out: Path, view: "View"
) -> "dict[str, Any]":
    """Write the report, and record its arguments and its files' hashes in the ledger."""
    from evaluation.report.files import publish, publish_predictions
    from evaluation.verify.asked import Evaluated, folder_in, hashes_of

    with view.doing("computing intervals, tests and plots, and writing the report"):
        report = publish(study, lines, out, view)
        try:
            if report["predictions"] is not None:
                publish_predictions(study, out)
        finally:
            run, settings = study.run, study.config.evaluation
            Evaluated(request, settings, report["written"], run.name, folder_in(run, out), hashes_of(out)).record(run)
    return report


def _show(report: "Mapping[str, Any]", study: "Study", out: Path, console: "Console") -> None:
    from chimera.show import terminal
    from chimera.show.blocks import Items
    from evaluation.measures.official import missing_sentence
    from evaluation.report.content.head import brief
    from evaluation.report.files import PREDICTIONS
    from evaluation.report.notes import tool_warnings

    terminal.show(console, list(brief(report)))
    terminal.show(
        console, [Items([*report["cautions"], *tool_warnings(study), *report["judges"]["warnings"]], warning=True)]
    )
    files = "report.md, report.json, metrics.csv, rollouts.csv, plots/, conversations in rollouts/"
    console.print(f"report: {out / 'index.html'} (also {files})", soft_wrap=True, markup=False)
    if (predicted := report["predictions"]) is not None:
        console.print(f"predictions for PubMedQA's own script: {out / PREDICTIONS}", soft_wrap=True, markup=False)
        if predicted["missing"]:
            console.print(f"warning: {missing_sentence(predicted)}", soft_wrap=True, markup=False)


def _lines(run: "Run", wandb: str | None) -> "list[dict[str, Any]]":
    """The metrics of training: from the run, or from W&B."""
    if wandb is None:
        return list(run.metrics())
    from chimera.core.secrets import load_secrets
    from training.watch.wandb.history import lines_of

    return lines_of(wandb, load_secrets())


def _print_head(run: "Run") -> None:
    from chimera.run.chain import head
    from chimera.run.directory import LEDGER

    print(f"ledger: last hash {head(run.path / LEDGER)} (publish it, and --verify --expect tells a rebuilt history)")


def _verify(arguments: argparse.Namespace) -> int:
    """Check a report against its run; returns 1 if there are problems."""
    from evaluation.verify.check import find_run, verify

    run = _open(arguments)[0] if arguments.run else find_run(arguments.verify)
    check = verify(arguments.verify, run, expect=arguments.expect)
    problems = check.problems
    for problem in problems[:PROBLEMS_SHOWN]:
        print(f"refused: {problem}")
    if len(problems) > PROBLEMS_SHOWN:
        print(f"... and {len(problems) - PROBLEMS_SHOWN} more")
    if check.entries:
        print(f"ledger: {check.entries} entries, last hash {check.head}")
    if problems:
        print(f"{arguments.verify}: {len(problems)} problem{'s' * (len(problems) > 1)}, so do not trust it")
        return 1
    print(f"{arguments.verify}: every number was computed again from {run.path if run else '-'} and is the same")
    print(f"{check.replayed} of {check.rollouts} rollouts were replayed from their traces and came to the same")
    return 0


if __name__ == "__main__":
    run_command(main)
