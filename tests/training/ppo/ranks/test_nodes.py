"""Ranks and rollouts on two nodes of a Ray cluster, one of which is killed. What nodes cost is paid once."""

import asyncio
import os
import signal
import threading
from dataclasses import asdict
from functools import partial

import psutil
import pytest
from engine_kit import apart, exported, some_samples
from lab_kit import AllAtOnce, collect, config_for, open_lab, task
from message_kit import refused
from ray_kit import HEAD, SECOND, LoopbackCluster

from agents.tools.toolbox import build_toolbox
from chimera.config.sections.tools import ToolsConfig
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from evaluation.records.rollouts import RolloutInput
from training.ppo.ranks.placed import PlacedRanks
from training.scale.actors import open_actors
from training.scale.cluster import join

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


async def checked_for_ever(membership):
    while True:
        membership.check()
        await asyncio.sleep(0.1)


async def held_out(lab, one):
    (record,) = [record async for record in lab.held_out([RolloutInput.of(one, "gate-base", 0, 0)], "base")]
    return record


def plainly(record):
    """What was answered, said and rewarded; not when, and under which id."""
    return {key: value for key, value in asdict(record).items() if key not in ("rollout_id", "trace", "seconds")}


def test_ranks_on_two_nodes_learn_what_one_learns_and_a_node_that_dies_is_named(cluster, one, two, tmp_path):
    """What was saved is continued on the node that is left, as `--resume` does."""
    checkpoint = tmp_path / "checkpoint"
    placed = []

    def start(ranks=2):
        placed.append(PlacedRanks(cluster.config, ranks, tmp_path))
        return placed[-1]

    engine = two(shards="fsdp", start=start)
    before = {node: pid for pid, node in placed[0].nodes}
    assert sorted(before) == [HEAD, SECOND]
    alone = one(shards="fsdp")
    for step in range(2):
        metrics, expected = engine.update(some_samples(step), step), alone.update(some_samples(step), step)
        assert metrics["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-5)
    engine.save(checkpoint)
    assert apart(exported(engine, tmp_path / "two"), exported(alone, tmp_path / "one")) < 1e-5
    os.kill(before[SECOND], signal.SIGSTOP)  # So the update cannot end before the kill.
    killer = threading.Timer(0.5, cluster.kill, [SECOND])
    killer.start()
    with pytest.raises(RunError) as lost:
        engine.update(some_samples(2), 2)
    killer.join()
    engine.close()
    for text in (f"(process {before[SECOND]} on node {SECOND}) was lost", "--resume"):
        assert text in str(lost.value)
    again = two(shards="fsdp", start=start)
    assert [node for _, node in placed[-1].nodes] == [HEAD, HEAD]
    again.load(checkpoint)
    again.update(some_samples(2), 2)
    alone.update(some_samples(2), 2)
    assert apart(exported(again, tmp_path / "again"), exported(alone, tmp_path / "alone")) < 1e-5
    again.close()


def test_ranks_for_which_there_is_no_room_are_refused_with_their_settings(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr("training.ppo.ranks.placed.PLACE_S", 5.0)
    with refused(ConfigError, ("2 ranks", "3 CPUs", "cluster.cpus_per_rank"), lines=None):
        PlacedRanks(cluster.config.model_copy(update={"cpus_per_rank": 3.0}), 2, tmp_path)


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
    wrong = tmp_path / "token"
    wrong.touch(0o600)
    wrong.write_text("0" * 64)
    config = cluster.config.model_copy(update={"token_file": wrong})
    with refused(RunError, (f"cluster.address={config.address}", "cannot be joined", "cluster.token_file"), lines=None):
        join(config)
    wrong.chmod(0o640)
    with refused(ConfigError, (f"cluster.token_file={wrong}", f"chmod 600 {wrong}"), lines=None):
        join(config)


async def test_actors_for_which_there_is_no_room_are_refused_with_their_settings(cluster, monkeypatch):
    monkeypatch.setattr("training.scale.actors.START_S", 10.0)
    large = cluster.config.model_copy(update={"cpus_per_actor": 3.0})
    config = Config().model_copy(update={"cluster": large})
    with refused(ConfigError, ("rollouts.actors=8", "0 of 8 actors with 3 CPUs", "cluster.cpus_per_actor"), lines=None):
        async with open_actors(config, list):
            pass


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
    async with open_actors(config, dict) as (_, membership):
        membership.check()
        await asyncio.to_thread(cluster.kill, HEAD)
        with pytest.raises(RunError) as lost:
            await checked_for_ever(membership)
    assert all(text in str(lost.value) for text in (cluster.config.address, "--resume"))
