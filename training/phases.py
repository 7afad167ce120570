"""Makes the phases of a run from the configuration, and checks them before anything starts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from agents.roles import ROLES
from agents.schemas import Selection
from chimera.config.pipeline import PhaseSettings
from chimera.config.roles import expand
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.data.tasks import Dataset
from evaluation.records.study import BASE, GATE
from training.configuration import find_algorithm
from training.learning.base import Algorithm, PhasePlan

ANSWER = 0.1
"""Cost of one more answer to a recorded prompt, with what is learned from it."""
EXAMPLE = 0.16
"""Cost of one conversation in one epoch of fine-tuning."""
START = 15.0
"""Cost of loading what trains."""
UNKNOWN = 100.0
"""Cost of a phase of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A checked phase."""

    plan: PhasePlan
    settings: PhaseSettings
    algorithm: Algorithm[PhaseSettings]

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def learns(self) -> bool:
        return self.algorithm.part is not None


def choose_names(text: str | None, config: Config) -> tuple[str, ...]:
    """The phases that a comma-separated list names, in its order. None: all entries of `pipeline`.

    Raises:
        ConfigError: A name is unknown or repeated, or the list is empty.
    """
    entries = tuple(config.pipeline)
    valid = f"the phases are {', '.join(entries)}"
    names = entries if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in entries:
            near = get_close_matches(name, entries, n=1)
            raise ConfigError(f"there is no phase {name!r}{f', did you mean {near[0]}?' if near else ''}: {valid}")
    if not names:
        raise ConfigError(f"no phase is named: {valid}")
    if len(set(names)) < len(names):
        raise ConfigError(f"--phases={text} names a phase twice")
    return names


def make_phases(names: Sequence[str], config: Config, dataset: Dataset) -> list[Phase]:
    """Make and check the phases with these names.

    Raises:
        ConfigError: A phase cannot run, or two phases contradict each other.
    """
    config.society.graph.check_answers(dataset.labels)
    phases: list[Phase] = []
    for name in names:
        settings = config.pipeline[name]
        roles = expand(settings.roles, f"pipeline.{name}.roles")
        slots = tuple(dict.fromkeys(config.slot(role) for role in roles))
        plan = PhasePlan(name, settings.algorithm, roles, slots)
        phase = Phase(plan, settings, find_algorithm(settings.algorithm)())
        _check_roles(phase, config)
        phases.append(phase)
    _check_weights(phases, config)
    for phase in phases:
        phase.algorithm.check(phase.plan, phase.settings, config, dataset)
    _check_owners(phases)
    _check_adapters(phases, config)
    return phases


def check_rollouts(phases: Sequence[Phase], *, recorded: bool) -> None:
    """Make sure that a phase which learns from rollouts finds some.

    Raises:
        ConfigError: The first phase needs rollouts, and there are none.
    """
    if recorded or not phases[0].settings.needs_rollouts():
        return
    name = phases[0].name
    raise ConfigError(
        f"{name} learns from rollouts, and none are made before it: put a phase that makes some first, such as "
        f"--phases gather,{name}, or continue a run that has some with --resume --name NAME"
    )


def _check_roles(phase: Phase, config: Config) -> None:
    plan, part = phase.plan, phase.algorithm.part
    setting = f"pipeline.{plan.name}.roles"
    if part in (None, "graph"):
        if plan.roles:
            raise ConfigError(f"{setting} has no effect: the algorithm {plan.algorithm} trains no role; remove it")
        return
    if not plan.roles:
        raise ConfigError(f"{setting} is empty: say which roles {plan.name} trains, such as [{next(iter(ROLES))}]")
    if unknown := [role for role in plan.roles if role not in ROLES]:
        raise ConfigError(f"{setting} names {unknown[0]}, which is no member of the society and cannot be trained")
    graph = config.society.graph
    searches = part == "choice" and graph.choose == "combine"  # Whether to search once more is a choice, too.
    if idle := [role for role in plan.roles if not (searches or graph.plays(role))]:
        raise ConfigError(
            f"{setting} names {idle[0]}, which does not work in society.graph: leave it out, or let it work"
        )
    if part == "choice":
        _check_choosers(plan, setting)
    elif part == "weights":
        _check_slots(plan, setting, config)


def _check_choosers(plan: PhasePlan, setting: str) -> None:
    choosers = [name for name, role in ROLES.items() if role.schema is Selection]
    if list(plan.roles) != choosers:
        raise ConfigError(
            f"{setting} is {', '.join(plan.roles)}: {plan.algorithm} learns from choices with known probabilities, "
            f"which only {' and '.join(choosers)} makes"
        )


def _check_slots(plan: PhasePlan, setting: str, config: Config) -> None:
    if len(plan.slots) > 1:
        of_slot = "; ".join(
            f"{slot}: {', '.join(role for role in plan.roles if config.slot(role) == slot)}" for slot in plan.slots
        )
        raise ConfigError(
            f"{setting} names roles of several slots ({of_slot}), and one phase learns the weights of one: make a "
            "phase of each, or give the roles one slot"
        )


def _check_weights(phases: Sequence[Phase], config: Config) -> None:
    """Check that there is access to the weights of all phases that train some; one sentence names all without."""
    lacking = [
        phase.plan
        for phase in phases
        if phase.algorithm.part == "weights" and not config.models[phase.plan.slot].has_weights
    ]
    if not lacking:
        return
    names = [plan.name for plan in lacking]
    slots = list(dict.fromkeys(plan.slot for plan in lacking))
    kinds = ", ".join(f"models.{slot}.kind={config.models[slot].kind}" for slot in slots)
    left = ",".join(phase.name for phase in phases if phase.name not in names)
    run = f"run what needs no weights with --phases {left}, or " if left else ""
    folders = ", ".join(f"models.{slot}.path" for slot in slots)
    raise ConfigError(
        f"{_listed(names)} cannot run, because {'it trains' if len(names) == 1 else 'they train'} weights that there "
        f"is no access to ({kinds}): {run}set {'this slot' if len(slots) == 1 else 'these slots'} to kind=embedded "
        f"or kind=vllm with a model folder in {folders}; fewshot, lessons and gepa need no weights"
    )


def _check_adapters(phases: Sequence[Phase], config: Config) -> None:
    """Check that servers which take LoRA adapters take those of all phases."""
    for plan in (phase.plan for phase in phases if phase.algorithm.part == "weights"):
        most, rank = config.models[plan.slot].adapter_rank, config.lora_ranks(plan.slot).get(plan.name, 0)
        if 0 < most < rank:
            raise ConfigError(
                f"models.{plan.slot}.adapter_rank={most}, and {plan.name}.lora_rank={rank}: its servers would refuse "
                f"such an adapter; set models.{plan.slot}.adapter_rank={rank}"
            )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _check_owners(phases: Sequence[Phase]) -> None:
    """Check that all phases train a slot through the same roles, unless they say otherwise."""
    owners: dict[str, Phase] = {}
    for phase in phases:
        if phase.algorithm.part != "weights" or phase.settings.shared:
            continue
        first = owners.setdefault(phase.plan.slot, phase)
        if first.plan.roles != phase.plan.roles:
            raise ConfigError(_shared(first.plan, phase.plan))


def _shared(first: PhasePlan, second: PhasePlan) -> str:
    named: Mapping[str, str] = {phase.name: ", ".join(phase.roles) for phase in (first, second)}
    return (
        f"pipeline.{first.name} and pipeline.{second.name} would both train the weights of the slot {first.slot}, by "
        f"the answers of different roles ({'; '.join(f'{name}: {roles}' for name, roles in named.items())}): give one "
        f"of them a slot of its own (models.NAME.like={first.slot} and roles.ROLE.model=NAME), or set "
        f"pipeline.{second.name}.shared=true if it is meant"
    )


def at_most(phases: Sequence[Phase], config: Config) -> str:
    """The most that phases spend on training tasks, and the gate on validation tasks, in words."""
    limits = [f"{phase.name} takes at most {most}" for phase in phases if (most := phase.settings.most())]
    learning = sum(phase.learns for phase in phases)
    if learning and config.gate.tasks:
        limits.append(f"the gate {learning + 1} x {config.gate.tasks} rollouts")
    return "; ".join(limits)


def expected_costs(phases: Sequence[Phase], config: Config, done: Collection[str] = ()) -> dict[str, float]:
    """The expected cost of each part of a run, in order: phases, and before and after what learns the gate's.

    Parts of phases that are `done` are left out.
    """
    costs: dict[str, float] = {}
    gathered = sum(_cost(phase.settings.model_dump(), 0, 0) for phase in phases if not phase.learns)
    begun = any(phase.learns and phase.name in done for phase in phases)
    for phase in phases:
        if phase.name in done:
            continue
        if phase.learns and config.gate.tasks and not begun:
            costs.setdefault(f"{GATE}-{BASE}", config.gate.tasks)
        costs[phase.name] = _cost(phase.settings.model_dump(), len(phase.plan.roles), gathered)
        if phase.learns and config.gate.tasks:
            costs[f"{GATE}-{phase.name}"] = config.gate.tasks
    return costs


def _cost(settings: Mapping[str, object], roles: int, gathered: float) -> float:
    """The cost of a phase, from the settings that algorithms have in common."""

    def number(name: str, otherwise: float = 1.0) -> float:
        value = settings.get(name)
        return float(value) if isinstance(value, int | float) and value else otherwise

    if "steps" in settings and settings.get("states"):
        return START + ANSWER * number("steps") * number("states") * number("n")
    if "steps" in settings and "tasks_per_step" in settings:
        return START + number("steps") * number("tasks_per_step") * number("n")
    if "epochs" in settings:
        prompts = (number("tasks", gathered)) * max(1, roles)
        drawn = ANSWER * number("answers", 0.0) if "answers" in settings else 0.0
        return START + prompts * (drawn + EXAMPLE * number("epochs"))
    budget = settings.get("budget")
    if isinstance(budget, Mapping) and budget["rollouts"]:
        return float(budget["rollouts"])
    if "tasks" in settings:
        return number("tasks", 0.0) * number("rounds") * number("repeats") * number("candidates")
    return UNKNOWN
