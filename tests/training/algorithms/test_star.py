"""STaR on the fake bench: rounds from the first weights, and hints that no example holds."""

import asyncio
import json
import random
import shutil
from dataclasses import replace

import pytest
from branch_kit import MISREAD, READ, REFINER, TASKS, Answers, answer, render_of, said
from message_kit import refused

from chimera.core.errors import RunError
from chimera.serving.client import Completion
from training.algorithms.star import HINT, Star, StarSettings, draw, with_hint
from training.learning.base import PhasePlan
from training.learning.states import collect_states
from training.tune import fine_tune as tuning

pytestmark = pytest.mark.whole

PLAN = PhasePlan("star", "star", (REFINER,), ("refiner",))


def settings(**other):
    usual = {"min_examples": 1, "answers": 3, "hints": 4, "epochs": 1, "batch_size": 4, "micro_batch_size": 4}
    return StarSettings(**{"algorithm": "star", **usual, **other})


class Hinted(Answers):
    """A model that is right without a hint on the first half of the tasks, and half of the times with one."""

    def say(self, call, random_):
        solved = call.prompt_ids[0] < TASKS / 2
        text = answer("yes" if solved else "no", claim=f"claim {random_.randrange(1000)}")
        return replace(said(call, text), weights_version=self.versions["refiner"])

    def answer(self, slot, messages, options):
        payload = json.loads(messages[1]["content"])
        assert list(payload)[-2:] == [HINT, "goal"]
        draw_ = random.Random(options["seed"])
        text = answer(draw_.choice([payload[HINT], "maybe"]), claim=f"told {draw_.randrange(1000)}")
        message = {"role": "assistant", "content": text}
        return Completion(message, text, (), "stop", 3, 2, f"told-{options['seed']}", self.versions[slot])


def drawn(bench, number=1, **other):
    async def run():
        states = await collect_states(PLAN, 0, bench)
        return await draw(PLAN, settings(**other), bench, states, number, render_of(bench))

    return asyncio.run(run())


def texts(selection):
    return [json.loads(one.candidate.conversation.messages[-1]["content"]) for one in selection.examples]


def test_right_answers_are_kept_and_a_hint_helps_where_none_is_right(tmp_path):
    bench = Hinted(tmp_path)
    selection = drawn(bench, hints=8)
    claims = [one["claim"].split()[0] for one in texts(selection)]
    assert claims == ["claim"] * 3 + ["told"] * 3
    assert {one["answer"] for one in texts(selection)} == {"yes"}
    figures = selection.figures
    assert figures["unsolved"] == figures["hinted/solved"] == 3
    assert figures["hinted/answers"] == len(bench.questions) == 24
    assert 3 <= figures["hinted/right"] < 24
    assert figures["branches/right"] == 9
    assert figures["selected"] == 6
    assert "3 of 6 prompts have a right answer, a hint gives 3 more" in bench.view.lines[-1]


def test_no_example_holds_a_hint(tmp_path):
    """Neither its messages nor its tokens: the prompt of each example is the recorded one, token for token."""
    bench = Hinted(tmp_path)
    selection = drawn(bench, hints=8, keep=8)
    recorded = {
        conversation.messages[1]["content"]: conversation
        for one in bench.earlier
        for conversation in bench.episode(one).conversations([REFINER])
    }
    render = render_of(bench)
    assert len(selection.examples) > 2 * TASKS
    for example in selection.examples:
        talk = example.candidate.conversation
        assert HINT not in json.loads(talk.messages[1]["content"])
        (row,) = example.rows
        (usual,) = render(recorded[talk.messages[1]["content"]])
        prompt = usual.learned.index(True)
        assert row.ids[:prompt] == usual.ids[:prompt]
        assert not any(row.learned[:prompt])


def test_only_one_key_is_added_to_a_prompt():
    messages = [
        {"role": "system", "content": "You are it."},
        {"role": "user", "content": json.dumps({"sources": ["<b>"], "goal": "Is it so?"})},
        {"role": "tool", "content": json.dumps({"results": []}), "tool_call_id": "1"},
    ]
    found = with_hint(messages, "maybe")
    assert (found[0], found[2]) == (messages[0], messages[2])
    assert json.loads(found[1]["content"]) == {"sources": ["<b>"], HINT: "maybe", "goal": "Is it so?"}
    assert "hint" not in messages[1]["content"]


