"""What guidance does to the bundled model that heeds it: `python -m benchmarks.guidance`.

A society whose juniors and designer are nano_steerable answers test tasks, once for each thing that they are told
(`society.guidance`): nothing, lessons about nothing, lessons on one fault, and lessons, skills, sentences of the prompt
or examples on all faults. The refiner is nano, which reads better. Differences to 'nothing' are paired, with 95 %
intervals over tasks.
"""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from agents.roles import REFINER
from agents.society import Society
from agents.tools.toolbox import build_toolbox
from chimera.config.roles import JUDGE
from chimera.config.sections.guidance import Guidance
from chimera.config.tree import Config, load_config
from chimera.core.errors import RoleError
from chimera.core.types import ResearchTask
from chimera.data.generated.tasks import generate
from chimera.data.tasks import load
from chimera.serving.client import Endpoint, HttpModel
from chimera.serving.process import serve
from evaluation.measures.paired import paired_difference
from evaluation.records.rollouts import RolloutInput
from evaluation.records.study import GATE
from evaluation.scores.judge import Judge
from training.nano.sentences import HELD_BACK, SENTENCES
from training.nano.steering import CHANNELS, FAULTS_OF, Channel, WorkedExamples, steer
from training.nano.transcripts import FAULTS

AT_ONCE = 16
RESAMPLES = 2000
EXAMPLE_SEED = 8_000_009
"""Of the tasks that examples are taken from; no configuration's default uses it."""


def conditions() -> dict[str, Mapping[str, Guidance]]:
    """What roles are told, by name. A sentence on a fault is drawn once, so that all tasks are asked alike."""
    others = WorkedExamples()
    for item in generate(200, seed=EXAMPLE_SEED, levels=[1, 2]):
        others.add(item)

    def told(
        channel: Channel, faults: Mapping[str, Sequence[str | None]], said: Mapping[Any, Sequence[str]]
    ) -> dict[str, Guidance]:
        rng = random.Random(0)
        found: dict[str, Guidance] = {}
        for role, some in faults.items():
            wanted = list(filter(None, some)) if channel == "examples" else [rng.choice(said[fault]) for fault in some]
            found[role] = steer(role, {channel: wanted}, rng, others).guidance
        return found

    heeding = {role: faults for role, faults in FAULTS_OF.items() if role != REFINER}
    juniors = [role for role, faults in heeding.items() if faults == FAULTS]
    nothing = dict.fromkeys(heeding, (None, None))
    of_one = {f"a lesson on {one}": told("lessons", dict.fromkeys(juniors, (one,)), SENTENCES) for one in FAULTS}
    return {
        "nothing": {},
        "lessons about nothing": told("lessons", nothing, SENTENCES),
        **of_one,
        **{f"{channel} on all faults": told(channel, heeding, SENTENCES) for channel in CHANNELS},
        "juniors' lessons in other words": told("lessons", dict.fromkeys(juniors, FAULTS), HELD_BACK),
    }


async def answered(
    config: Config, told: Mapping[str, Guidance], tasks: Sequence[ResearchTask], model: HttpModel
) -> np.ndarray:
    """Of each task the juniors' share of right answers, the society's, and the judge's mean score: shape (tasks, 3)."""
    toolbox = build_toolbox(config.tools, load(config.data).documents(), {})
    society = config.society.model_copy(update={"guidance": dict(told)})
    team = Society(model, toolbox, society, config.roles, evaluate=Judge(model, config.slot(JUDGE)).evaluate)
    free = asyncio.Semaphore(AT_ONCE)

    async def one(task: ResearchTask) -> tuple[float, float, float]:
        async with free:
            try:
                state = await team.run(task.brief(), RolloutInput.of(task, GATE, 0, config.seed).seed)
            except RoleError:
                return 0.0, 0.0, 0.0
        of_juniors = np.mean([one["answer"] == task.label for one in state["initial_hypotheses"]])
        scores = [score for score in state["final_evaluation"]["scores"].values() if score is not None]
        return float(of_juniors), float(state["final_answer"] == task.label), float(np.mean(scores or [0.0]))

    return np.array(await asyncio.gather(*map(one, tasks)))


async def measured(
    config: Config,
    tasks: Sequence[ResearchTask],
    urls: Mapping[str, Endpoint],
    wanted: Mapping[str, Mapping[str, Guidance]],
) -> dict[str, np.ndarray]:
    """What `answered` gives for each condition of `wanted`."""
    model = HttpModel(urls)
    try:
        return {name: await answered(config, told, tasks, model) for name, told in wanted.items()}
    finally:
        await model.aclose()


def table(found: Mapping[str, np.ndarray]) -> Table:
    """A row for each condition: percent or score, and the difference to the first."""
    n = len(next(iter(found.values())))
    shown = Table(title=f"{n} test tasks; right answers in %, differences to 'nothing' in points")
    for name in ("told", "juniors", "points", "society", "points", "judge", "difference"):
        shown.add_column(name, justify="left" if name == "told" else "right", no_wrap=True)
    usual = found["nothing"]
    for name, values in found.items():
        cells: list[str] = []
        for measure, (scale, digits) in enumerate(((100, 1), (100, 1), (1, 3))):
            own, before = (list(scale * rows[:, measure]) for rows in (values, usual))
            change = paired_difference(before, own, confidence=0.95, resamples=RESAMPLES, seed=0)
            ends = f"{change.mean:+z.{digits}f} [{change.low:+z.{digits}f}, {change.high:+z.{digits}f}]"
            cells += [f"{np.mean(own):.{digits}f}", "" if name == "nothing" else ends]
        shown.add_row(name, *cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano_steerable", help="nano_steerable, or a folder with such weights")
    parser.add_argument("--tasks", type=int, default=200, help="test tasks (default 200)")
    parser.add_argument("--tiny", action="store_true", help="4 tasks, to see that it works")
    options = parser.parse_args()
    config = load_config(None, [f"models.junior.path={options.model}", "models.refiner.path=nano"])
    tasks = load(config.data).test[: 4 if options.tiny else options.tasks]
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(config.used(), config.serving, {}, log_file=Path(folder) / "models.log") as servers,
    ):
        found = asyncio.run(measured(config, tasks, servers.endpoints, conditions()))
    Console(width=140).print(table(found))


if __name__ == "__main__":
    main()
