"""Ranks and runners on two nodes of a Ray cluster, one of which is killed. What nodes cost is paid once."""

import asyncio
import os
import signal
import threading

import pytest
from engine_kit import exported, some_samples
from lab_kit import AllAtOnce, collect, config_for, open_lab, task
from ray_kit import HEAD, SECOND, LoopbackCluster
from tls_kit import LACKING, made_files

from chimera.core.errors import ConfigError, RunError
from training.cluster.ray.process import RayProcess
from training.cluster.ray.ranks import team_on_ray

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),  # pytest resets the filter that the engine sets
]


@pytest.fixture(scope="module")
def nodes():
    made = LoopbackCluster()
    yield made
    made.close()


@pytest.fixture
def cluster(nodes):
    """Two nodes, also after a test that has killed one."""
    for address in (HEAD, SECOND):
        if address not in nodes.nodes:
            nodes.start(address)
    return nodes


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
    """The rollouts that have ended stay, and the one that the node worked on is made again by another runner."""
    scripted_openai.hooks.clear()
    early, late = [task("alpha"), task("beta")], [task("gamma"), task("delta")]
    config = config_for(scripted_openai.url, tmp_path, runners=2)
    tls = cluster.config.tls if LACKING else made_files(tmp_path / "tls")
    placed = {
        "cluster": cluster.config.model_copy(update={"tls": tls}),
        "rollouts": config.rollouts.model_copy(update={"on": "cluster"}),
    }
    config = config.model_copy(update=placed)
    async with open_lab(scripted_openai.url, tmp_path, [*early, *late], config=config) as lab:
        assert lab.store.endpoint.startswith(f"{tls.scheme}://")
        first = AllAtOnce(scripted_openai, ["alpha", "beta"])
        collecting = asyncio.create_task(collect(lab, early))
        await first.together.wait()
        pids = lab.pool.pids()
        assert sorted(map(cluster.node_of, pids.values())) == [HEAD, SECOND]
        first.go.set()
        records = await collecting
        second = AllAtOnce(scripted_openai, ["gamma", "delta"])
        collecting = asyncio.create_task(collect(lab, late))
        await second.together.wait()
        await asyncio.to_thread(cluster.kill, SECOND)
        second.go.set()
        records |= await collecting
        attempts = {name: await lab.store.get_latest_attempt(one.rollout_id) for name, one in records.items()}
        view = (lab.run.path / "view.txt").read_text()
    assert {one.status for one in records.values()} == {"succeeded"}
    assert len({one.reward for one in records.values()}) == 1
    assert sorted(attempts[name].sequence_id for name in ("alpha", "beta")) == [1, 1]
    assert sorted(attempts[name].sequence_id for name in ("gamma", "delta")) == [1, 2]
    assert f"on node {SECOND}) was lost" in " ".join(view.split())


def test_who_has_another_token_is_told_that_the_cluster_cannot_be_joined(cluster, tmp_path):
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
