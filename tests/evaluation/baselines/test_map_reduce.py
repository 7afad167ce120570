"""Map and reduce: one call for each study of a task, one that combines what they quote."""

import pytest

from agents.visit.prompting import payload_of
from chimera.core.errors import ModelError, UnreachableError
from chimera.data.generated.synthesis import generate
from evaluation.baselines.map_reduce import map_reduce
from recipes.nano.synthesis import SOLO, read

ITEM = generate(3, seed=21, levels=(4,))[2]
STUDIES = ITEM.facts.studies


async def ask(society_kit, *script):
    model = society_kit.Model(**{SOLO: list(script)})
    where = {"name": "mapreduce@base", "key": "junior", "quotes": "read", "repeat": 1, "seed": 5}
    return await map_reduce(model, ITEM.task, **where), model.of(SOLO)


async def test_each_study_is_read_alone_and_what_they_quote_together(society_kit):
    readings = [read(ITEM, [study]).model_dump() for study in STUDIES]
    answer, requests = await ask(society_kit, *readings, read(ITEM, STUDIES).model_dump())
    assert (answer.answer, answer.error, answer.calls, answer.repeat) == (ITEM.task.label, None, len(STUDIES) + 1, 1)
    assert answer.prompt_tokens > 0 < answer.completion_tokens
    sources = [payload_of(request.messages)["sources"] for request in requests]
    assert [[source["id"] for source in of_call] for of_call in sources[:-1]] == [[study.id] for study in STUDIES]
    assert sources[-1] == [{"id": study.id, "text": study.finding.sentence} for study in STUDIES]


async def test_a_study_that_cannot_be_read_is_left_out_and_no_last_answer_is_none(society_kit):
    readings = [read(ITEM, [study]).model_dump() for study in STUDIES[1:]]
    answer, requests = await ask(society_kit, "no JSON", *readings, ModelError("overloaded"))
    assert [source["id"] for source in payload_of(requests[-1].messages)["sources"]] == [s.id for s in STUDIES[1:]]
    assert (answer.answer, answer.calls) == (None, len(STUDIES) + 1)
    assert "overloaded" in (answer.error or "")


async def test_where_no_study_can_be_read_nothing_is_combined(society_kit):
    answer, _ = await ask(society_kit, *["no JSON"] * len(STUDIES))
    assert (answer.answer, answer.calls) == (None, len(STUDIES))


async def test_a_lost_server_ends_the_evaluation(society_kit):
    with pytest.raises(UnreachableError):
        await ask(society_kit, UnreachableError("gone"))
