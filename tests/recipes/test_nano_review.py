"""Transcripts on tasks of many studies, and the society that combines findings: what it sends is what they hold."""

import json
import random
import re
from pathlib import Path
from statistics import fmean

import pytest

from agents.findings import FINDINGS, Findings, Part, concluded, counting, gathered, handed_over, share_right, tally
from agents.policies.choice import SelectionSpec, make_selector
from agents.roles import REFINER, ROLES
from agents.tools.toolbox import build_toolbox
from agents.visit.prompting import opening, read_payload, schema_in
from agents.visit.quoting import answer_format
from chimera.core.weighing import weigh
from chimera.data.generated.review import NAMES, counts, generate, vote
from chimera.data.tasks import Dataset
from recipes.nano.review import (
    DATABASES,
    SOLO,
    combination_of,
    document,
    equally,
    finding_of,
    findings_of,
    found_by,
    junior,
    query,
    refiner,
    stream,
)
from recipes.nano.transcripts import Habits
from training.configuration import load_config

ITEMS = generate(40, seed=31)
CONFIG = load_config(Path(__file__).parents[2] / "configs" / "review.yaml")
LARGEST = next(item for item in ITEMS if item.facts.level == 4)


def society_of(society_kit, item, *, leave_out=(), **graph):
    """The society of configs/review.yaml whose roles read as transcripts do; `leave_out`: numbers of findings."""
    documents = Dataset(tuple(item.task for item in ITEMS), (), (), "generated", "test").documents()
    scripts = {REFINER: [lambda: combines(model, item, leave_out)] * 2}
    for role, tool in DATABASES.items():
        scripts[role] = []
        for name in NAMES:
            visits = len(found_by(item, way := (tool, name)))
            scripts[role] += [[(tool, {"query": query(item.facts, way)})], *[lambda: reads(model, item)] * visits]
    model, society = society_kit.Model(**scripts), CONFIG.society
    settings = {"max_tool_calls": 1, "graph": society.graph.model_copy(update=graph).model_dump()}
    return model, society_kit.make(model, build_toolbox(CONFIG.tools, documents, {}), quotes="read", **settings)


async def reads(model, item):
    """A junior's finding of the one study that it has read."""
    (study,) = studies_read(item, model.requests[-1:])
    searched = "search" in read_payload(model.requests[-1].messages[1])
    return findings_of(item.facts, [study], searched=searched).model_dump()


async def combines(model, item, leave_out):
    """The refiner's answer to the findings in the order in which the society hands them over."""
    studies = [study for role in DATABASES for study in studies_read(item, model.of(role))]
    answer = combination_of(item.facts, [finding_of(item.facts, study) for study in studies]).model_dump()
    return {**answer, "studies": [number for number in answer["studies"] if number not in leave_out]}


def studies_read(item, requests):
    by_id = {study.id: study for study in item.facts.studies}
    payloads = [read_payload(request.messages[-1]) for request in requests]
    return [
        by_id[passage["id"]]
        for payload in payloads
        for passage in (*payload.get("results", ()), *payload.get("sources", ()))
    ]


async def test_a_rollout_sends_what_the_transcripts_hold_and_answers_from_every_study(society_kit) -> None:
    model, society = society_of(society_kit, LARGEST)
    state = await society.run(LARGEST.task.brief())
    facts, goal, studies = LARGEST.facts, LARGEST.task.goal, []
    for role in DATABASES:
        requests, read = model.of(role), studies_read(LARGEST, model.of(role))
        of_search, places = len(read) // 2, iter(range(len(requests)))
        for name in NAMES:
            searched = facts.second_name if name != NAMES[0] else None
            opened = junior(LARGEST, role, name, random.Random(1))
            search, first, *others = [requests[next(places)] for _ in range(of_search + 1)]
            assert search.messages[:2] == first.messages[:2] == list(opened.messages[:2])
            for request, study in zip(others, read[1:of_search], strict=True):
                sent = opening(ROLES[role], goal, form=FINDINGS, sources=[document(study)], search=searched)
                assert (request.messages, request.tools) == (sent, [])
            studies += read[:of_search]
            del read[:of_search]
    assert len(studies) == len({study.id for study in studies}) == len(facts.studies) == 16
    (asked, *_) = model.of(REFINER)
    lines = handed_over([finding_of(LARGEST.facts, study) for study in studies])
    assert read_payload(asked.messages[1])["findings"] == lines
    assert asked.messages[0] == refiner(LARGEST, random.Random(1), true=True).messages[0]
    assert state["searches"] == [dict.fromkeys(DATABASES, LARGEST.facts.second_name), {}]
    assert state["selected_hypothesis"]["answer"] == state["refined_hypothesis"]["answer"] == LARGEST.task.label
    sentences = [study.finding.sentence for study in studies if counts(LARGEST.facts, study)]
    assert state["refined_hypothesis"]["evidence"] == sentences
    assert state["turn_count"] == 9  # two juniors twice, and five roles after them


