"""The planted server: what its prompts hold decides what it gets right, and the same request gets the same answer."""

import json
from dataclasses import replace
from functools import cache

import httpx
import pytest
from jsonschema import validate
from web_kit import planted_server

from agents.roles import ROLES
from agents.visit.prompting import opening, schema_format
from agents.visit.quoting import answer_format
from agents.visit.sources import given_sources
from chimera.data.tasks import load
from chimera.planted import HABITS, SENTENCES, Planted
from training.configuration import load_config
from training.guidance.writer import INSTRUCTIONS, LESSONS

PLANTED = Planted(noise=0.0)
HYPOTHESIS = {"evidence": ["It fell."], "comparison": "lower", "claim": "It fell.", "answer": "no"}


@cache
def tasks():
    return load(load_config().data).train[:120]


def request(role, task, **inputs):
    messages = opening(role, task.goal, **{"sources": given_sources(task.brief()), **inputs})
    return {"messages": messages, "response_format": answer_format(role, messages, "read"), "seed": 1}


def respond(sent, planted=PLANTED):
    return json.loads(planted.respond(sent)["choices"][0]["message"]["content"])


def right(role=ROLES["Geneticist"], label=None, **inputs):
    alike = [task for task in tasks() if label in (None, task.label)]
    return sum(respond(request(role, task, **inputs))["answer"] == task.label for task in alike) / len(alike)


@pytest.mark.parametrize("name", ROLES)
def test_every_role_gets_an_answer_of_its_schema(name):
    handed = {"hypothesis": HYPOTHESIS} if name not in ("Geneticist", "Pharmacologist", "Neurologist") else {}
    sent = request(ROLES[name], tasks()[0], **handed)
    validate(respond(sent), sent["response_format"]["json_schema"]["schema"])


def test_the_same_request_gets_the_same_answer_and_another_seed_another_id():
    sent = request(ROLES["Geneticist"], tasks()[0])
    assert PLANTED.respond(sent) == PLANTED.respond(sent)
    assert PLANTED.respond(sent)["id"] != PLANTED.respond({**sent, "seed": 2})["id"]


@pytest.mark.parametrize("label", HABITS)
def test_a_habit_in_prompt_lesson_or_skill_mends_its_kind_of_task_and_no_other(label):
    word, role = HABITS[label], ROLES["Geneticist"]
    before = {kind: right(label=kind) for kind in HABITS}
    assert before[label] < 0.8
    for told in ({"lessons": [f"Mind the {word}."]}, {"skills": [{"name": "n", "when": "w", "do": word}]}):
        assert {kind: right(label=kind, **told) for kind in HABITS} == {**before, label: 1.0}
    assert right(replace(role, prompt=f"{role.prompt}\n{word}"), label=label) == 1.0


def test_examples_help_with_tasks_that_are_answered_like_them():
    shown = [{"goal": f"g{number}", "answer": "no"} for number in range(3)]
    assert right(label="no", examples=shown[:1]) > right(label="no") + 0.3
    assert right(label="no", examples=shown) >= right(label="no", examples=shown[:1])
    assert right(label="maybe", examples=shown) == right(label="maybe")


def test_the_refiner_keeps_what_it_is_handed():
    assert respond(request(ROLES["HypothesisRefiner"], tasks()[0], hypothesis=HYPOTHESIS))["answer"] == "no"


@pytest.mark.parametrize("writer", [LESSONS, INSTRUCTIONS], ids=lambda role: role.name)
@pytest.mark.parametrize("label", HABITS)
def test_what_is_written_may_help_with_the_failures_that_are_shown(writer, label):
    messages = opening(writer, "Write.", prompt="Old.", failures=[{"goal": "g", "right": label}])
    form = schema_format(writer.schema.__name__, writer.schema.model_json_schema())
    written = [json.dumps(respond({"messages": messages, "response_format": form, "seed": seed})) for seed in range(30)]
    helpful = {kind: sum(SENTENCES[kind] in text for text in written) for kind in HABITS}
    assert 0 < helpful.pop(label) < 30
    assert not any(helpful.values())


def test_noise_is_a_share_of_answers_that_nothing_mends():
    everything = list(SENTENCES.values())
    noisy = Planted(noise=0.2)
    answers = [respond(request(ROLES["Geneticist"], task, lessons=everything), noisy)["answer"] for task in tasks()]
    wrong = sum(answer != task.label for answer, task in zip(answers, tasks(), strict=True)) / len(tasks())
    assert 0.1 < wrong < 0.3


def test_it_answers_over_http_and_refuses_what_is_no_conversation():
    with planted_server() as url:
        sent = request(ROLES["Supervisor"], tasks()[0])
        assert httpx.post(f"{url}/chat/completions", json=sent).json() == Planted().respond(sent)
        assert httpx.get(f"{url}/models").json()["data"][0]["id"] == "planted"
        assert httpx.post(f"{url}/chat/completions", json={"messages": []}).status_code == 400
