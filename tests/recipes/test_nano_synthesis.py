"""Transcripts on tasks of several studies: what the society sends, what each role sees, and what is said to it."""

import json
import random
from pathlib import Path

import pytest

from agents.roles import ROLES
from agents.schemas import Hypothesis
from agents.tools.sources import sources_seen
from agents.tools.toolbox import build_toolbox
from agents.visit.prompting import read_payload
from chimera.config.roles import JUNIORS, OWN_TOOLS
from chimera.data.generated.synthesis import decide, generate
from chimera.data.tasks import Dataset
from chimera.rubric.coherence import implied_answers
from recipes.nano.synthesis import of_junior, of_solo, read, refiner, researcher, stream
from recipes.nano.transcripts import TOOLS, Habits
from training.configuration import load_config

ITEMS = generate(40, seed=31)
CONFIG = load_config(Path(__file__).parents[2] / "configs" / "synthesis.yaml")


async def test_a_rollout_sends_what_the_transcripts_hold(society_kit) -> None:
    item = next(item for item in ITEMS if item.facts.level == 4)
    tasks = tuple(item.task for item in ITEMS)
    toolbox = build_toolbox(CONFIG.tools, Dataset(tasks, (), (), "generated", "test").documents(), {})
    written = {name: researcher(item, name, of_junior(item, name), TOOLS[name]) for name in JUNIORS}
    scripts = {
        name: [[(tool, {"query": query})] for tool, query, _ in of_junior(item, name).made]
        + [read(item, of_junior(item, name).found).model_dump()]
        for name in JUNIORS
    }
    answer = read(item, item.facts.studies).model_dump()
    model = society_kit.Model(**scripts, HypothesisRefiner=[answer])
    settings = CONFIG.society.model_dump(include={"max_tool_calls", "refiner_max_chars"})
    state = await society_kit.make(model, toolbox, quotes="read", **settings).run(item.task.brief())
    for name in JUNIORS:
        sent = model.of(name)[-1].messages
        assert [m["content"] or None for m in sent] == [m["content"] for m in written[name].messages[:-1]]
    (asked, *_) = model.of("HypothesisRefiner")
    assert {one["id"] for one in read_payload(asked.messages[1])["sources"]} == {s.id for s in item.facts.studies}
    assert list(read_payload(asked.messages[1])) == ["sources", "hypothesis", "justification", "goal"]
    assert {one["id"] for one in sources_seen(state["messages"])} == {s.id for s in item.facts.studies}


@pytest.mark.parametrize("item", ITEMS[:8], ids=lambda item: f"{item.task.id}-level-{item.facts.level}")
def test_no_junior_sees_every_study_but_together_they_do(item) -> None:
    seen = {name: {study.id for study in of_junior(item, name).found} for name in JUNIORS}
    every = {study.id for study in item.facts.studies}
    assert set.union(*seen.values()) == every == {study.id for study in of_solo(item).found}
    assert item.facts.level == 1 or not any(one == every for one in seen.values())


def test_every_answer_is_the_rule_s_and_stands_on_sentences_of_the_prompt() -> None:
    for transcript in stream(iter(ITEMS), 3, Habits.none()):
        said = [m["content"] for m in transcript.messages if m["role"] == "assistant" and m["content"]]
        for text in said:
            answer = ROLES[transcript.role].schema.model_validate_json(text)
            if isinstance(answer, Hypothesis):
                prompt = json.dumps([m["content"] for m in transcript.messages[:-1]], ensure_ascii=False)
                assert all(quote in prompt for quote in answer.evidence)
                implied = implied_answers(answer.comparison)
                assert not implied or answer.answer in implied or (len(implied) > 1 and answer.answer == "maybe")
    for item in ITEMS:
        facts = item.facts
        assert read(item, facts.studies).answer == item.task.label
        for name in JUNIORS:
            found = of_junior(item, name).found
            assert read(item, found).answer == decide(facts.asked, facts.population, found)
        proposals = {name: read(item, of_junior(item, name).found) for name in JUNIORS}
        final = refiner(item, proposals, random.Random(1)).messages[-1]["content"]
        assert json.loads(final)["answer"] == item.task.label


def test_a_researcher_with_all_tools_is_offered_all() -> None:
    made = [t for t in stream(iter(generate(120, seed=32)), 3, Habits.none()) if len(t.messages) >= 9 and t.tools]
    assert made
    assert {transcript.tools for transcript in made} == {OWN_TOOLS}
