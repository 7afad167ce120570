"""The bench over a real lab with the bundled model: branches, candidates, replays, questions, each made only once."""

import asyncio
import inspect
import json
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_bench import FakeBench
from lab_kit import PATIENCE, config_for, open_lab
from record_kit import answered
from safetensors.torch import load_file, save_file

from agents.policies.bandit import BanditPolicy, Settings
from agents.roles import ROLES
from agents.visit.prompting import schema_format
from chimera.config.roles import JUNIORS
from chimera.config.sections.bundled import NANO
from chimera.config.tree import Config
from chimera.core.errors import ModelError, RunError
from chimera.data.tasks import load
from chimera.run.jsonl import read_lines
from chimera.run.policies import Policy
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutInput
from training.algorithms.bandit import BanditSettings
from training.bench.lab_bench import LabBench
from training.bench.replays import Replays
from training.lab.candidates import phase_of
from training.learning.base import Bench

pytestmark = pytest.mark.whole

REFINER = "HypothesisRefiner"
K = 5
REPLAYED = 18
QUESTION = [{"role": "user", "content": "Is it?"}]
YES_OR_NO = schema_format("Answer", {"enum": ["yes", "no"]})
PRICES = {"refiner": [1.0, 2.0]}


def small(folder):
    return Config.model_validate(
        {
            "runs_dir": folder,
            "data": {"size": 40},
            "society": {"node_retries": 0},
            "rollouts": {"concurrency": 2, "timeout_s": PATIENCE, "exploration": 0.0},
            # Replays are sampled as training is, so rollouts that they shall repeat are too.
            "evaluation": {"prices": PRICES, "temperature": None},
        }
    )


