"""Ranks and rollouts on two nodes of a Ray cluster, one of which is killed. What nodes cost is paid once."""

import asyncio
import os
import signal
import threading
from dataclasses import asdict
from functools import partial

import psutil
import pytest
from engine_kit import exported, some_samples
from lab_kit import AllAtOnce, collect, config_for, open_lab, task
from ray_kit import HEAD, SECOND, LoopbackCluster

from agents.tools.toolbox import build_toolbox
from chimera.config.sections.tools import ToolsConfig
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from evaluation.records.rollouts import RolloutInput
from training.cluster.ray.process import RayProcess
from training.cluster.ray.ranks import team_on_ray
from training.scale.actors import open_actors

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),  # pytest resets the filter that the engine sets
]


@pytest.fixture(scope="module")
def clusters():
    started = [LoopbackCluster()]
    yield started
    for one in started:
        one.close()


@pytest.fixture
def cluster(clusters):
    """Two nodes, also after a test that has killed one; another cluster after one that has killed the head."""
    if clusters[-1].nodes and HEAD not in clusters[-1].nodes:
        clusters[-1].close()
        clusters.append(LoopbackCluster())
    for address in (HEAD, SECOND):
        if address not in clusters[-1].nodes:
            clusters[-1].start(address)
    return clusters[-1]


def actors():
    """The processes of this machine's actors that make rollouts."""
    return [process.pid for process in psutil.process_iter() if "RolloutActor" in process.name()]


async def checked_for_ever(actors):
    while True:
        actors.check()
        await asyncio.sleep(0.1)


async def held_out(lab, one):
    (record,) = [record async for record in lab.held_out([RolloutInput.of(one, "gate-base", 0, 0)], "base")]
    return record


def plainly(record):
    """What was answered, said and rewarded; not when, and under which id."""
    apart = {"rollout_id", "trace", "worker", "seconds"}
    return {key: value for key, value in asdict(record).items() if key not in apart}


def apart(found, expected):
    return max(float((found[name] - value).abs().max()) for name, value in expected.items())


