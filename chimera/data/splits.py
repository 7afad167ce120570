"""Splits tasks into train, validation and test. No question and no abstract is in two splits.

Training learns from train. The gate and every search decide by validation. Reports are on test, which no decision uses.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from random import Random

from chimera.core.errors import DataError
from chimera.core.types import Label, ResearchTask, abstract_text, labels_of

Tasks = tuple[ResearchTask, ...]
MOST_LEVELS = 5


def three_way_split(
    tasks: Sequence[ResearchTask], validation_share: float, test_share: float, seed: int
) -> tuple[Tasks, Tasks, Tasks]:
    """Split into train, validation and test, each in the order of `tasks`; the shares are of all tasks.

    Raises:
        DataError: A split would be empty.
    """
    rest, test = hold_out(tasks, test_share, f"{seed}/test")
    train, validation = hold_out(rest, min(1.0, validation_share * len(tasks) / max(1, len(rest))), seed)
    if not (train and validation and test):
        together = max(map(len, related(tasks)), default=0)
        raise DataError(
            f"{len(tasks)} tasks ({together} share a question or an abstract) split into {len(train)} train / "
            f"{len(validation)} validation / {len(test)} test; all three need tasks: use more tasks or change "
            f"data.validation_share={validation_share} or data.test_share={test_share}"
        )
    return train, validation, test


def hold_out(tasks: Sequence[ResearchTask], share: float, seed: int | str) -> tuple[Tasks, Tasks]:
    """Hold out `share` of the tasks; returns the rest and the held-out tasks, both in the order of `tasks`.

    Tasks that share a question or an abstract form a group, which stays together. Each stratum (label and level) gives
    its share of groups, rounded by largest remainders, so that round(share * groups) groups are held out. The seed
    alone decides which. More than `MOST_LEVELS` levels, such as years, make no strata: a stratum of one group can only
    be held out whole or not at all, which would spoil the mix of labels.
    """
    groups, labels = related(tasks), labels_of(tasks)
    by_level = len({task.level for task in tasks}) <= MOST_LEVELS
    strata: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(groups):
        first = tasks[group[0]]
        stratum = labels.index(first.label), (first.level or 0) if by_level else 0
        strata.setdefault(stratum, []).append(number)
    exact = {stratum: share * len(members) for stratum, members in strata.items()}
    counts = {stratum: int(quota) for stratum, quota in exact.items()}
    missing = round(share * len(groups)) - sum(counts.values())
    for stratum in sorted(strata, key=lambda key: (counts[key] - exact[key], key))[: max(0, missing)]:
        counts[stratum] += 1

    rng = Random(seed)
    chosen = {number for stratum in sorted(strata) for number in rng.sample(strata[stratum], counts[stratum])}
    apart = {position for number in chosen for position in groups[number]}
    rest = tuple(task for position, task in enumerate(tasks) if position not in apart)
    return rest, tuple(task for position, task in enumerate(tasks) if position in apart)


def related(tasks: Sequence[ResearchTask]) -> list[list[int]]:
    """Groups of tasks that share a question or an abstract, directly or through others, as positions in `tasks`."""
    first: dict[bytes, int] = {}
    above = list(range(len(tasks)))

    def root(position: int) -> int:
        while above[position] != position:
            above[position] = position = above[above[position]]
        return position

    for position, task in enumerate(tasks):
        for _, digest in _contents(task):
            other = root(first.setdefault(digest, position))
            group = root(position)
            above[max(group, other)] = min(group, other)
    groups: dict[int, list[int]] = {}
    for position in range(len(tasks)):
        groups.setdefault(root(position), []).append(position)
    return list(groups.values())


def official_split(
    tasks: Sequence[ResearchTask], test_ids: Mapping[str, Label | None], place: Path
) -> tuple[list[ResearchTask], tuple[ResearchTask, ...]]:
    """Separate the official test tasks; returns the rest and the test tasks, both in the order of `tasks`.

    Raises:
        DataError: a test id is not in the data, its label differs, or nothing is left to train on.
    """
    by_id = {task.id: task for task in tasks}
    if absent := [test_id for test_id in test_ids if test_id not in by_id]:
        raise DataError(
            f"{place}: {len(absent)} of {len(test_ids)} test ids are not in the data, the first is {absent[0]}; "
            "data.path must hold all 1,000 labelled questions"
        )
    for test_id, label in test_ids.items():
        if label is not None and label != by_id[test_id].label:
            raise DataError(f"{place}: record {test_id}: label is {label!r}, but the data say {by_id[test_id].label!r}")
    rest = [task for task in tasks if task.id not in test_ids]
    if not rest:
        raise DataError(f"{place}: all {len(tasks)} tasks are test tasks, so nothing is left to train on")
    return rest, tuple(task for task in tasks if task.id in test_ids)


def check_disjoint(splits: Mapping[str, Sequence[ResearchTask]]) -> None:
    """Make sure that no id occurs twice, and that no question and no abstract is in two splits.

    Raises:
        DataError: Names the task and both splits.
    """
    ids: dict[str, str] = {}
    contents: dict[bytes, tuple[str, str]] = {}
    for split, tasks in splits.items():
        for task in tasks:
            if (other := ids.setdefault(task.id, split)) != split:
                raise DataError(
                    f"task {task.id} is in the {other} split and in the {split} split; splits must not share tasks"
                )
            for kind, digest in _contents(task):
                other, other_id = contents.setdefault(digest, (split, task.id))
                if other != split:
                    raise DataError(
                        f"tasks {other_id} ({other}) and {task.id} ({split}) have the same {kind}; remove one of them, "
                        "splits must not share questions or abstracts"
                    )
        if repeated := [task_id for task_id, count in Counter(task.id for task in tasks).items() if count > 1]:
            raise DataError(f"task {repeated[0]} occurs twice in the {split} split; ids must be unique")


def _contents(task: ResearchTask) -> list[tuple[str, bytes]]:
    """Question and abstract as digests, so that a large file's texts are not held twice; an empty one is left out.

    Texts that differ only in case and white space have the same digest.
    """
    texts = (("question", task.goal), ("abstract", abstract_text(task.context)))
    plain = ((kind, " ".join(text.casefold().split())) for kind, text in texts)
    return [
        (kind, blake2b(f"{kind} {text}".encode(errors="surrogatepass"), digest_size=16).digest())
        for kind, text in plain
        if text
    ]
