"""The bundled model and its recipe: transcripts are what the society sends, and the model is mediocre and teachable."""

import asyncio
import functools
import itertools
import json
import random
from pathlib import Path

import pytest
from embedded_kit import embedded
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.roles import ROLES
from agents.schemas import Hypothesis
from agents.tools.toolbox import build_toolbox
from agents.visit.prompting import response_format
from chimera.config.roles import JUNIORS, LITERATURE
from chimera.config.sections.data import DataConfig
from chimera.config.sections.tools import ToolsConfig
from chimera.data.generated.tasks import GeneratedTask, generate
from chimera.data.tasks import Dataset
from chimera.serving.embedded.checkpoint import load_checkpoint
from chimera.serving.embedded.protocol import parse_request
from recipes.nano.__main__ import examples, main
from recipes.nano.transcripts import (
    EXPERT,
    Habits,
    Transcript,
    careful,
    designer,
    junior,
    propose,
    reread,
    stream,
    supervisor,
)

pytestmark = pytest.mark.whole

NANO = Path(__file__).parents[2] / "chimera" / "assets" / "nano"


@functools.cache
def transcripts() -> list[Transcript]:
    return list(stream(iter(generate(300, seed=5, levels=(1, 2, 3, 4))), 3, Habits()))


def transcripts_of(role: str) -> list[Transcript]:
    return [transcript for transcript in transcripts() if transcript.role == role]


async def test_transcripts_of_a_whole_rollout_are_what_the_society_sends(society_kit) -> None:
    item, other = generate(2, seed=11, levels=(2,))
    dataset = Dataset((item.task,), (other.task,), (), "generated", "test")
    toolbox = build_toolbox(ToolsConfig(), dataset.documents(), {})
    written = next(
        transcript
        for seed in itertools.count()
        if len((transcript := junior(item, other, "Geneticist", careful(item), random.Random(seed))).messages) == 5
        and len(json.loads(transcript.messages[3]["content"])["results"]) == 1
    )
    arguments = json.loads(written.messages[2]["tool_calls"][0]["function"]["arguments"])
    answer = json.loads(written.messages[4]["content"])
    search = [(LITERATURE, arguments)]
    model = society_kit.Model(**{name: [search, answer] for name in JUNIORS}, HypothesisRefiner=[answer])
    await society_kit.make(model, toolbox).run(item.task.brief())

    sent = model.of("Geneticist")[1].messages
    assert [m["role"] for m in sent] == [m["role"] for m in written.messages[:-1]]
    assert sent[:2] == list(written.messages[:2])
    assert sent[3]["content"] == written.messages[3]["content"]

    proposals = {name: careful(item) for name in JUNIORS}
    for role, make in (("Supervisor", supervisor), ("ProtocolDesigner", designer)):
        made = (make(item, proposals, careful(item), random.Random(seed), Habits()) for seed in itertools.count())
        first_visit = next(t for t in made if "feedback" not in json.loads(t.messages[1]["content"]))
        assert model.of(role)[0].messages == list(first_visit.messages[:2])


@pytest.mark.parametrize("role", ["Supervisor", "HypothesisRefiner", "ProtocolDesigner", *JUNIORS])
def test_every_answer_fits_its_role_and_every_quote_occurs(role: str) -> None:
    made = transcripts_of(role)
    assert made
    for transcript in made:
        answer = ROLES[role].schema.model_validate_json(transcript.messages[-1]["content"])
        if role in JUNIORS and isinstance(answer, Hypothesis):
            prompt = json.dumps([m["content"] for m in transcript.messages[:-1]], ensure_ascii=False)
            assert all(quote in prompt for quote in answer.evidence)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), level=st.sampled_from((1, 2, 3, 4)))
def test_without_habits_every_hypothesis_is_the_label_and_refining_keeps_it(seed: int, level: int) -> None:
    (item,) = generate(1, seed=seed, levels=(level,))
    rng = random.Random(seed)
    for name in JUNIORS:
        proposed = propose(item, name, rng, Habits.none())
        assert proposed.answer == item.task.label
        assert reread(item, proposed) == proposed


def test_habits_make_experts_better_than_others() -> None:
    items, rng = generate(1500, seed=2, levels=(1, 2, 3, 4)), random.Random(0)
    right = {True: [], False: []}
    for item, name in itertools.product(items, JUNIORS):
        right[EXPERT[item.facts.kind] == name].append(propose(item, name, rng, Habits()).answer == item.task.label)
    expert, other = (sum(right[key]) / len(right[key]) for key in (True, False))
    assert expert > other + 0.15


