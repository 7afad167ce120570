"""What orchestration costs: `python -m benchmarks.orchestration [--rollouts N] [--concurrency N] [--tiny]`.

The same society answers the same tasks with a model that takes no time, in this process: once as the bare graph, once
as recorded rollouts of a worker, and once as training makes them, through Agent Lightning's runner and store. The
supervisor's choice is never replaced by a random one, so all make the same calls.
"""

import argparse
import asyncio
import gc
import itertools
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agents.context import SupervisorChoice
from agents.society import Society
from agents.tools.toolbox import Toolbox, build_toolbox
from chimera.config.roles import JUDGE
from chimera.config.sections.models import SLOTS
from chimera.config.tree import Config
from chimera.data.tasks import Dataset, load
from chimera.run.directory import Run
from chimera.serving.client import Endpoint, HttpModel
from evaluation.records.rollouts import RolloutInput
from evaluation.rollout.crew import Crew, new_id
from evaluation.rollout.worker import Job, SocietyWorker, Worker
from evaluation.scores.judge import CRITERIA, Judge
from training.lab.agent import LightningWorker, open_store

REVIEW = {"issues": [], "severity": "NONE", "verdict": "APPROVE"}
FIELDS = ("design", "population", "intervention", "comparator", "outcome", "analysis", "safeguards")
ANSWERS: dict[str, dict[str, Any]] = {
    "Selection": {"choice": "Neurologist", "justification": "Its evidence is about the outcome."},
    "Protocol": {**dict.fromkeys(FIELDS, "as usual"), "sample_size": 200, "expected": "yes"},
    "PeerReview": REVIEW,
    "SafetyReview": REVIEW,
    "FinalDecision": {"amendments": [], "rationale": "The evidence says so.", "answer": "yes", "decision": "GO"},
    "Judgement": dict.fromkeys(CRITERIA, 0.5),
}
PROMPT_IDS, RESPONSE_IDS = list(range(400)), list(range(100))
_numbers = itertools.count()


