"""Held-out rollouts in the main process, against real servers on loopback; and a real roll-back of real weights."""

import asyncio
import shutil
from contextlib import aclosing

import pytest
from lab_kit import lab_of
from message_kit import refused

from chimera.config.sections.bundled import NANO
from chimera.config.sections.models import SLOTS
from chimera.core.errors import RunError
from chimera.data.tasks import load
from chimera.run.directory import Run
from chimera.run.policies import Policy, live
from chimera.run.seals import seal
from training.configuration import load_config
from training.gate import decide as gate

pytestmark = pytest.mark.whole

OTHER = {"yes": "no", "no": "yes", "maybe": "no"}


def config_for(url, folder, *overrides, embedded=()):
    """All models are the scripted server, but for those that the run's own server process serves."""
    given = {"kind": "endpoint", "base_url": url, "api_key_env": "TEST_KEY"}
    models = [
        f"models.{key}.{name}={value}"
        for key in SLOTS
        for name, value in ({"kind": "embedded"} if key in embedded else {**given, "model": f"scripted-{key}"}).items()
    ]
    few = ["data.size=60", "gate.tasks=6", "society.node_retries=0", "rollouts.concurrency=1", "rollouts.retries=1"]
    return load_config(None, [*models, *few, *overrides, f"runs_dir={folder}"])


@pytest.fixture
def server(scripted_openai):
    scripted_openai.hooks.clear()
    scripted_openai.requests.clear()
    yield scripted_openai
    scripted_openai.hooks.clear()


async def collect(lab, inputs):
    async with aclosing(lab.held_out(inputs, "base")) as records:
        return [record async for record in records]


async def test_they_are_recorded_as_all_rollouts_are_and_not_made_twice(server, tmp_path):
    config = config_for(server.url, tmp_path)
    with Run.create("run", config) as run:
        async with lab_of(run, config, load(config.data)) as lab:
            wanted = gate.inputs(lab.dataset, config, "base")
            first = await collect(lab, wanted[:4])
            asked = len(server.requests)
            again = await collect(lab, wanted[:4])
            assert len(server.requests) == asked
            more = await collect(lab, wanted)
        async with lab_of(run, config, load(config.data)) as continued:
            after = await collect(continued, wanted)
        assert [one.rollout_id for one in again] == [
            next(one.rollout_id for one in first if one.task_id == given.task.id) for given in wanted[:4]
        ]
        assert {one.task_id for one in more} == {given.task.id for given in wanted}
        assert {one.rollout_id for one in after} == {one.rollout_id for one in more}
        lines = list(run.rollouts("gate-base"))
        assert len(lines) == len(wanted)
        for line in lines:
            assert (run.path / line["trace"]).is_file()
            assert line["policy_versions"] == lab.policy_versions
            assert line["seed"] == next(given.seed for given in wanted if given.task.id == line["task_id"])


@pytest.mark.parametrize(("began", "sampled"), [("0.3", 0.3), ("1", 1.0), ("null", 1.0)])
async def test_the_gate_keeps_the_answering_temperature_that_the_run_began_with(server, tmp_path, began, sampled):
    with Run.create("run", config_for(server.url, tmp_path, f"evaluation.temperature={began}")) as run:
        later = config_for(server.url, tmp_path, "evaluation.temperature=0.7")
        async with lab_of(run, later, load(later.data)) as lab:
            await collect(lab, gate.inputs(lab.dataset, later, "base")[:1])
    judge = {"scripted-judge"}
    assert {one["temperature"] for one in server.requests if one["model"] not in judge} == {sampled}
    assert {one["temperature"] for one in server.requests if one["model"] in judge} == {1.0}


async def test_stopping_keeps_what_has_ended_and_loses_nothing_of_it(server, tmp_path):
    """As Ctrl-C does: the task that iterates is cancelled while other rollouts wait for a model."""
    config = config_for(server.url, tmp_path, "rollouts.concurrency=3")
    with Run.create("run", config) as run:
        async with lab_of(run, config, load(config.data)) as lab:
            wanted = gate.inputs(lab.dataset, config, "base")
            free = {given.task.goal for given in wanted[:2]}
            server.hooks[:] = [lambda request: None if server.goal(request) in free else server.never()]
            two, ended = asyncio.Event(), []

            async def follow():
                async with aclosing(lab.held_out(wanted, "base")) as records:
                    async for record in records:
                        ended.append(record.rollout_id)
                        if len(ended) == 2:
                            two.set()

            following = asyncio.create_task(follow())
            await two.wait()
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
            assert {line["rollout_id"] for line in run.rollouts("gate-base")} == set(ended)
            server.hooks.clear()
            assert len(await collect(lab, wanted)) == len(wanted)
        assert len(list(run.rollouts("gate-base"))) == len(wanted)


@pytest.mark.timeout(400)
async def test_a_real_gate_rolls_real_weights_back(server, tmp_path):
    """The junior is the bundled model in the run's own server; the principal answers wrongly once it has learned."""
    config = config_for(server.url, tmp_path, embedded=("junior",))
    dataset = load(config.data)
    labels = {task.goal: task.label for task in dataset.validation}
    learned = []

    def principal(request):
        if server.role(request) != "PrincipalInvestigator":
            return None
        label = labels[server.goal(request)]
        answer = OTHER[label] if learned else label
        return {"amendments": [], "answer": answer, "decision": "UNDECIDED", "rationale": "so it is"}

    server.hooks[:] = [principal]
    with Run.create("run", config) as run:
        async with lab_of(run, config, dataset) as lab:
            began = dict(lab.policy_versions)
            run.ledger("phase_started", phase="sft", policy_versions=began)
            one = gate.Gate(lab)
            await one.open()
            shutil.copytree(NANO, run.path / "models" / "junior" / "sft")
            learned.append(True)
            assert not await one.decide("sft", Policy("weights", "junior", "sft@1", "models/junior/sft"))
            assert lab.policy_versions == began
            assert lab.servers.versions()["junior"] == began["junior"]
            learned.clear()
            wanted = gate.inputs(lab.dataset, config, "again")[:1]
            after = [record async for record in lab.held_out(wanted, "again")]
            one.summary()
            seal(run, "models/junior/sft")
            (run.path / "models/junior/sft/generation_config.json").write_text("{}")
            with refused(RunError, "sft/generation_config.json", lines=None):
                await lab.put_live(Policy("weights", "junior", "sft@1", "models/junior/sft"))
            assert lab.servers.versions()["junior"] == began["junior"]
        stages = {name: list(run.rollouts(f"gate-{name}")) for name in ("base", "sft", "again")}
        versions = {name: {line["weights_versions"]["junior"][0] for line in lines} for name, lines in stages.items()}
        assert versions == {"base": {began["junior"]}, "sft": {"sft@1"}, "again": {began["junior"]}}
        assert {record.answer == record.label for record in after} == {True}
        assert live(run.events()) == {}
        logged = [line["rollout_id"] for line in run.metrics() if line["phase"] == "rollout"]
        assert sorted(logged) == sorted(line["rollout_id"] for name in ("base", "sft") for line in stages[name])
        (event,) = [event for event in run.events() if event["event"] == "rolled_back"]
        assert event["verdicts"] == {"base": "worse"}
    shown = (run.path / "view.txt").read_text()
    assert "gate-sft: 6/6" in shown
    assert "sft@1 was rolled back: " in shown
    assert "right answers -100.0 points" in " ".join(shown.split())
