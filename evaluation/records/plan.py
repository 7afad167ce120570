"""Chooses what to evaluate: a run's stages, from its ledger, and tasks that no policy has learned from."""

import difflib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from chimera.config.sections.evaluation import Contributions
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.core.types import ResearchTask
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.run.policies import ROLLED_BACK, WENT_LIVE, Policy, version_key
from evaluation.records import coalitions
from evaluation.records.coalitions import Coalition, Learned
from evaluation.records.study import BASE, Kind, Split, Stage

FINAL = "final"
"""Another name for the last stage of a run."""
ALL = "all"
"""Name for all stages around the sequence: each policy alone, and each left out."""
ALONE, WITHOUT = "only-", "final-without-"
AT_BASE = "final-with-{}-at-base"
"""How the names of stages that were never live begin."""
MOST_PHASES = 5
"""Most phases whose coalitions are all evaluated: 32 stages."""


def stages_of(run: Run, *, every_coalition: bool = False) -> list[Stage]:
    """The stages of a run, each society once: of names for the same policies the first counts.

    First those of the sequence: base, and one after each phase whose policy went live. Then each such policy alone on
    the base, the last stage without each of them, and the last stage with each trained place back at base. Then, if
    asked for, all other coalitions of these phases (see `evaluation.records.coalitions`).

    Raises:
        RunError: The run has not started a phase, so its models are unknown.
    """
    began = next((event["policy_versions"] for event in run.events() if event["event"] == "phase_started"), None)
    if began is None:
        raise RunError(f"run {run.name!r} has started no phase, so there is nothing to evaluate")
    learned = learned_in(run)
    by_policies: dict[tuple[Policy, ...], Stage] = {}
    for name, title, kind, chosen in _named(learned, every_coalition=every_coalition):
        policies = coalitions.policies_of(learned, chosen)
        versions = {**began, **{policy.slot: policy.version for policy in policies}}
        by_policies.setdefault(policies, Stage(name, title, kind, policies, versions))
    return list(by_policies.values())


def _named(learned: Learned, *, every_coalition: bool) -> Iterator[tuple[str, str, Kind, Collection[str]]]:
    """Name, title, kind and phases of each stage; several may have the same policies."""
    phases = list(learned)
    yield BASE, "base", "sequence", ()
    for number, phase in enumerate(phases, start=1):
        yield phase, f"after {phase}", "sequence", phases[:number]
    for phase in phases:
        yield f"{ALONE}{phase}", f"{phase} alone", "alone", [phase]
    for phase in phases:
        yield f"{WITHOUT}{phase}", f"final without {phase}", "left out", [other for other in phases if other != phase]
    for place in coalitions.places(learned):
        name = version_key(place)
        yield AT_BASE.format(name), f"final with {name} at base", "at base", coalitions.at_base(learned, place)
    for chosen in coalitions.every(learned) if every_coalition else ():
        some = [phase for phase in phases if phase in chosen]
        yield f"{ALONE}{'-'.join(some)}", f"{' and '.join(some)} alone", "coalition", some


def learned_in(run: Run) -> dict[str, Policy]:
    """The policy of each phase whose policy went live, in the order of the run."""
    return {str(event["phase"]): Policy.load(event["policy"]) for event in run.events() if event["event"] == WENT_LIVE}


def rolled_back(run: Run) -> list[str]:
    """The phases whose policy the gate refused."""
    return [str(event["phase"]) for event in run.events() if event["event"] == ROLLED_BACK]


def choose_stages(
    run: Run,
    names: str | None,
    contributions: Contributions = "none",
    temperature: float | None = None,
    faults: float = 0.0,
) -> tuple[Stage, ...]:
    """The stages to evaluate, in the order of `stages_of`; then the last of the sequence with failing tools, if asked.

    Args:
        names: Names separated by commas; None: the stages of the sequence. "all" names the stages around it too. The
            last of the sequence may be called "final". Then it has this name in the report, so that reports of
            different runs can be compared.
        contributions: `evaluation.contributions`: adds the stages that it needs.
        temperature: `evaluation.temperature`.
        faults: `evaluation.faults`.

    Raises:
        ConfigError: A name is unknown or was rolled back, the list is empty, or there are too many phases for all their
            coalitions.
    """
    needed = _needed(run, contributions)
    stages = stages_of(run, every_coalition=contributions == "shapley")
    requested = [] if names is None else [name.strip() for name in names.split(",") if name.strip()]
    same = _same(learned_in(run), stages)
    last = [stage.name for stage in stages if stage.kind == "sequence"][-1]
    stage_names = _asked(run, names, [same.get(name, name) for name in requested], stages, last)
    chosen = [stage for stage in stages if stage.name in stage_names or stage.policies in needed]
    if FINAL in requested and last not in requested:
        chosen = [
            replace(stage, name=FINAL, title=f"final ({stage.title})") if stage.name == last else stage
            for stage in chosen
        ]
    if faults:
        sequence = [stage for stage in chosen if stage.kind == "sequence"]
        end = (sequence if len(sequence) > 1 else chosen)[-1]  # As `Plan.final`.
        share = f"{100 * faults:g}"
        title = f"{end.title}, {share} % of tool calls failing"
        chosen.append(replace(end, name=f"faults-{share}", own_name="", title=title, kind="faults", faults=faults))
    return tuple(replace(stage, temperature=temperature) for stage in chosen)