def test_ranks_on_two_nodes_learn_what_one_learns(cluster, one, two, tmp_path):
    engine = two(shards="fsdp", team=lambda: team_on_ray(cluster.config, 2, tmp_path, "ray"))
    ranks = engine.team.pids
    assert sorted(map(cluster.node_of, ranks)) == [HEAD, SECOND]
    alone = one(shards="fsdp")
    for step in range(2):
        metrics, expected = engine.update(some_samples(step), step), alone.update(some_samples(step), step)
        assert metrics["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-5)
    assert apart(exported(engine, tmp_path / "two"), exported(alone, tmp_path / "one")) < 1e-5
    engine.close()


@pytest.mark.long
def test_a_step_in_which_a_node_dies_is_made_again_by_the_rank_there_is_room_for(cluster, one, two, tmp_path):
    checkpoint, notes, teams = tmp_path / "checkpoint", [], []
    whole_nodes = cluster.config.model_copy(update={"cpus_per_rank": 2.0})

    def start():
        teams.append(team_on_ray(whole_nodes, 2, tmp_path, "ray"))
        return teams[-1]

    engine = two(
        shards="fsdp", team=start, newest=lambda: checkpoint if checkpoint.exists() else None, note=notes.append
    )
    engine.update(some_samples(0), 0)
    engine.save(checkpoint)
    before = {cluster.node_of(pid): pid for pid in engine.team.pids}
    os.kill(before[SECOND], signal.SIGSTOP)  # So the update cannot end before the kill.
    killer = threading.Timer(0.5, cluster.kill, [SECOND])
    killer.start()
    engine.update(some_samples(1), 1)
    killer.join()
    (note,) = notes
    assert f"(process {before[SECOND]} on node {SECOND}) was lost" in note
    assert [team.ranks for team in teams] == [2, 1]
    assert [cluster.node_of(pid) for pid in engine.team.pids] == [HEAD]
    alone = one(shards="fsdp")
    for step in range(2):
        alone.update(some_samples(step), step)
    assert apart(exported(engine, tmp_path / "two"), exported(alone, tmp_path / "one")) < 1e-5
    engine.close()


async def test_a_node_that_dies_during_rollouts_loses_none(cluster, scripted_openai, tmp_path):
    """What has ended stays, what the node worked on is made again, and all are what one process makes."""
    scripted_openai.hooks.clear()
    early, late = [task("alpha"), task("beta")], [task("gamma"), task("delta")]
    config = config_for(scripted_openai.url, tmp_path, concurrency=2)
    on_ray = config.rollouts.model_copy(update={"on": "ray", "actors": 2})
    config = config.model_copy(update={"cluster": cluster.config, "rollouts": on_ray})
    async with open_lab(scripted_openai.url, tmp_path, [*early, *late], config=config) as lab:
        first = AllAtOnce(scripted_openai, ["alpha", "beta"])
        collecting = asyncio.create_task(collect(lab, early))
        await first.together.wait()
        assert sorted(map(cluster.node_of, actors())) == [HEAD, SECOND]
        first.go.set()
        records = await collecting
        second = AllAtOnce(scripted_openai, ["gamma", "delta"])
        collecting = asyncio.create_task(collect(lab, late))
        await second.together.wait()
        await asyncio.to_thread(cluster.kill, SECOND)
        second.go.set()
        records |= await collecting
        records["held out"] = await held_out(lab, early[0])
    async with open_lab(scripted_openai.url, tmp_path, [*early, *late], name="here") as lab:
        here = await collect(lab, [*early, *late])
        here["held out"] = await held_out(lab, early[0])
    assert {name: plainly(record) for name, record in records.items()} == {
        name: plainly(record) for name, record in here.items()
    }


def test_who_has_another_token_is_told_that_the_cluster_cannot_be_joined(cluster, tmp_path):
    """Ranks and rollouts join in processes of their own, with the same token."""
    wrong = tmp_path / "token"
    wrong.touch(0o600)
    wrong.write_text("0" * 64)
    process = RayProcess(cluster.config.model_copy(update={"token_file": wrong}), tmp_path / "log")
    with pytest.raises(RunError, match=r"the Ray cluster at cluster\.address=.* cannot be joined .*token"):
        process.place(1, {"CPU": 1})
    process.close()
    wrong.chmod(0o640)
    with pytest.raises(ConfigError, match=r"other users can read cluster\.token_file=.*: run chmod 600"):
        RayProcess(cluster.config.model_copy(update={"token_file": wrong}), tmp_path / "log")


def test_a_cluster_that_loses_its_head_is_said_in_a_sentence(cluster, tmp_path):
    process = RayProcess(cluster.config, tmp_path / "log")
    assert process.place(5, {"CPU": 2}) == 2
    cluster.kill(HEAD)
    with pytest.raises(RunError, match=r"--resume"):
        process.hear(wait=True)
    process.close()


async def test_actors_for_which_there_is_no_room_are_refused_with_their_settings(cluster, monkeypatch):
    monkeypatch.setattr("training.scale.actors.START_S", 10.0)
    large = cluster.config.model_copy(update={"cpus_per_actor": 3.0})
    config = Config().model_copy(update={"cluster": large})
    with pytest.raises(ConfigError) as refused:
        async with open_actors(config, list):
            pass
    for text in ("rollouts.actors=8", "0 of 8 actors with 3 CPUs", "cluster.cpus_per_actor"):
        assert text in str(refused.value)


async def test_a_tool_that_a_node_cannot_use_is_said_as_it_would_be_here(cluster, tmp_path):
    database = tmp_path / "database.sqlite"
    database.write_text("no database")
    toolbox = partial(build_toolbox, ToolsConfig(database=database), (), {})
    with pytest.raises(ConfigError) as here:
        toolbox()
    config = Config().model_copy(update={"cluster": cluster.config})
    with pytest.raises(ConfigError) as there:
        async with open_actors(config, toolbox):
            pass
    assert str(there.value) == str(here.value)


async def test_rollouts_end_with_a_sentence_when_the_head_is_lost(cluster, monkeypatch):
    monkeypatch.setattr("training.scale.cluster.HEAD_S", 2.0)
    config = Config().model_copy(update={"cluster": cluster.config})
    async with open_actors(config, dict) as actors:
        actors.check()
        await asyncio.to_thread(cluster.kill, HEAD)
        with pytest.raises(RunError) as lost:
            await checked_for_ever(actors)
    assert all(text in str(lost.value) for text in (cluster.config.address, "--resume"))
