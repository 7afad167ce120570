"""Faults that an evaluation puts into tools: which calls meet them, and what the society makes of it."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from report_kit import PLAN, STAGES, make_record, write_run

from agents.visit.record import ToolUse, count
from chimera.core.types import Brief
from chimera.run.jsonl import append_line
from evaluation.causes.faults import faults
from evaluation.conduct.recorded_study import load_study
from evaluation.records.recorded import own_phase
from evaluation.report.build import build
from evaluation.report.content import text
from evaluation.rollout.faults import FAULTS, UNRELATED, FaultyTools

BRIEF = Brief("1", "Does it?", ())
SEARCH = "literature_search"


async def met(tools, calls, seed=0, share=0.5):
    tools.begin(seed, share)
    return [(await tools.call(SEARCH, {"query": query}, brief=BRIEF)).fault for query in calls]


async def test_the_same_rollout_meets_the_same_faults_in_whatever_order_it_calls(society_kit):
    queries = [f"q{number}" for number in range(40)]
    tools = FaultyTools(society_kit.Toolbox())
    first, second = await met(tools, queries), await met(tools, queries[::-1])
    assert first == second[::-1] == await met(FaultyTools(society_kit.Toolbox()), queries)
    assert first != await met(tools, queries, seed=1)


@pytest.mark.parametrize(("share", "faulty"), [(0.0, 0), (1.0, 30)])
async def test_none_or_all_calls_fail(society_kit, share, faulty):
    toolbox = society_kit.Toolbox()
    found = await met(FaultyTools(toolbox), [f"q{number}" for number in range(30)], share=share)
    assert sum(fault is not None for fault in found) == faulty
    assert len(toolbox.calls) == 30 - faulty


async def test_a_call_that_is_repeated_is_drawn_anew(society_kit):
    found = await met(FaultyTools(society_kit.Toolbox()), ["same"] * 40)
    assert 5 < sum(fault is None for fault in found) < 35


async def test_every_kind_comes_and_says_what_it_is_or_seems_to_succeed(society_kit):
    tools = FaultyTools(society_kit.Toolbox())
    tools.begin(3, 1.0)
    results = [await tools.call(SEARCH, {"query": f"q{number}"}, brief=BRIEF) for number in range(60)]
    assert set(Counter(result.fault for result in results)) == set(FAULTS)
    for result in results:
        assert result.ok == (result.error is None) == (result.fault in ("empty", "unrelated"))
        assert [passage.text for passage in result.passages] == ([UNRELATED] if result.fault == "unrelated" else [])


@pytest.mark.parametrize("tool", ["literature_search", "protein_lookup", "gene_ontology"])
async def test_of_thirty_faults_a_tool_each_is_recovered_from_or_said(society_kit, tool):
    """A role that asks again recovers, unless its second call fails too; no rollout is lost."""
    totals, right = Counter(), []
    for seed in range(40):
        tools, records = FaultyTools(society_kit.Toolbox()), []
        tools.begin(seed, 0.6)
        model = society_kit.Model(Geneticist=[[(tool, {"query": "a"})], [(tool, {"query": "b"})]])
        state = await society_kit.make(model, tools, observe=records.append, max_tool_calls=2).run(society_kit.brief)
        uses = [record for record in records if isinstance(record, ToolUse)]
        right.append(uses[0].fault is not None and uses[1].fault is None)
        totals.update(count(records))
        assert state["final_decision"] == "GO"
        shown = [
            json.loads(message["content"]) for message in state["messages"]["Geneticist"] if message["role"] == "tool"
        ]
        assert [bool(FAULTS.get(use.fault or "")) for use in uses] == ["error" in content for content in shown]
    put = sum(number for name, number in totals.items() if name.startswith(f"faults/{tool}/"))
    assert put >= 30
    assert sum(number for name, number in totals.items() if name.startswith(f"recovered/{tool}/")) == sum(right) > 0


async def test_workers_beside_each_other_do_not_mix_their_faults(society_kit):
    queries = [f"q{number}" for number in range(20)]
    alone = [await met(FaultyTools(society_kit.Toolbox()), queries, seed=seed) for seed in range(4)]
    assert (
        await asyncio.gather(*(met(FaultyTools(society_kit.Toolbox()), queries, seed=seed) for seed in range(4)))
        == alone
    )


def test_the_report_says_what_was_put_recovered_and_lost(tmp_path):
    run = write_run(tmp_path)
    stage = replace(STAGES[1], name="faults-30", own_name="", title="after sft, failing", kind="faults", faults=0.3)
    plan = replace(PLAN, stages=(*PLAN.stages, stage))
    for number in range(len(plan.tasks)):
        counts = {"faults/literature_search/empty": 2, "recovered/literature_search/empty": number % 2}
        made = make_record(STAGES[1], number, run.config.reward.model_dump())
        made = replace(made, rollout_id=f"f{number}", phase=own_phase("val", stage))
        append_line(run.rollouts_file(made.phase), replace(made, counts={**made.counts, **counts}).dump())
    study = load_study(run, plan)
    found = faults(study)
    assert found is not None
    assert found["rows"] == [{"fault": "literature_search/empty", "put": 24, "recovered": 6}]
    assert found["share"]["mean"] == 0.25
    assert (found["hit"], found["failed"]) == (12, 0)
    assert found["right"] == found["right_before"]
    assert study.plan.final.name == "sft"
    report = build(study, [], run.path / "report")
    assert "sft:faults-30" in report["comparisons"]
    assert "25.0 %" in text(report)