def test_loss_is_taken_on_exactly_the_assistants_tokens() -> None:
    from transformers import AutoTokenizer

    from recipes.nano.fit import encode

    tokenizer = AutoTokenizer.from_pretrained(NANO)
    transcript = next(t for t in transcripts_of("Geneticist") if len(t.messages) == 5)
    example = encode(tokenizer, transcript)
    tools = [{"type": "function", "function": {"name": name}} for name in transcript.tools]
    whole = tokenizer.apply_chat_template(list(transcript.messages), tools=tools, tokenize=False)
    assert tokenizer.decode(example.tokens) == whole.removesuffix("\n")
    learned = tokenizer.decode([token for token, mark in zip(example.tokens, example.learned, strict=True) if mark])
    call, answer = transcript.messages[2], transcript.messages[4]["content"]
    function = call["tool_calls"][0]["function"]
    written = f'<tool_call>{{"name":"{function["name"]}","arguments":{function["arguments"]}}}</tool_call>'
    assert learned == f"{written}<|im_end|>{answer}<|im_end|>"


def test_the_bundled_model_is_small_and_its_card_says_what_it_is() -> None:
    weights = NANO / "model.safetensors"
    assert weights.stat().st_size <= 10_000_000
    card = (NANO / "README.md").read_text(encoding="utf-8")
    assert all(word in card for word in ("python -m recipes.nano", "generated tasks", "Mediocre on purpose", "Licence"))
    config = json.loads((NANO / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]


def test_the_bundled_model_reads_better_than_chance_and_worse_than_it_could() -> None:
    """Answers of the juniors after a plain search, sampled as the default configuration samples them."""
    answers = _ask_nano(generate(96, seed=DataConfig().seed + 41, levels=DataConfig().levels))
    read = [(item, Hypothesis.model_validate_json(text)) for item, text in answers]
    right = sum(answer.answer == item.task.label for item, answer in read) / len(read)
    quoted = sum(
        all(quote in " ".join(s.text for s in item.task.context) for quote in answer.evidence) for item, answer in read
    ) / len(read)
    majority = sum(item.task.label == "yes" for item, _ in read) / len(read)
    assert quoted > 0.65
    assert majority + 0.05 < right < 0.85


def _ask_nano(items: list[GeneratedTask]) -> list[tuple[GeneratedTask, str]]:
    """Each junior in turn answers one task whose abstract its search has just found."""

    async def one(number: int, item: GeneratedTask) -> str:
        role = ROLES[JUNIORS[number % 3]]
        transcript = junior(item, item, role.name, careful(item), random.Random(4))
        body = {
            "model": "junior",
            "messages": list(transcript.messages[:-1]),
            "response_format": response_format(role),
            "seed": number,
        }
        return (await service.complete(parse_request(body)))["choices"][0]["message"]["content"]

    async def everyone() -> list[str]:
        return await asyncio.gather(*(one(number, item) for number, item in enumerate(items)))

    with embedded("nano") as service:
        return list(zip(items, asyncio.run(everyone()), strict=True))


def test_the_recipe_makes_a_model_that_the_server_serves(tmp_path: Path) -> None:
    shape = "--hidden-size 32 --layers 1 --heads 2 --kv-heads 1 --intermediate-size 32"
    steps = "--steps 1 --habit-steps 1 --review-steps 1 --warm-up 1"
    main(f"--out {tmp_path} {steps} --batch 2 --exam 2 --levels 1 {shape}".split())
    assert load_checkpoint(str(tmp_path)).shape.vocab == 1536
    with embedded(tmp_path, slots=2) as service:
        body = {"model": "junior", "messages": [{"role": "user", "content": "{}"}], "max_tokens": 3, "seed": 1}
        answer = asyncio.run(service.complete(parse_request(body)))
    assert answer["usage"]["completion_tokens"] in (1, 2, 3)


def test_more_workers_write_the_same_transcripts_in_the_same_order() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(NANO)
    first, second = (
        list(itertools.islice(examples(tokenizer, 5, [1, 2], Habits(), workers), 40)) for workers in (0, 2)
    )
    assert first == second
