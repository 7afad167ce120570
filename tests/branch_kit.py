"""A run whose refiner was asked once in each rollout, and a bench whose branches say different things."""

import hashlib
import itertools
import json
from dataclasses import replace

from fake_bench import FakeBench
from record_kit import answered, spans_of

from agents.roles import ROLES
from agents.visit.prompting import opening
from chimera.config.sections.bundled import NANO
from chimera.run.directory import Run
from evaluation.traces.spans import write
from training.tune.render import Renderer

REFINER = "HypothesisRefiner"
READ = "The rate of falls was lower in the treated group (p=0.01)."
MISREAD = "The rate of falls was lower in the treated group (p=0.02)."
TASKS = 6


def answer(stance="yes", quote=READ, claim="it works"):
    return json.dumps({"evidence": [quote], "comparison": "lower", "claim": claim, "answer": stance})


def record(run, number, version="nano@0", sources=({"id": "a", "text": READ},), **other):
    """A rollout of a task whose label is yes, in which the refiner was asked once."""
    name = f"ro-{number}"
    selected = json.loads(answer())
    messages = opening(ROLES[REFINER], f"Is it so in {number}?", sources=list(sources), hypothesis=selected)
    message = {"role": "assistant", "content": answer()}
    choice = {"index": 0, "message": message, "token_ids": [7], "finish_reason": "stop"}
    request = {"model": "refiner", "messages": messages, "response_format": {"type": "json_object"}}
    response = {"id": name, "choices": [choice], "prompt_token_ids": [number, 5], "weights_version": version}
    trace = f"traces/gather/{name}.jsonl.gz"
    write(spans_of(name, [(REFINER, "refiner", [(request, response)])]), run.path / trace)
    return answered(name, f"t{number}", **({"seed": 1, "trace": trace} | other))


def said(call, text):
    """The call with another answer; equal texts have equal tokens."""
    return replace(reworded(call, text), response_ids=tuple(hashlib.sha256(text.encode()).digest()[:6]))


def reworded(call, text):
    """The call with another answer; its tokens stay."""
    message = {**call.asked.choice, "message": {"role": "assistant", "content": text}}
    return replace(call, asked=replace(call.asked, choice=message))


class Answers(FakeBench):
    """Branches that say something else each time: half are right, a quarter misquotes, a quarter says no."""

    def __init__(self, folder, order=0, label="yes", **other):
        folder.mkdir(exist_ok=True)
        run = Run(folder, writable=True)
        earlier = [record(run, number, label=label) for number in range(TASKS)]
        usual = {"versions": {"refiner": "nano@0"}, "weights": {"refiner": NANO}, "earlier": earlier}
        super().__init__(run, order=order, **(usual | other))

    def say(self, call, random_):
        claim = f"claim {random_.randrange(1000)}"
        text = random_.choice(
            [answer(claim=claim), answer(claim=claim), answer(quote=MISREAD), answer("no", claim=claim)]
        )
        return replace(said(call, text), weights_version=self.versions["refiner"])


def plant_stale(bench, count):
    """The first `count` branches that the bench makes are by newer weights than those that are live."""
    usual, numbers = bench.say, itertools.count()

    def say(call, random_):
        found = usual(call, random_)
        return replace(found, weights_version="newer@1") if next(numbers) < count else found

    bench.say = say


def render_of(bench):
    """What renders conversations for the refiner's weights."""
    return Renderer(bench.weights("refiner"), bench.config.society.max_tool_calls).rows
