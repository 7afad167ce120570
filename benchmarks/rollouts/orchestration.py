"""What orchestration costs: `python -m benchmarks.rollouts.orchestration [--rollouts N] [--runners N] [--tiny]`.

The same society answers the same tasks with a model that takes no time: once invoked directly in this process, once as
real rollouts through store, gateway and runner processes. The difference is the overhead per rollout. The supervisor's
choice is never replaced by a random one (bandit.exploration=0), so both make the same calls. Processor time is counted
per process, so that it holds on a busy machine too.
"""

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Unpack

import psutil
from fastapi import FastAPI, Request
from rich.console import Console
from rich.table import Table

from agents.society import Society
from agents.tools.toolbox import build_toolbox
from benchmarks.rollouts.gateway import serve_app, served, spent
from benchmarks.rollouts.lab import open_lab
from chimera.config.roles import JUDGE
from chimera.config.sections.models import SLOTS
from chimera.config.tree import Config
from chimera.data.tasks import Dataset, load
from chimera.processes import forks
from chimera.serving.client import Completion, RequestOptions, ToolCall
from evaluation.records.rollouts import RolloutInput
from evaluation.scores.judge import CRITERIA, Judge
from training.algorithms.gather import GatherSettings
from training.learning.rounds import draw_inputs

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
    found = payload.get("results") or [{"text": "Nothing was found"}]
    quote = found[0]["text"].split(". ")[0][:400]
    answer = {"evidence": [quote], "comparison": "higher? higher", "claim": "It is so.", "answer": "yes"}
    return {"role": "assistant", "content": json.dumps(answer)}


class DirectModel:
    """The canned answers in this process, as a `chimera.serving.client.Model`."""

    async def complete(
        self, key: str, messages: Sequence[Mapping[str, Any]], **options: Unpack[RequestOptions]
    ) -> Completion:
        response_format = options.get("response_format")
        assert response_format is not None
        message = message_for(messages, options.get("tools", ()), response_format["json_schema"]["name"])
        calls = tuple(
            ToolCall(call["id"], function["name"], json.loads(function["arguments"]), function["arguments"])
            for call in message.get("tool_calls", ())
            for function in [call["function"]]
        )
        text = message["content"] or ""
        return Completion(message, text, calls, "stop", 400, 100, f"direct-{next(_numbers)}", "canned")


def canned_server(port: int, ready: Connection) -> None:
    """The canned answers over HTTP: a process of its own, whose time is not counted."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> dict[str, Any]:
        asked = await request.json()
        schema = asked["response_format"]["json_schema"]["name"]
        message = message_for(asked["messages"], asked.get("tools", ()), schema)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish, "token_ids": RESPONSE_IDS}
        return {
            "id": f"canned-{next(_numbers)}",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "weights_version": "canned",
            "prompt_token_ids": PROMPT_IDS,
            "choices": [choice],
            "usage": {"prompt_tokens": 400, "completion_tokens": 100, "total_tokens": 500},
        }

    asyncio.run(serve_app(app, port, ready))


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall seconds of `rollouts` rollouts, and processor seconds by kind of process."""

    rollouts: int
    wall: float
    cpu: dict[str, float]

    def row(self) -> list[str]:
        """Table cells: rollouts per minute, then milliseconds per rollout."""
        each = [f"{1000 * seconds / self.rollouts:.0f}" for seconds in (self.wall, sum(self.cpu.values()))]
        split = ", ".join(f"{name} {1000 * seconds / self.rollouts:.0f}" for name, seconds in self.cpu.items())
        return [f"{60 * self.rollouts / self.wall:.0f}", *each, split]


def inputs(dataset: Dataset, config: Config) -> Sequence[RolloutInput]:
    """The rollouts of the default gather phase."""
    settings = config.pipeline["gather"]
    assert isinstance(settings, GatherSettings)
    return draw_inputs("gather", settings.tasks, dataset, config.seed, settings.repeats)


