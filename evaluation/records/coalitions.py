"""Coalitions of phases: the society with what some of a run's phases learned, and not the others.

Several coalitions can be the same society. A place has one live policy, that of the last phase in the coalition that
learned for it. So if two phases have learned for one place, say the weights of one slot, a coalition with the later one
is the same with and without the earlier one. The later weights were learned from the earlier ones or from rollouts made
with them, and what they took over cannot be taken out: it counts for the later phase wherever that phase is.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

from chimera.run.policies import Place, Policy

Learned = Mapping[str, Policy]
"""The policy of each phase whose policy went live, in the order of the run."""
Coalition = frozenset[str]
"""Names of phases."""


def policies_of(learned: Learned, phases: Collection[str]) -> tuple[Policy, ...]:
    """The live policies of the society with what `phases` learned: of each place the last one, sorted by place."""
    live: dict[Place, Policy] = {}
    for phase, policy in learned.items():
        if phase in phases:
            live[policy.place] = policy
    return tuple(live[place] for place in sorted(live))


def every(phases: Iterable[str]) -> list[Coalition]:
    """All coalitions of `phases`, small ones first: 2 to the power of their number."""
    names = list(phases)
    return [frozenset(chosen) for size in range(len(names) + 1) for chosen in combinations(names, size)]


def places(learned: Learned) -> list[Place]:
    """The places that the phases learned for, in the order of the run."""
    return list(dict.fromkeys(policy.place for policy in learned.values()))


def at_base(learned: Learned, place: Place) -> Coalition:
    """All phases but those that learned for `place`: the end of the run with this place as it was at the start."""
    return frozenset(phase for phase, policy in learned.items() if policy.place != place)


def around(phases: Collection[str]) -> list[Coalition]:
    """The base, each phase alone, all phases but one, and all phases."""
    whole = frozenset(phases)
    return [frozenset(), *(frozenset({phase}) for phase in phases), *(whole - {phase} for phase in phases), whole]
