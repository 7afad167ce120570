"""What learning gives at a role's own decision: `python -m benchmarks.own_decision --run NAME [--run NAME ...]`.

The society answers test tasks with the weights with which the first run began. The prompts of the role's first answers
are the states: each is answered again, several times, by these weights and by those that each run learned for the role.
Then the society answers the tasks with each run's weights, which shows what arrives in the end. Differences are paired,
with 95 % intervals over training seeds and tasks (`evaluation.seeds.crossed`).

Runs must have equal settings but for their seed. Weights count as they were learned, also where a gate took them back.
Without `--run` the bundled model is compared with itself.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from rich.console import Console
from rich.table import Table

from agents.roles import ROLES
from agents.society import Society
from agents.tools.toolbox import build_toolbox
from agents.visit.react import read_answer
from agents.visit.record import CallRecord, ModelCall
from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RoleError
from chimera.core.types import ResearchTask
from chimera.data.tasks import load
from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.serving.client import Completion, HttpModel, RequestOptions
from chimera.serving.process import ModelServers, serve
from evaluation.records.rollouts import RolloutInput
from evaluation.records.study import GATE
from evaluation.rollout.live import Live
from evaluation.scores.judge import Judge
from evaluation.seeds.crossed import Interval, crossed_interval, mean_of_runs
from training.configuration import load_config

AT_ONCE = 16
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class State:
    """A role's prompt: what its weights are asked, and the answer that is right."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    response_format: Mapping[str, Any] | None
    label: str
    seed: int


@dataclass(slots=True)
class Asked:
    """What the society asked for one task: a `Model` that remembers each request by its answer's id."""

    model: HttpModel
    requests: dict[str, tuple[Sequence[Mapping[str, Any]], RequestOptions]] = field(default_factory=dict)

    async def complete(
        self, key: str, messages: Sequence[Mapping[str, Any]], **options: Unpack[RequestOptions]
    ) -> Completion:
        completion = await self.model.complete(key, messages, **options)
        self.requests[completion.response_id] = (messages, options)
        return completion


@dataclass(frozen=True, slots=True)
class Bench:
    """What all answers share: configuration, role, tasks, model and answers."""

    config: Config
    role: str
    tasks: Sequence[ResearchTask]
    model: HttpModel
    answers: int

    async def society(self) -> tuple[list[float], list[State | None]]:
        """Whether the society is right on each task, and the role's state there; None where it never answered."""
        toolbox = build_toolbox(self.config.tools, load(self.config.data).documents(), {})
        judge = Judge(self.model, self.config.slot(JUDGE))
        free = asyncio.Semaphore(AT_ONCE)

        async def outcome(task: ResearchTask) -> tuple[float, State | None]:
            records: list[CallRecord] = []
            recorder = Asked(self.model)
            seed = RolloutInput.of(task, GATE, 0, self.config.seed).seed
            team = Society(
                recorder,
                toolbox,
                self.config.society,
                self.config.roles,
                evaluate=judge.evaluate,
                observe=records.append,
            )
            async with free:
                try:
                    right = float((await team.run(task.brief(), seed))["final_answer"] == task.label)
                except RoleError:
                    right = 0.0
            return right, next(self._states(task, records, recorder), None)

        outcomes = await asyncio.gather(*map(outcome, self.tasks))
        return [right for right, _ in outcomes], [state for _, state in outcomes]

    def _states(self, task: ResearchTask, records: Sequence[CallRecord], recorder: Asked) -> Iterator[State]:
        for record in records:
            if isinstance(record, ModelCall) and record.role == self.role and record.visit == 1 and record.parsed:
                messages, options = recorder.requests[record.response_id]
                seed = RolloutInput.of(task, GATE, 1, self.config.seed).seed
                yield State(messages, options.get("tools", ()), options.get("response_format"), task.label, seed)

    async def decide(self, states: Sequence[State]) -> list[float]:
        """The share of right answers to each state."""
        free = asyncio.Semaphore(AT_ONCE)

        async def share(state: State) -> float:
            async with free:
                completions = await self.model.choices(
                    self.config.slot(self.role),
                    state.messages,
                    tools=state.tools,
                    response_format=state.response_format,
                    seed=state.seed,
                    n=self.answers,
                )
            return float(np.mean([self._right(completion, state) for completion in completions]))

        return await asyncio.gather(*map(share, states))

    def _right(self, completion: Completion, state: State) -> bool:
        try:
            answer = read_answer(ROLES[self.role], completion, list(map(dict, state.messages)))
        except ValueError:
            return False
        return getattr(answer, "answer", None) == state.label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", default=[], help="a run; once for each training seed")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--role", default="HypothesisRefiner", help="a role whose answer is yes, no or maybe")
    parser.add_argument("--tasks", type=int, default=200, help="test tasks (default 200)")
    parser.add_argument("--answers", type=int, default=2, help="answers to each state (default 2)")
    parser.add_argument("--tiny", action="store_true", help="4 tasks, to see that it works")
    options = parser.parse_args()
    runs = [Run.open(name, options.runs_dir) for name in options.run]
    config = runs[0].config if runs else load_config(None, [])
    for run in runs:
        if run.config.model_copy(update={"seed": config.seed}) != config:
            raise ConfigError(f"{run.path.name} has other settings than {runs[0].path.name}, beside its seed")
    tasks = load(config.data).test[: 4 if options.tiny else options.tasks]
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(config.used(), config.serving, {}, log_file=Path(folder) / "models.log") as servers,
    ):
        changes = [_to_learned(run, config, options.role, servers) for run in runs] or [lambda: None]
        comparison = asyncio.run(compared(config, options.role, tasks, servers, options.answers, changes))
    Console(width=120).print(table(options.role, comparison))