def other_weights(run, name):
    """The bundled model with other numbers in it, as a phase would have left it."""
    policy = Policy.made("weights", "refiner", name)
    folder = run.path / policy.folder
    folder.mkdir(parents=True)
    for file in NANO.iterdir():
        if file.suffix in (".json", ".jinja"):
            (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(NANO / "model.safetensors")
    changed = {key: value * (1.02 if "mlp" in key else 1.0) for key, value in weights.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    seal(run, policy.folder)
    return policy


def other_chooser(run):
    policy = Policy.made("choice", "Supervisor", "chooser")
    BanditPolicy(Settings.of(BanditSettings(), 0)).save(run.path / policy.folder)
    seal(run, policy.folder)
    return policy


async def all_of(episodes):
    return [episode async for episode in episodes]


def lines(run, file):
    return list(read_lines(run.path / "phases" / "tried" / file))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a phase called `tried` got from its bench, and what was on disk before it asked for the same again."""
    config = small(tmp_path_factory.mktemp("runs"))
    tasks = load(config.data).tasks

    async def scenario():
        async with open_lab(None, None, tasks, config=config) as lab:
            bench, run = LabBench(lab, "tried"), lab.run
            inputs = [RolloutInput.of(task, "gather", 0, 0) for task in tasks]
            gathered = await all_of(bench.rollouts(inputs[:4]))
            held_out = [record async for record in lab.held_out(inputs[4:REPLAYED], "base")]
            episodes = [*gathered, *(lab.episode(record) for record in held_out)]
            weights, chooser = other_weights(run, "candidate"), other_chooser(run)
            found = SimpleNamespace(run=run, episodes=episodes, weights=weights, chooser=chooser, lab=lab)

            async def use(bench):
                call = gathered[0].calls([REFINER])[-1]
                first = gathered[0].calls([ROLES["Geneticist"].name])[0]
                tried = [RolloutInput.of(task, "tried", 0, 0) for task in tasks[:3]]
                beside, alone = await asyncio.gather(
                    all_of(bench.rollouts(tried, instead=[weights, chooser])), all_of(bench.rollouts(inputs[:3]))
                )
                other = {**gathered[0].record.outputs["selected_hypothesis"], "answer": "maybe"}
                places = zip(episodes, cycle(ROLES), strict=False)
                return SimpleNamespace(
                    call=call,
                    branches=await bench.branch(call, K, seed=1),
                    others=await bench.branch(call, K, seed=2),
                    searches=await bench.branch(first, K, seed=1),
                    beside=beside,
                    alone=alone,
                    replays=await asyncio.gather(*(bench.replay(one, at=at) for one, at in places)),
                    counterfactual=await bench.replay(gathered[0], at=REFINER, instead={"selected_hypothesis": other}),
                    candidate=await bench.replay(gathered[0], at=REFINER, policies=[weights]),
                    answer=await bench.ask("junior", QUESTION, response_format=YES_OR_NO, seed=3),
                    spent=bench.spent(),
                )

            found.first = await use(bench)
            found.versions = lab.servers.versions()
            with pytest.raises(ModelError) as found.gone:
                lab.servers.remove_candidate(f"senior~{weights.version}")
            found.files = {file: file.read_bytes() for file in run.path.glob("*/**/*.jsonl")}
            found.again = await use(LabBench(lab, "tried"))
            impossible = [
                bench.replay(episodes[0], at="Judge"),
                bench.replay(episodes[0], at=REFINER, instead={"hypothesis": 1}),
                bench.ask("teacher", []),
            ]
            found.refusals = []
            for asked in impossible:
                with pytest.raises(RunError) as error:
                    await asked
                found.refusals.append(str(error.value))
        return found

    return asyncio.run(scenario())


@pytest.mark.parametrize("kind", [LabBench, FakeBench])
def test_the_bench_and_the_fake_of_it_are_what_algorithms_are_promised(kind):
    methods = {name: one for name, one in vars(Bench).items() if callable(one) and not name.startswith("_")}
    assert {"rollouts", "episodes", "branch", "replay", "ask", "publish", "weights", "spent"} <= set(methods)
    for name, promised in methods.items():
        _, *ours = inspect.signature(getattr(kind, name)).parameters.values()
        _, *theirs = inspect.signature(promised).parameters.values()
        assert [(one.name, one.kind) for one in ours] == [(one.name, one.kind) for one in theirs], name


def test_branches_are_answers_to_the_same_tokens_each_with_a_seed_of_its_own(seen):
    for branches in (seen.first.branches, seen.first.others):
        assert len(branches) == K
        assert {one.prompt_ids for one in branches} == {seen.first.call.prompt_ids}
        assert {one.weights_version for one in branches} == {"nano@0"}
        assert len({one.response_id for one in branches}) == K
    asked = [line["request"]["seed"] for line in lines(seen.run, "calls.jsonl") if line["kind"] == "branch"]
    assert len(set(asked)) == len(asked) == 3  # The answers may still be equal: the model is sure of some of them.


def test_a_branch_can_be_scored_and_imitated(seen):
    conversation = seen.episodes[0].conversations([REFINER])[-1]
    for branch in seen.first.branches:
        assert branch.answer.stance in ("yes", "no", "maybe")
        assert branch.answer.quotes
        talk = conversation.answered_by(branch)
        assert talk.messages[:-1] == conversation.messages[:-1]
        assert json.loads(talk.messages[-1]["content"])["answer"] == talk.stance == branch.answer.stance


def test_a_branch_of_a_call_for_tools_is_one_call_and_no_answer(seen):
    assert len(seen.first.searches) == K
    for branch in seen.first.searches:
        if branch.asked.choice["message"].get("tool_calls"):
            assert branch.answer is None


def test_k_samples_cost_one_request_and_one_prompt(seen):
    spent = seen.first.spent
    recorded = [line for line in lines(seen.run, "calls.jsonl") if line["kind"] == "branch"]
    assert spent["branch_requests"] == len(recorded) == 3
    assert spent["branch_answers"] == 3 * K
    refiner = [line for line in recorded if line["slot"] == "refiner"]
    read = 2 * len(seen.first.call.prompt_ids)
    written = sum(len(one.response_ids) for one in seen.first.branches + seen.first.others)
    assert sum(line["response"]["usage"]["completion_tokens"] for line in refiner) == written
    assert spent["branch_usd"] == pytest.approx((read * 1.0 + written * 2.0) / 1e6)


def test_replays_cost_what_their_judge_costs_too():
    used = {"refiner": {"prompt": 10, "completion": 1}}
    record = answered("re-1", "t1", tokens=used, counts={"judge_prompt_tokens": 30, "judge_completion_tokens": 2})
    config = config_for("http://127.0.0.1:1/v1", Path())
    config.evaluation.prices.update(PRICES, judge=[3.0, 4.0])
    run = SimpleNamespace(path=Path(), rollouts=lambda label: [record.dump()])
    lab = SimpleNamespace(run=run, config=config, dataset=SimpleNamespace(tasks=()))
    spent, usd = Replays(lab, "tried").spent(), (10 * 1.0 + 1 * 2.0 + 30 * 3.0 + 2 * 4.0) / 1e6
    assert spent == {
        "replays": 1, "replay_prompt_tokens": 40, "replay_completion_tokens": 3, "replay_usd": pytest.approx(usd)
    }  # fmt: skip


def test_rollouts_with_candidates_carry_their_versions_and_a_phase_of_their_own(seen):
    for episode in seen.first.beside:
        record = episode.record
        assert record.status == "succeeded", record.error
        assert record.policy_versions["refiner"] == seen.weights.version
        assert record.weights_versions["refiner"] == [seen.weights.version]
        assert record.weights_versions["junior"] == ["nano@0"]
        assert record.outputs["selection"]["policy"] == seen.chooser.version
        assert record.phase == "tried--refiner.candidate--Supervisor.chooser"
        assert len(phase_of("a" * 40, [seen.weights, seen.chooser])) == 64  # As long as a phase's may be.
        assert {call.weights_version for call in episode.calls([REFINER])} == {seen.weights.version}


def test_what_is_live_answers_as_before_meanwhile_and_afterwards(seen):
    for episode in seen.first.alone:
        assert episode.record.weights_versions["refiner"] == ["nano@0"]
        assert episode.record.outputs["selection"]["policy"] != seen.chooser.version
    assert set(seen.versions.values()) == {"nano@0", "rubric"}


def test_a_candidate_is_released_with_its_last_rollout(seen):
    assert "no candidate" in str(seen.gone.value)


def told(episode):
    """Every call in its order: who asked, the prompt's tokens, the answer's tokens."""
    calls = episode.calls([name for name in ROLES if name not in ("PeerReviewer", "SafetyOfficer")])
    return {(call.role, call.visit, call.step): (call.prompt_ids, call.response_ids) for call in calls}


def test_replays_with_nothing_replaced_rebuild_every_prompt_token_by_token(seen):
    """Where an answer differs (the server's float32 depends on the batch), what follows it is another story."""
    compared = asked = 0
    for episode, replay, at in zip(seen.episodes, seen.first.replays, cycle(ROLES), strict=False):
        assert replay.record.status == "succeeded", replay.record.error
        before, after = told(episode), told(replay)
        asked += len(after)
        for key, (prompt, answer) in after.items():
            if key not in before:
                break
            assert prompt == before[key][0], (at, key)
            compared += 1
            if answer != before[key][1]:
                break
        if replay.record.outputs == episode.record.outputs:
            assert replay.record.reward == pytest.approx(episode.record.reward)
    assert len(seen.first.replays) == REPLAYED
    assert compared >= 0.9 * asked > 0


def test_who_worked_before_the_role_or_beside_it_is_not_asked_again(seen):
    order = list(ROLES)
    for replay, at in zip(seen.first.replays, cycle(ROLES), strict=False):
        others = JUNIORS if at in JUNIORS else order[: order.index(at)]
        assert f"{at}/1" in replay.record.visits
        assert not {f"{role}/1" for role in others if role != at} & set(replay.record.visits)


def test_a_field_that_is_replaced_is_what_the_role_reads(seen):
    (prompt,) = [call.asked.messages for call in seen.first.counterfactual.calls([REFINER])][:1]
    assert json.loads(prompt[1]["content"])["hypothesis"]["answer"] == "maybe"
    assert seen.first.counterfactual.record.outputs["selected_hypothesis"]["answer"] == "maybe"


def test_a_replay_can_be_by_a_candidate(seen):
    assert seen.first.candidate.record.weights_versions["refiner"] == [seen.weights.version]
    assert seen.first.candidate.record.policy_versions["refiner"] == seen.weights.version
    assert seen.first.candidate.record.seed != seen.first.counterfactual.record.seed == seen.episodes[0].record.seed


def test_no_reader_of_training_rollouts_gets_replays_or_candidates(seen):
    names = {episode.record.phase for episode in seen.lab.recorded(seen.lab.config.pipeline)}
    assert names == {"gather"}
    assert {one.record.phase for one in seen.first.replays} == {"tried--replays"}


def test_nothing_that_is_recorded_is_made_again(seen):
    for file, content in seen.files.items():
        assert file.read_bytes() == content, file
    for name in ("branches", "others", "searches", "answer", "spent"):
        assert getattr(seen.again, name) == getattr(seen.first, name), name
    assert json.loads(seen.first.answer.content) in ("yes", "no")
    assert (seen.first.spent["ask_answers"], seen.first.spent["replays"]) == (1, REPLAYED + 2)
    for name in ("beside", "replays"):
        ids = [[one.record.rollout_id for one in getattr(part, name)] for part in (seen.first, seen.again)]
        assert sorted(ids[0]) == sorted(ids[1]), name


def test_what_cannot_be_done_is_refused_with_what_can(seen):
    at, field, slot = seen.refusals
    assert "cannot begin at 'Judge': the roles are Geneticist" in at
    assert "'hypothesis', which is no field" in field
    assert "'teacher', which is not served: there are junior" in slot