async def direct(config: Config, dataset: Dataset) -> Cost:
    """The graph invoked in this process, one task after another."""
    model = DirectModel()
    toolbox = build_toolbox(config.tools, dataset.documents(), {})
    judge = Judge(model, config.slot(JUDGE))
    society = Society(model, toolbox, config.society, config.roles, evaluate=judge.evaluate)
    chosen = inputs(dataset, config)
    await society.run(chosen[0].task.brief(), seed=0)
    wall, cpu = time.perf_counter(), time.process_time()
    for given in chosen:
        state = await society.run(given.task.brief(), seed=given.seed)
        assert state["final_decision"] == "GO"
    return Cost(len(chosen), time.perf_counter() - wall, {"this process": time.process_time() - cpu})


async def orchestrated(config: Config, dataset: Dataset, folder: Path) -> Cost:
    """The same tasks as rollouts."""
    async with open_lab(config, dataset, folder) as (_, lab):
        chosen = inputs(dataset, config)
        # Every runner's first rollout is slower. A repeat of its own: a recorded rollout would not be run again.
        first = [RolloutInput.of(given.task, given.phase, 1, config.seed) for given in chosen]
        async for _ in lab.rollouts(first[: 2 * config.rollouts.runners]):
            pass
        assert lab.gateway.pid is not None
        groups = {
            "gateway": [lab.gateway.pid],
            "runners": [*lab.pool.pids().values()],
            "main with store": [psutil.Process().pid],
        }
        before = {name: spent(pids) for name, pids in groups.items()}
        started = time.perf_counter()
        async for episode in lab.rollouts(chosen):
            record = episode.record
            assert record.status == "succeeded", record.error
            assert record.untraced_calls == 0
        wall = time.perf_counter() - started
        return Cost(len(chosen), wall, {name: spent(pids) - before[name] for name, pids in groups.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=80)
    parser.add_argument("--runners", type=int, default=8)
    parser.add_argument(
        "--tiny", action="store_true", help="2 rollouts, 1 runner, no LiteLLM: shows that it runs, not what it costs"
    )
    arguments = parser.parse_args()
    engines = ("litellm", "thin")
    if arguments.tiny:
        arguments.rollouts, arguments.runners, engines = 2, 1, ("thin",)
    forks.prepare()
    with tempfile.TemporaryDirectory() as folder, served(canned_server, Path(folder)) as url:
        models = {
            key: {"kind": "endpoint", "base_url": url, "model": "canned", "structured": "always"} for key in SLOTS
        }
        settings: dict[str, Any] = {
            "runs_dir": folder,
            "models": models,
            "pipeline": {"gather": {"tasks": arguments.rollouts}},
            "rollouts": {"exploration": 0.0},
        }
        config = Config.model_validate(settings)
        dataset = load(config.data)
        table = Table(title=f"{arguments.rollouts} rollouts with a model that answers at once (14 calls + judge)")
        for column in ("", "rollouts/min", "wall ms each", "CPU ms each", "of which"):
            table.add_column(column, justify="left" if column in ("", "of which") else "right")
        plain = asyncio.run(direct(config, dataset))
        table.add_row("graph invoked directly", *plain.row())
        for engine, runners in sorted({("thin", 1), *((engine, arguments.runners) for engine in engines)}):
            rollouts = {**settings["rollouts"], "runners": runners}
            config = Config.model_validate({**settings, "rollouts": rollouts, "gateway": {"engine": engine}})
            cost = asyncio.run(orchestrated(config, dataset, Path(folder)))
            table.add_row(f"store + {engine} gateway + {runners} runner(s)", *cost.row())
            extra = 1000 * (sum(cost.cpu.values()) - sum(plain.cpu.values())) / cost.rollouts
            delay = 1000 * (cost.wall - plain.wall) / cost.rollouts
            table.add_row("  overhead per rollout", "", f"{delay:+.0f}", f"{extra:+.0f}", "")
        Console(width=150).print(table)
    forks.finish()


if __name__ == "__main__":
    main()
