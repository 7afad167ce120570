"""Conversations with guidance: what the society sends, and which faults guidance switches off."""

import asyncio
import random
from collections import Counter

import pytest

from agents.roles import ROLES
from agents.tools.toolbox import build_toolbox
from agents.visit.prompting import payload_of
from benchmarks.guidance import conditions, measured
from chimera.config.roles import JUNIORS
from chimera.config.sections.tools import ToolsConfig
from chimera.config.tree import load_config
from chimera.data.generated.tasks import generate
from chimera.data.tasks import Dataset, load
from chimera.serving.process import serve
from training.nano.sentences import SENTENCES, against
from training.nano.steering import CARELESS, Channel, Steering, WorkedExamples, guided, propose, steer, stream
from training.nano.transcripts import FAULTS, careful, junior, with_fault

ITEMS = generate(400, seed=51)


def faults(steering: Steering) -> Counter[str]:
    """How often juniors with this guidance answer with each fault, on tasks where one can tell."""
    rng, found = random.Random(3), Counter()
    for item in ITEMS:
        answer = propose(item, JUNIORS[0], rng, CARELESS, steering)
        if answer == careful(item):
            found["none"] += 1
            continue
        made = {
            fault for fault in FAULTS for seed in range(4) if with_fault(item, fault, random.Random(seed)) == answer
        }
        if len(made) == 1:
            found[made.pop()] += 1
    return found


def told(*sentences: str) -> Steering:
    return steer(JUNIORS[0], {"lessons": list(sentences)}, random.Random(1), WorkedExamples())


def test_a_fitting_lesson_switches_its_fault_off_and_no_other() -> None:
    usual = faults(Steering())
    assert all(usual[fault] > 15 for fault in FAULTS)
    for fault in FAULTS:
        found = faults(told(SENTENCES[fault][0]))
        assert found[fault] == 0
        assert all(found[other] > 15 for other in FAULTS if other != fault)
    everything = faults(told(*(SENTENCES[fault][-1] for fault in FAULTS)))
    assert everything == {"none": len(ITEMS)}


def test_lessons_about_nothing_change_nothing() -> None:
    assert faults(told(*SENTENCES[None][:3])) == faults(Steering())


def test_an_example_halves_its_fault() -> None:
    usual, halved = faults(Steering()), faults(Steering(halved=frozenset(FAULTS)))
    assert 0.35 * usual["significance"] < halved["significance"] < 0.65 * usual["significance"]


def test_no_sentence_is_against_two_faults() -> None:
    said = [sentence for of_fault in SENTENCES.values() for sentence in of_fault]
    assert len(set(said)) == len(said)
    assert all(against(one) == ([fault] if fault else []) for fault, some in SENTENCES.items() for one in some)


async def test_a_guided_visit_sends_what_the_transcripts_hold(society_kit) -> None:
    item, other = ITEMS[:2]
    toolbox = build_toolbox(
        ToolsConfig(), Dataset((item.task,), (other.task,), (), "generated", "test").documents(), {}
    )
    others = WorkedExamples()
    others.add(other)
    wanted: dict[Channel, list[str]] = {
        "lessons": [SENTENCES["direction"][3]],
        "skills": [SENTENCES[None][2]],
        "prompt": [SENTENCES["outcome"][1]],
    }
    guidance = steer("Geneticist", wanted, random.Random(5), others).guidance
    written = guided(junior(item, other, "Geneticist", careful(item), random.Random(0), given_share=1.0), guidance)
    model = society_kit.Model(Geneticist=[careful(item).model_dump()])
    settings = {"guidance": {"Geneticist": guidance.given()}, "evidence": "given", "quotes": "read"}
    await society_kit.make(model, toolbox, **settings).run(item.task.brief())
    sent = model.of("Geneticist")[0].messages
    assert [m["content"] for m in sent] == [m["content"] for m in written.messages[:-1]]


def test_conversations_are_readable_answers_of_every_role_with_and_without_guidance() -> None:
    made = list(stream(iter(ITEMS), 7))
    for transcript in made:
        ROLES[transcript.role].schema.model_validate_json(transcript.messages[-1]["content"])
    fields = Counter(name for t in made for name in ("lessons", "skills", "examples") if name in payload_of(t.messages))
    own = sum(t.messages[0]["content"] != ROLES[t.role].prompt for t in made)
    assert all(fields[name] > 50 for name in ("lessons", "skills", "examples"))
    assert 0.3 * len(made) < own < 0.7 * len(made)
    assert {t.role for t in made} >= {*JUNIORS, "HypothesisRefiner", "ProtocolDesigner", "Supervisor"}


@pytest.mark.whole
def test_the_bundled_weights_heed_lessons(tmp_path) -> None:
    config = load_config(None, ["models.junior.path=nano_steerable", "models.refiner.path=nano"])
    told = {name: conditions()[name] for name in ("nothing", "lessons on all faults")}
    tasks = load(config.data).validation[:40]
    with serve(config.used(), config.serving, {}, log_file=tmp_path / "models.log") as servers:
        found = asyncio.run(measured(config, tasks, servers.endpoints, told))
    usual, taught = (found[name][:, 0].mean() for name in told)
    assert taught > usual + 0.05