def _to_learned(run: Run, config: Config, role: str, servers: ModelServers) -> Callable[[], None]:
    """A function that puts live what `run` learned last for the weights of `role`, and nothing else."""
    slot = config.slot(role)
    events = [Policy.load(event["policy"]) for event in run.events() if event["event"] == "phase_learned"]
    learned = [policy for policy in events if policy.place == ("weights", slot)]
    if not learned:
        raise ConfigError(f"{run.path.name} learned no weights of models.{slot}, which {role} uses")
    return partial(Live(run, config.models, servers).put, learned[-1])


@dataclass(frozen=True, slots=True)
class Compared:
    """Shares of right answers, base first: shape (tasks,) before, (runs, tasks) after."""

    decided: np.ndarray
    decided_after: np.ndarray
    society: np.ndarray
    society_after: np.ndarray


async def compared(
    config: Config,
    role: str,
    tasks: Sequence[ResearchTask],
    servers: ModelServers,
    answers: int,
    changes: Sequence[Callable[[], None]],
) -> Compared:
    """Ask the weights of the beginning, then those after each of `changes`."""
    model = HttpModel(servers.endpoints)
    bench = Bench(config, role, tasks, model, answers)
    try:
        before, society_states = await bench.society()
        states = [state for state in society_states if state is not None]
        decided = await bench.decide(states)
        after: list[list[float]] = []
        arrived: list[list[float]] = []
        for change in changes:
            await asyncio.to_thread(change)
            after.append(await bench.decide(states))
            arrived.append((await bench.society())[0])
    finally:
        await model.aclose()
    return Compared(*map(np.asarray, (decided, after, before, arrived)))


def table(role: str, comparison: Compared) -> Table:
    """A row for the role's own decision and one for the society's answer."""
    runs = len(comparison.decided_after)
    shown = Table(title=f"{runs} training seed{'s' * (runs > 1)}; right answers in %, differences in points")
    for name in ("", "n", "before", "after", "difference", "of each seed"):
        shown.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for title, before, after in (
        (f"{role} itself", comparison.decided, comparison.decided_after),
        ("the society", comparison.society, comparison.society_after),
    ):
        gained = 100 * (after - before)
        interval = _interval(gained)
        ends = "" if interval.low is None else f" [{interval.low:+z.1f}, {interval.high:+z.1f}]"
        each = ", ".join(f"{gain:+z.1f}" for gain in gained.mean(axis=1))
        percent = (f"{100 * side.mean():.1f}" for side in (before, after))
        shown.add_row(title, f"{len(before)}", *percent, f"{interval.value:+z.1f}{ends}", each)
    return shown


def _interval(gained: np.ndarray) -> Interval:
    """The mean of all runs' mean differences, with its interval; `gained` has the shape (runs, tasks)."""
    rows = gained[:, :, None].astype(float)
    count = np.ones_like(rows)
    estimate = mean_of_runs([np.concatenate([rows, count], axis=2)], lambda totals: totals[..., 0] / totals[..., 1])
    return crossed_interval(estimate, [gained.shape], confidence=0.95, resamples=RESAMPLES, seed=0)


if __name__ == "__main__":
    main()