def message_for(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], schema: str) -> dict[str, Any]:
    """A literature search first where tools are offered, then the schema's canned answer."""
    payload = json.loads(messages[-1]["content"])
    if tools and messages[-1]["role"] == "user":
        function = {"name": "literature_search", "arguments": json.dumps({"query": payload["goal"]})}
        call = {"id": f"call-{next(_numbers)}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if schema != "Hypothesis":
        return {"role": "assistant", "content": json.dumps(ANSWERS[schema])}
    results = payload.get("results") or [{"text": "Nothing was found"}]
    quote = results[0]["text"].split(". ")[0][:400]
    answer = {"evidence": [quote], "comparison": "higher? higher", "claim": "It is so.", "answer": "yes"}
    return {"role": "assistant", "content": json.dumps(answer)}


class CannedModel(HttpModel):
    """The canned answers, as the bodies of a server that gives token ids."""

    async def ask(self, key: str, request: Mapping[str, Any]) -> bytes:
        """See `HttpModel.ask`."""
        schema = request["response_format"]["json_schema"]["name"]
        message = message_for(request["messages"], request.get("tools", ()), schema)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        body = {
            "id": f"canned-{next(_numbers)}",
            "model": request["model"],
            "weights_version": "canned",
            "prompt_token_ids": PROMPT_IDS,
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "token_ids": RESPONSE_IDS}],
            "usage": {"prompt_tokens": 400, "completion_tokens": 100, "total_tokens": 500},
        }
        return json.dumps(body).encode()


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall and processor seconds of `rollouts` rollouts."""

    rollouts: int
    wall: float
    cpu: float

    def row(self) -> list[str]:
        """Table cells: rollouts per minute, then milliseconds per rollout."""
        each = [f"{1000 * seconds / self.rollouts:.1f}" for seconds in (self.wall, self.cpu)]
        return [f"{60 * self.rollouts / self.wall:.0f}", *each]


@dataclass(frozen=True)
class Setting:
    """What all ways of working share."""

    config: Config
    dataset: Dataset
    model: CannedModel
    toolbox: Toolbox

    def inputs(self, phase: str, count: int) -> list[RolloutInput]:
        """`count` rollouts on training tasks."""
        tasks = itertools.islice(itertools.cycle(self.dataset.train), count)
        return [RolloutInput.of(task, phase, number, 0) for number, task in enumerate(tasks)]


async def bare(setting: Setting, count: int, concurrency: int) -> None:
    """The graph and its judge, of which nothing is kept."""
    config, model = setting.config, setting.model
    waiting = iter(setting.inputs("bare", count))

    async def work() -> None:
        judge = Judge(model, config.slot(JUDGE))
        society = Society(model, setting.toolbox, config.society, config.roles, evaluate=judge.evaluate)
        for input_ in waiting:
            state = await society.run(input_.task.brief(), seed=input_.seed)
            assert state["final_decision"] == "GO"

    await asyncio.gather(*(work() for _ in range(concurrency)))


async def recorded(setting: Setting, folder: Path, count: int, concurrency: int, *, lightning: bool) -> None:
    """Rollouts with record and trace on disk; in `lightning` through Agent Lightning."""
    workers: list[Worker] = [SocietyWorker(setting.config, setting.model, setting.toolbox) for _ in range(concurrency)]
    if lightning:
        store = await open_store()
        workers = [LightningWorker(number, worker, store) for number, worker in enumerate(workers)]
    versions = dict.fromkeys(setting.config.models, "canned")
    with Run.create(None, setting.config) as run:
        jobs = [
            Job(new_id("ro"), input_, setting.model.endpoints, versions, SupervisorChoice)
            for input_ in setting.inputs("recorded", count)
        ]
        async for record, _ in Crew(run, workers).rollouts(jobs):
            assert record.status == "succeeded", record.error


async def cost(way: Callable[[int, int], Awaitable[None]], count: int, concurrency: int) -> Cost:
    """What `count` rollouts cost, after some that are not counted."""
    await way(min(count, 2 * concurrency), concurrency)
    wall, cpu = time.perf_counter(), time.process_time()
    await way(count, concurrency)
    return Cost(count, time.perf_counter() - wall, time.process_time() - cpu)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--tiny", action="store_true", help="2 rollouts: shows that it runs, not what it costs")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.rollouts, arguments.concurrency = 2, 1
    slot = {"kind": "endpoint", "base_url": "http://nowhere", "model": "canned", "structured": "always"}
    with tempfile.TemporaryDirectory() as folder:
        config = Config.model_validate({"runs_dir": folder, "models": dict.fromkeys(SLOTS, slot)})
        dataset = load(config.data)
        model = CannedModel({name: Endpoint("http://nowhere", "canned", "none") for name in config.models})
        setting = Setting(config, dataset, model, build_toolbox(config.tools, dataset.documents(), {}))
        gc.freeze()
        ways = {
            "bare graph": partial(bare, setting),
            "worker": partial(recorded, setting, Path(folder), lightning=False),
            "worker in Agent Lightning": partial(recorded, setting, Path(folder), lightning=True),
        }
        table = Table(title=f"{arguments.rollouts} rollouts, {arguments.concurrency} at a time (14 calls + judge)")
        for column in ("", "rollouts/min", "wall ms each", "CPU ms each"):
            table.add_column(column, justify="right" if column else "left")
        costs = {name: asyncio.run(cost(way, arguments.rollouts, arguments.concurrency)) for name, way in ways.items()}
        for name, way_cost in costs.items():
            table.add_row(name, *way_cost.row())
        each = {name: 1000 * way_cost.cpu / way_cost.rollouts for name, way_cost in costs.items()}
        for name in list(ways)[1:]:
            table.add_row(f"overhead of {name}", "", "", f"{each[name] - each['bare graph']:+.1f}")
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
