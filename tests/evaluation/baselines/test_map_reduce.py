"""Map and reduce: one call for each study of a task, one that combines what they quote, or weighs their findings."""

import pytest

from agents.findings import COMBINATION, FINDINGS, handed_over
from agents.roles import REFINER
from agents.visit.prompting import payload_of
from chimera.core.errors import ModelError, UnreachableError
from chimera.data.generated.review import generate
from evaluation.baselines.map_reduce import map_reduce
from recipes.nano.review import SOLO, combination_of, finding_of, findings_of

ITEM = generate(3, seed=21, levels=(1,))[2]
STUDIES = ITEM.facts.studies
ALL = [finding_of(ITEM.facts, study) for study in STUDIES]


def hypothesis(*studies):
    evidence = [study.finding.sentence for study in studies][:3]
    return {"evidence": evidence, "comparison": "x", "claim": "x", "answer": ITEM.task.label}


async def ask(society_kit, *script, form=None, last=()):
    model = society_kit.Model(**{SOLO: list(script), REFINER: list(last)})
    where = {
        "name": "mapreduce@base",
        "key": "junior",
        "combiner": "senior",
        "quotes": "read",
        "form": form,
        "repeat": 1,
        "seed": 5,
    }
    return await map_reduce(model, ITEM.task, **where), model


async def test_each_study_is_read_alone_and_what_they_quote_together(society_kit):
    answer, model = await ask(society_kit, *(hypothesis(study) for study in STUDIES), hypothesis(*STUDIES))
    assert (answer.answer, answer.error, answer.calls, answer.repeat) == (ITEM.task.label, None, len(STUDIES) + 1, 1)
    assert answer.prompt_tokens > 0 < answer.completion_tokens
    sources = [payload_of(request.messages)["sources"] for request in model.of(SOLO)]
    assert [[source["id"] for source in of_call] for of_call in sources[:-1]] == [[study.id] for study in STUDIES]
    assert sources[-1] == [{"id": study.id, "text": study.finding.sentence} for study in STUDIES]


async def test_where_the_society_combines_findings_so_does_the_last_call(society_kit):
    findings = [findings_of(ITEM.facts, [study]).model_dump() for study in STUDIES]
    combination = combination_of(ITEM.facts, ALL).model_dump()
    answer, model = await ask(society_kit, *findings, form=FINDINGS, last=[combination])
    assert (answer.answer, answer.error, answer.calls) == (ITEM.task.label, None, len(STUDIES) + 1)
    assert [payload_of(request.messages)["form"] for request in model.of(SOLO)] == [FINDINGS] * len(STUDIES)
    (request,) = model.of(REFINER)
    assert [asked.key for asked in model.requests] == ["junior"] * len(STUDIES) + ["senior"]
    assert payload_of(request.messages) == {"form": COMBINATION, "findings": handed_over(ALL), "goal": ITEM.task.goal}


@pytest.mark.parametrize("form", [None, FINDINGS])
async def test_a_study_that_cannot_be_read_is_left_out_and_no_last_answer_is_none(society_kit, form):
    of_one = (lambda study: findings_of(ITEM.facts, [study]).model_dump()) if form else hypothesis
    failure = ModelError("overloaded")
    script = ["no JSON", *map(of_one, STUDIES[1:])]
    answer, model = await ask(society_kit, *script, failure, form=form, last=[failure])
    payload = payload_of(model.requests[-1].messages)
    assert len(payload["findings" if form else "sources"]) == len(STUDIES) - 1
    assert (answer.answer, answer.calls) == (None, len(STUDIES) + 1)
    assert "overloaded" in (answer.error or "")


async def test_where_no_study_can_be_read_nothing_is_combined(society_kit):
    answer, _ = await ask(society_kit, *["no JSON"] * len(STUDIES))
    assert (answer.answer, answer.calls) == (None, len(STUDIES))


async def test_a_lost_server_ends_the_evaluation(society_kit):
    with pytest.raises(UnreachableError):
        await ask(society_kit, UnreachableError("gone"))