async def test_without_a_policy_juniors_search_once_more(society_kit) -> None:
    _, society = society_of(society_kit, LARGEST, searches=4)
    (choice,) = (await society.run(LARGEST.task.brief()))["choices"]
    about = {"author": "again", "preferred": "again", "policy": "supervisor", "propensities": None}
    assert choice == {**choice, **about}
    assert choice["cues"] == {**choice["cues"], "findings": 8, "rounds": 1, "named": 2}


@pytest.mark.parametrize("seed", range(6))
async def test_an_explored_search_is_drawn_and_recorded_and_the_answer_is_that_of_the_findings(
    society_kit, seed
) -> None:
    _, society = society_of(society_kit, LARGEST)
    explored = make_selector(SelectionSpec(None, None, 1.0))
    state = await society.run(LARGEST.task.brief(), seed, select=explored)
    (drawn,) = state["choices"]
    assert drawn["propensities"] == {"again": 0.5, "combined": 0.5}
    rounds = 2 if drawn["author"] == "again" else 1
    assert len(state["searches"]) == rounds
    assert len(gathered(state["initial_hypotheses"])) == 8 * rounds
    assert (state["selection"]["author"], state["selection"]["policy"]) == ("combined", "combined")


def test_each_of_several_findings_is_of_its_passage_and_quotes_it() -> None:
    studies = LARGEST.facts.studies[:4]
    messages = opening(ROLES[SOLO], LARGEST.task.goal, form=FINDINGS, sources=[document(study) for study in studies])
    answer = answer_format(ROLES[SOLO], messages, "read")
    schema = answer["json_schema"]["schema"]["properties"]["findings"]
    read = {passage["id"]: passage["text"] for passage in read_payload(messages[1])["sources"]}
    assert [item["properties"]["study"]["const"] for item in schema["prefixItems"]] == list(read)
    assert schema["minItems"] == schema["maxItems"] == len(read) == 4
    for item in schema["prefixItems"]:
        passage = read[item["properties"]["study"]["const"]]
        assert all(quote in passage for quote in item["properties"]["quote"]["enum"])
    names = answer["json_schema"]["schema"]["properties"]["search"]["enum"]
    assert {"", LARGEST.facts.second_name} < set(names)
    assert all(any(name in passage for passage in read.values()) for name in names)


async def test_without_a_second_round_or_a_refiner_the_rule_answers_from_what_was_read(society_kit) -> None:
    _, society = society_of(society_kit, LARGEST, searches=1, refine=False)
    state = await society.run(LARGEST.task.brief())
    read = [study for study in LARGEST.facts.studies if study.name == NAMES[0]]
    assert {finding["study"] for finding in gathered(state["initial_hypotheses"])} == {study.id for study in read}
    assert state["refined_hypothesis"]["answer"] == weigh(vote(LARGEST.facts, study) for study in read)
    assert REFINER not in state["messages"]


async def test_the_board_sends_back_an_answer_that_leaves_a_study_out_or_adds_wrongly(society_kit) -> None:
    from chimera.rubric.reviews import peer_review

    model, society = society_of(society_kit, LARGEST)
    first, *_ = all_counting = (await society.run(LARGEST.task.brief()))["refined_hypothesis"]["studies"]
    model, society = society_of(society_kit, LARGEST, leave_out=[first])
    await society.run(LARGEST.task.brief())
    payload = read_payload(model.of("PeerReviewer")[0].messages[1])
    review = peer_review(payload)
    assert review["severity"] == "CRITICAL"
    assert any(f" {first}" in issue and "left out" in issue for issue in review["issues"])
    payload["hypothesis"]["studies"] = all_counting
    assert not any("left out" in issue or "wrong" in issue for issue in peer_review(payload)["issues"])
    clauses = payload["hypothesis"]["comparison"].split("; ")
    for wrong in ([*clauses[:2], clauses[2] + "0", *clauses[3:]], clauses[:2], clauses[:2] * 2):
        payload["hypothesis"]["comparison"] = "; ".join(wrong)
        assert "wrongly: finding 3" in peer_review(payload)["issues"][0]
    payload["hypothesis"]["comparison"] = "The trials say yes; the cohorts do not."
    assert not any("wrong" in issue for issue in peer_review(payload)["issues"])


