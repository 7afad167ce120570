"""Chooses what to evaluate: a run's stages, from its ledger, and tasks that no policy has learned from."""

import difflib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.core.types import ResearchTask
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.run.policies import ROLLED_BACK, WENT_LIVE, Place, Policy
from evaluation.records.study import BASE, Split, Stage

FINAL = "final"
"""Another name for the last stage of a run."""
ALL = "all"
"""Name for all stages, also those of one policy alone."""
ALONE = "only-"


def stages_of(run: Run) -> list[Stage]:
    """The stages of a run: base, one after each phase whose policy went live, and each such policy alone on the base.

    A policy alone is left out if a stage of the sequence has the same policies.

    Raises:
        RunError: The run has not started a phase, so its models are unknown.
    """
    events = list(run.events())
    began = next((event["policy_versions"] for event in events if event["event"] == "phase_started"), None)
    if began is None:
        raise RunError(f"run {run.name!r} has started no phase, so there is nothing to evaluate")
    stages = [Stage(BASE, "base", "sequence", (), dict(began))]
    live: dict[Place, Policy] = {}
    went = [(str(event["phase"]), Policy.load(event["policy"])) for event in events if event["event"] == WENT_LIVE]
    for phase, policy in went:
        live[policy.place] = policy
        stages.append(_stage(phase, f"after {phase}", "sequence", live, began))
    known = {stage.policies for stage in stages}
    for phase, policy in went:
        alone = _stage(f"{ALONE}{phase}", f"{phase} alone", "alone", {policy.place: policy}, began)
        if alone.policies not in known:
            stages.append(alone)
    return stages


def rolled_back(run: Run) -> list[str]:
    """The phases whose policy the gate refused."""
    return [str(event["phase"]) for event in run.events() if event["event"] == ROLLED_BACK]


def choose_stages(run: Run, names: str | None) -> tuple[Stage, ...]:
    """The stages that a comma-separated list names, in the order of the run. None: the stages of the sequence.

    "all" also names the stages of one policy alone. The last of the sequence may be called "final". Then it has this
    name in the report, so that reports of different runs can be compared.

    Raises:
        ConfigError: A name is unknown or was rolled back, or the list is empty.
    """
    stages = stages_of(run)
    if names is None:
        return tuple(stage for stage in stages if stage.kind == "sequence")
    if names.strip() == ALL:
        return tuple(stages)
    last = [stage.name for stage in stages if stage.kind == "sequence"][-1]
    given = [name.strip() for name in names.split(",") if name.strip()]
    asked = [last if name == FINAL else name for name in given]
    known = [stage.name for stage in stages]
    valid = f"the stages of run {run.name} are {', '.join(known)} (final is {last}, {ALL} all of them)"
    for name in asked:
        if name in rolled_back(run) and name not in known:
            raise ConfigError(f"--stages={names}: what {name} learned was rolled back, so it is no stage: {valid}")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"there is no stage {name!r}{f', did you mean {near[0]!r}?' if near else ''}: {valid}")
    if not asked:
        raise ConfigError(f"--stages names none: {valid}")
    chosen = [stage for stage in stages if stage.name in asked]
    if FINAL in given and last not in given:
        chosen = [replace(one, name=FINAL, title=f"final ({one.title})") if one.name == last else one for one in chosen]
    return tuple(chosen)


def gate_tasks(dataset: Dataset, config: Config) -> list[ResearchTask]:
    """The held-out tasks of the gate. They are equal for all stages of runs with the same seed."""
    return random.Random(f"{config.seed}/gate").sample(dataset.validation, config.gate.tasks)


def choose_tasks(dataset: Dataset, split: Split, config: Config, limit: int | None) -> list[ResearchTask]:
    """The tasks to evaluate on: first the gate's, so that its recorded rollouts count, then others at random.

    Args:
        dataset: The tasks.
        split: "test": tasks that no decision used, by default all. "val": by default the gate's tasks.
        config: The run's configuration.
        limit: Number of tasks; None: the default.

    Raises:
        ConfigError: There are too few tasks.
    """
    if split == "test":
        first, others = [], list(dataset.test)
    else:
        usual = config.gate.enabled and config.gate.tasks <= len(dataset.validation)
        first = gate_tasks(dataset, config) if usual else []
        chosen = {task.id for task in first}
        others = [task for task in dataset.validation if task.id not in chosen]
    random.Random(f"{config.seed}/{split}").shuffle(others)
    tasks = first + others
    wanted = limit if limit is not None else len(first) or len(tasks)
    if not 0 < wanted <= len(tasks):
        raise ConfigError(f"--limit {limit}: there are {len(tasks)} tasks in the {split} split")
    return tasks[:wanted]


def check_unseen(tasks: Sequence[ResearchTask], trained: Dataset, split: Split) -> None:
    """Check that the run has not learned from `tasks`, and that no decision used them if they are test tasks.

    Args:
        tasks: The tasks to evaluate on.
        trained: The run's own data.
        split: The split of the tasks.

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


def _stage(name: str, title: str, kind: Any, live: Mapping[Place, Policy], began: Mapping[str, str]) -> Stage:
    policies = tuple(live[place] for place in sorted(live))
    versions = dict(began)
    for policy in policies:
        versions[policy.slot] = policy.version
    return Stage(name, title, kind, policies, versions)