def test_a_hint_is_only_given_where_it_is_needed(tmp_path):
    bench = Hinted(tmp_path)
    drawn(bench)
    asked = " ".join(messages for _, messages, _ in bench.questions)
    assert [f"Is it so in {number}?" in asked for number in range(TASKS)] == [False] * 3 + [True] * 3
    other = Hinted(tmp_path / "other")
    assert drawn(other, hints=0).figures["hinted/answers"] == len(other.questions) == 0


def test_hinted_answers_must_quote_what_was_read_and_be_by_the_live_weights(tmp_path):
    bench = Hinted(tmp_path)
    usual = bench.answer

    def told(slot, messages, options):
        found = usual(slot, messages, options)
        number = int(json.loads(messages[1]["content"])["goal"].split()[-1][:-1])
        text = answer(quote=MISREAD) if number == 3 else found.content
        version = "newer@1" if number == 4 else found.weights_version
        return replace(found, message={"role": "assistant", "content": text}, content=text, weights_version=version)

    bench.answer = told
    selection = drawn(bench, hints=8)
    assert [one.candidate.record.task_id for one in selection.examples] == ["t0", "t1", "t2", "t5"]
    assert selection.figures["hinted/stale"] == 8
    assert selection.figures["hinted/solved"] == 1
    assert {one["evidence"][0] for one in texts(selection)} == {READ}


def test_too_few_right_answers_or_none_are_an_error_that_says_what_to_do(tmp_path):
    bench = Hinted(tmp_path)
    with refused(RunError, "star", "3 of 6 prompts", "star.min_examples is 500", "lower it"):
        drawn(bench, min_examples=500)
    bench.earlier = []
    with refused(RunError, "star", "0 of 0 prompts"):
        drawn(bench)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, serving_model):
    """A bench in which two rounds have run with the real training process, what they came to, and the first weights."""
    first = serving_model()
    bench = Hinted(tmp_path_factory.mktemp("star"), weights={"refiner": first})
    return bench, asyncio.run(Star().learn(PLAN, settings(), bench)), first


def test_each_round_samples_with_the_weights_of_the_last_one(trained):
    bench, learned, _ = trained
    assert [policy.version for policy in bench.published] == ["refiner@star-1"]
    assert learned.policy.version == "refiner@star-2"
    assert {key[3] for key in bench.branches} == {"nano@0", "refiner@star-1"}
    assert learned.figures["rounds"] == 2
    assert {learned.figures[f"round_{number}/unsolved"] for number in (1, 2)} == {3}
    assert learned.figures["branch_requests"] == 2 * TASKS
    assert learned.figures["ask_requests"] == len(bench.questions)


def test_each_round_starts_from_the_first_weights(trained):
    """A model's fingerprint is that of its examples, its settings, and the weights that it started from."""
    bench, _, first = trained
    for name in ("star-1", "star-2"):
        out, examples = bench.run.path / "models/refiner" / name, bench.run.path / f"phases/star/{name}-examples.jsonl"
        made_from = json.loads((out / tuning.MANIFEST).read_text())["fingerprint"]
        spec = tuning.specify(settings(), examples, first, out, bench.config.seed)
        assert made_from == tuning.fingerprint(spec, "nano@0")


def test_a_continued_run_goes_on_at_its_round(trained):
    """Here one whose second model is lost: the first is kept, and the second is made again to the last bit."""
    bench, learned, first = trained
    kept, lost = (bench.run.path / "models/refiner" / name / "model.safetensors" for name in ("star-1", "star-2"))
    before, bits = kept.stat().st_mtime_ns, lost.read_bytes()
    shutil.rmtree(lost.parent)
    again = Hinted(bench.run.path, order=7, weights={"refiner": first})
    continued = asyncio.run(Star().learn(PLAN, settings(), again))
    assert continued.policy == learned.policy
    assert kept.stat().st_mtime_ns == before
    assert lost.read_bytes() == bits
    assert "star-1: refiner@star-1 was made from these" in " ".join(again.view.lines)