@pytest.mark.parametrize("item", ITEMS[:12], ids=lambda item: item.task.id)
def test_findings_are_right_one_by_one_and_together_give_the_label(item) -> None:
    findings = [finding_of(item.facts, study) for study in item.facts.studies]
    assert concluded(findings)["answer"] == item.task.label
    by_second = [study for study in item.facts.studies if study.name == NAMES[0]][:4]
    answer = Findings(findings=[finding_of(item.facts, study) for study in by_second], search="")
    votes = [vote(item.facts, study) for study in by_second]
    assert share_right(answer, votes) == 1
    (wrong, *others) = answer.findings
    other = {"yes": "no", "no": "yes", "maybe": "yes"}[wrong.answer]
    parts = dict.fromkeys(("group", "condition", "outcome"), Part(says="x", asked="x", same=True))
    changed = wrong.model_copy(update={"answer": other, "retracted": False, **parts})
    worse = answer.model_copy(update={"findings": [changed, *others]})
    assert share_right(worse, votes) == 1 - 1 / len(votes)


def test_a_tally_adds_up_and_says_of_the_others_why_they_do_not_count() -> None:
    def finding(design, size, answer, *, retracted=False, group=True, condition=True, outcome=True):
        parts = {"group": {"same": group}, "condition": {"same": condition}, "outcome": {"same": outcome}}
        return {"study": "", "design": design, "size": size, "answer": answer, "retracted": retracted, **parts}

    findings = [
        finding("trial", 400, "yes"),
        finding("cohort", 398, "no", retracted=True, condition=False),
        finding("cohort", 398, "maybe"),
        finding("trial", 398, "no"),
        finding("trial", 398, "no"),
        finding("trial", 398, "no", outcome=False),
        finding("trial", 398, "no", group=False),
        finding("trial", 398, "no", condition=False),
    ]
    first = "1 large trial yes 4 yes 4; 2 retracted; 3 small cohort maybe 1 yes 4; 4 small trial no 2 yes 2"
    last = "5 small trial no 2 maybe 0; 6 other outcome; 7 other population; 8 other population"
    assert tally(findings) == f"{first}; {last}"
    assert tally(findings, equally).startswith("1 large trial yes 1 yes 1; 2 retracted; 3 small cohort maybe 1 yes 1")
    assert tally([]) == "no study"


@pytest.mark.parametrize("item", ITEMS[:8], ids=lambda item: item.task.id)
def test_a_hasty_reader_errs_in_what_does_not_count_and_in_nothing_else(item) -> None:
    careful, hasty = (findings_of(item.facts, item.facts.studies[:4], hasty=hasty) for hasty in (False, True))
    before, after = ([finding.model_dump() for finding in answer.findings] for answer in (careful, hasty))
    assert counting(after) == [1, 2, 3, 4]
    alike = [number for number, finding in enumerate(before, start=1) if finding == after[number - 1]]
    assert alike == counting(before)
    assert [finding["quote"] for finding in before] == [finding["quote"] for finding in after]


def test_as_many_readers_are_hasty_and_refiners_weigh_equally_as_the_habits_say() -> None:
    habits = Habits(hasty_reader=0.5, equal_refiner=0.5)
    answers = [
        (transcript.role, json.loads(transcript.messages[-1]["content"]))
        for transcript in stream(iter(generate(200, seed=33, levels=(4,))), 5, habits)
    ]
    tallies = [answer["comparison"] for role, answer in answers if role == REFINER]
    assert 0.4 < fmean(bool(re.search(r"(yes|no|maybe) [24] ", text)) for text in tallies) < 0.6
    of_readers = [answer["findings"] for role, answer in answers if role in DATABASES]
    assert 0.1 < fmean(len(counting(findings)) < len(findings) for findings in of_readers) < 0.65


def test_every_transcript_fits_its_schema_and_quotes_its_prompt() -> None:
    roles = set()
    for transcript in stream(iter(generate(120, seed=32)), 3, Habits.none()):
        roles.add(transcript.role)
        for place, message in enumerate(transcript.messages):
            if message["role"] == "assistant" and message["content"]:
                before = transcript.messages[:place]
                answer = schema_in(ROLES[transcript.role], before).model_validate_json(message["content"])
                prompt = json.dumps([earlier["content"] for earlier in before], ensure_ascii=False)
                assert all(quote in prompt for quote in answer.quotes)
    assert roles == {*DATABASES, REFINER, "ProtocolDesigner"}
