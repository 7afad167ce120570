"""The recipes of the documentation do what they say: executed from its text, each in a copy of the checkout."""

import gzip
import json
import re
import shutil

import pytest
import recipe_kit as kit
from message_kit import refused

pytestmark = pytest.mark.whole

SMALLER = ("rollouts.concurrency=2", "data.size=60")


@pytest.fixture
def checkout(tmp_path):
    return kit.copy_checkout(tmp_path / "chimera")


def recipe(page, title, folder):
    """Apply the recipe's blocks in `folder`; returns its commands."""
    text = kit.section(page, title)
    kit.apply(text, folder)
    found = kit.commands(text)
    assert found
    return found


def rollouts(folder, name):
    lines = (folder / "runs" / name / "rollouts" / "gather.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def traces(folder, name):
    for file in (folder / "runs" / name / "traces").rglob("*.jsonl.gz"):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def test_a_role_that_is_added_speaks_and_is_heard(checkout):
    ask, train = recipe("docs/extending.md", "Add a role", checkout)
    assert re.search(r"Statistician advises\s+sample size +\d+", kit.run(ask, checkout))
    kit.run(train, checkout, *SMALLER)
    done = rollouts(checkout, "statistician")
    assert [one["status"] for one in done] == ["succeeded"] * 4
    for one in done:
        assert set(one["outputs"]["advice"]["Statistician"]) == {"sample_size", "reason"}
        assert one["visits"]["Statistician/1"]["calls"] >= 1
    prompts = [str(span["attributes"]) for span in traces(checkout, "statistician")]
    assert any("You are the ProtocolDesigner" in text and "advice" in text for text in prompts)


def test_what_a_role_is_told_stands_in_its_prompts(checkout):
    ask, train = recipe("docs/extending.md", "Tell a role something", checkout)
    shutil.copytree(checkout / "chimera/assets/nano", checkout / "my-model")
    template = checkout / "my-model" / "chat_template.jinja"
    template.write_text(template.read_text(encoding="utf-8").replace(".split('\\n')[0]", ""), encoding="utf-8")
    assert re.search(r"Geneticist: (yes|no|maybe)", kit.run(ask, checkout))
    kit.run(train, checkout, *SMALLER)
    assert [one["status"] for one in rollouts(checkout, "told")] == ["succeeded"] * 4
    prompts = [str(span["attributes"]) for span in traces(checkout, "told")]
    for role, said in (("Geneticist", "Check whether the result is significant"), ("ProtocolDesigner", "in concrete")):
        assert any(f"You are the {role}" in text and said in text for text in prompts)
    assert not any("You are the HypothesisRefiner" in text and "lessons" in text for text in prompts)


def test_who_works_in_which_order_is_data(checkout):
    check, train, draw = recipe("docs/extending.md", "Change who works, and in which order", checkout)
    assert "nothing was started" in kit.run(check, checkout)
    kit.run(train, checkout, *SMALLER)
    done = rollouts(checkout, "debate")
    assert [(one["status"], one["outputs"]["debates"]) for one in done] == [("succeeded", 2)] * 4
    assert "society.svg" in kit.run(draw, checkout)
    assert (checkout / "society.png").is_file()


def test_what_learns_without_weights_is_checked_and_says_what_it_takes(checkout):
    (check,) = recipe("docs/extending.md", "Learn what roles are told", checkout)
    printed = kit.run(check, checkout)
    assert "lessons takes at most 200 rollouts, 2,000,000 tokens" in printed
    assert "gepa takes at most 150 rollouts" in printed


def test_a_guarded_society_runs_and_says_how_it_fares_while_tools_fail(checkout):
    train, evaluate = recipe("docs/extending.md", "Guard it", checkout)
    kit.run(train, checkout, *SMALLER)
    kit.run(evaluate, checkout, "evaluation.self_consistency=false")
    report = (checkout / "runs" / "guarded" / "report" / "report.md").read_text(encoding="utf-8")
    assert "## When tools fail" in report
    assert {one["outputs"]["final_veto"] for one in rollouts(checkout, "guarded")} == {None}


def test_a_junior_that_is_added_proposes(checkout):
    (ask,) = recipe("docs/extending.md", "Add a junior", checkout)
    assert re.search(r"Epidemiologist: (yes|no|maybe)", kit.run(ask, checkout))


def test_a_tool_that_is_added_is_offered_to_its_role_only(checkout):
    doctor, train = recipe("docs/extending.md", "Add a tool", checkout)
    said = kit.run(doctor, checkout)
    assert re.search(r"ok +tools: my_tools:number_need\w+ +called with .*it returned", said)
    assert "my_tools:number_need" in said
    kit.run(train, checkout, *SMALLER)
    asked = [str(span["attributes"]) for span in traces(checkout, "tool")]
    offered = [text for text in asked if "Compute the number needed to treat" in text]
    assert offered
    assert all("You are the Geneticist" in text for text in offered)
    assert {one["status"] for one in rollouts(checkout, "tool")} == {"succeeded"}


def test_an_algorithm_that_is_added_trains_its_roles(checkout):
    (train,) = recipe("docs/extending.md", "Add an algorithm", checkout)
    said = kit.run(train, checkout, "rollouts.concurrency=2")
    assert "conversations are above the mean" in said
    events = [json.loads(line) for line in (checkout / "runs/mine/ledger.jsonl").read_text().splitlines()]
    (learned,) = [event for event in events if event["event"] == "phase_learned"]
    assert learned["policy"]["version"] == "junior@mine"
    (go_on,) = re.findall(
        r"`(python -m chimera\.train --resume [^`]+)`", kit.section("docs/extending.md", "Add an algorithm")
    )
    kit.run(go_on, checkout)
    last = [json.loads(line) for line in (checkout / "runs/mine/ledger.jsonl").read_text().splitlines()]
    (resumed,) = [event for event in last if event["event"] == "resumed"]
    assert "changed" not in resumed


def test_a_model_of_your_own_plays_the_roles(checkout):
    save, doctor, ask = recipe("docs/models.md", "Bring your model", checkout)
    kit.run(save, checkout)
    assert (checkout / "my-model" / "model.safetensors").is_file()
    assert "the configured run can work" in kit.run(doctor, checkout)
    said = kit.run(ask, checkout)
    assert "my-model: junior, supervisor" in said
    assert "Answer: " in said


def test_data_of_your_own_are_read_and_played(checkout):
    show, ask, train = recipe("docs/data.md", "Bring your data", checkout)
    assert "your data, my_questions.csv, seed 0: 4 train / 3 validation / 3 test" in kit.run(show, checkout)
    said = kit.run(ask, checkout)
    assert "answer key: yes" in said
    assert "Answer: " in said
    kit.run(train, checkout, "rollouts.concurrency=2")
    done = rollouts(checkout, "my-data")
    assert [(one["source"], one["status"]) for one in done] == [("own", "succeeded")] * 3


def test_a_block_that_no_longer_fits_the_code_is_noticed(checkout):
    text = '```diff title="agents/roles.py"\n a line that is not there\n+another\n```\n'
    with refused(AssertionError, "agents/roles.py", "0 times", lines=None):
        kit.apply(text, checkout)


REVISED = """
import asyncio, sys
sys.path.append(sys.argv[1])
from conftest import APPROVAL, SOCIETY_ANSWERS, FakeToolbox, ScriptedSocietyModel
from agents.society import Society
from chimera.config.roles import RolesConfig
from chimera.config.sections.society import SocietyConfig
from chimera.core.types import Brief

async def evaluate(state, brief):
    return {}

def review(severity):
    return {"issues": ["again"], "severity": severity, "verdict": "REVISE"}

SOCIETY_ANSWERS["Statistician"] = {"sample_size": 77, "reason": "power"}
model = ScriptedSocietyModel(PeerReviewer=[review("CRITICAL")], SafetyOfficer=[APPROVAL, review("MAJOR")])
config = SocietyConfig(quotes="free", refiner_max_chars=0)
society = Society(model, FakeToolbox(), config, RolesConfig(), evaluate=evaluate)
state = asyncio.run(society.run(Brief("1", "Does it help?", ()), 0))
visits = [len(model.of(role)) for role in ("HypothesisRefiner", "Statistician", "ProtocolDesigner")]
told = [request.messages[1]["content"] for request in model.of("ProtocolDesigner")]
heard = ['"advice":{"Statistician":{"sample_size":77' in text for text in told]
print(visits, state["critical_revisions"], state["major_revisions"], heard, state["advice"])
"""


def test_an_adviser_works_again_in_each_revision_and_counts_none(checkout):
    """One CRITICAL and one MAJOR revision: three protocols, each after advice, and each revision counted once."""
    recipe("docs/extending.md", "Add a role", checkout)
    (checkout / "revised.py").write_text(REVISED)
    said = kit.run(f"python revised.py {kit.ROOT / 'tests'}", checkout)
    assert said.splitlines()[-1] == (
        "[2, 3, 3] 1 1 [True, True, True] {'Statistician': {'sample_size': 77, 'reason': 'power'}}"
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    Statistician: RoleConfig", "    Another: RoleConfig", ("Statistician", "agents/roles.py", "no slot")),
        ("advises=DESIGNER", 'advises="Geneticist"', ("advises Geneticist", "reads no advice")),
        ('{"advice": {**state.get("advice", {}), role', '{"notes": {role', ("Statistician", "notes")),
    ],
)
def test_a_role_that_is_half_added_is_an_error_in_words(checkout, old, new, sentence):
    recipe("docs/extending.md", "Add a role", checkout)
    found = [file for file in checkout.rglob("*.py") if old in file.read_text(encoding="utf-8")]
    assert len(found) == 1
    found[0].write_text(found[0].read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    (checkout / "revised.py").write_text(REVISED)
    with refused(AssertionError, sentence, lines=None):
        kit.run(f"python revised.py {kit.ROOT / 'tests'}", checkout)