def _needed(run: Run, contributions: Contributions) -> list[tuple[Policy, ...]]:
    """The policies of each stage that `contributions` needs."""
    learned = learned_in(run)
    if contributions == "shapley" and len(learned) > MOST_PHASES:
        raise ConfigError(
            f"evaluation.contributions=shapley: run {run.name} kept {len(learned)} phases ({', '.join(learned)}), "
            f"whose combinations are up to {2 ** len(learned)} stages of rollouts; {MOST_PHASES} phases are possible "
            "at most: take evaluation.contributions=around"
        )
    back = [frozenset(learned), *(coalitions.at_base(learned, place) for place in coalitions.places(learned))]
    chosen: Mapping[Contributions, Sequence[Coalition]] = {
        "none": [],
        "roles": back,
        "around": [*coalitions.around(learned), *back],
        "shapley": coalitions.every(learned) if contributions == "shapley" else [],
    }
    return [coalitions.policies_of(learned, phases) for phases in chosen[contributions]]


def _same(learned: Learned, stages: Sequence[Stage]) -> dict[str, str]:
    """The stage that each name stands for, of names of one society that of the stage."""
    every = any(stage.kind == "coalition" for stage in stages)
    named = {stage.policies: stage.name for stage in stages}
    return {
        name: named[coalitions.policies_of(learned, chosen)]
        for name, _, _, chosen in _named(learned, every_coalition=every)
    }


def _asked(run: Run, names: str | None, requested: Sequence[str], stages: Sequence[Stage], last: str) -> set[str]:
    """Names of the stages that `names`, which was split into `requested`, stands for. `last`: the name of "final"."""
    if names is None:
        return {stage.name for stage in stages if stage.kind == "sequence"}
    if requested == [ALL]:
        return {stage.name for stage in stages if stage.kind != "coalition"}
    selected = [last if name == FINAL else name for name in requested]
    stage_names = [stage.name for stage in stages]
    valid = f"the stages of run {run.name} are {', '.join(stage_names)} (final is {last}, {ALL} all of them)"
    for name in selected:
        if name in rolled_back(run) and name not in stage_names:
            raise ConfigError(f"--stages={names}: what {name} learned was rolled back, so it is no stage: {valid}")
        if name not in stage_names:
            near = difflib.get_close_matches(name, stage_names, n=1)
            raise ConfigError(f"there is no stage {name!r}{f', did you mean {near[0]!r}?' if near else ''}: {valid}")
    if not selected:
        raise ConfigError(f"--stages names none: {valid}")
    return set(selected)


def gate_tasks(dataset: Dataset, config: Config) -> list[ResearchTask]:
    """The held-out tasks of the gate. They are equal for all stages of runs with the same seed."""
    return random.Random(f"{config.seed}/gate").sample(dataset.validation, config.gate.tasks)


def choose_tasks(dataset: Dataset, split: Split, config: Config, limit: int | None) -> list[ResearchTask]:
    """The tasks to evaluate on: first the gate's, so that its recorded rollouts count, then others at random.

    Args:
        split: "test": tasks that no decision used, by default all. "val": by default the gate's tasks.
        limit: Number of tasks; None: the default.

    Raises:
        ConfigError: There are too few tasks.
    """
    if split == "test":
        first, others = [], list(dataset.test)
    else:
        first = gate_tasks(dataset, config) if config.gate.tasks <= len(dataset.validation) else []
        chosen = {task.id for task in first}
        others = [task for task in dataset.validation if task.id not in chosen]
    random.Random(f"{config.seed}/{split}").shuffle(others)
    tasks = first + others
    count = limit if limit is not None else len(first) or len(tasks)
    if not 0 < count <= len(tasks):
        raise ConfigError(f"--limit {limit}: there are {len(tasks)} tasks in the {split} split")
    return tasks[:count]


def check_unseen(tasks: Sequence[ResearchTask], trained: Dataset, split: Split) -> None:
    """Check that the run has not learned from `tasks`, and that no decision used them if they are test tasks.

    Args:
        tasks: The tasks to evaluate on.
        trained: The run's own data.

    Raises:
        ConfigError: Some tasks were used in training. The message has their number.
    """
    used = list(trained.train) + (list(trained.validation) if split == "test" else [])
    ids, contents = {task.id for task in used}, {_content(task) for task in used}
    leaked = [task for task in tasks if task.id in ids or _content(task) in contents]
    if leaked:
        raise ConfigError(
            f"{len(leaked)} of {len(tasks)} {split} tasks, such as {leaked[0].id}, were used in training this run, so "
            "a result on them would mean nothing: keep the run's own data and split, or take other data"
        )


def _content(task: ResearchTask) -> tuple[str, ...]:
    return (task.goal, *(section.text for section in task.context))
