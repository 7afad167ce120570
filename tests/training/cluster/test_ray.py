"""Ranks on two nodes of a Ray cluster."""

import time
import pytest
from engine_kit import exported, some_samples
from ray_kit import HEAD, SECOND, LoopbackCluster
from training.cluster.ray.ranks import team_on_ray

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


@pytest.fixture(scope="module")
def cluster():
    made = LoopbackCluster()
    made.start(HEAD)
    made.start(SECOND)
    yield made
    made.close()
    print("node seconds", made.seconds)


def test_ranks(cluster, one, two, tmp_path):
    t = time.time()
    engine = two(shards="fsdp", team=lambda: team_on_ray(cluster.config, 2, tmp_path, "ray"))
    print("open", time.time() - t)
    print([c.ending() for c in engine.team._children], engine.team.pids)
    alone = one(shards="fsdp")
    for step in range(2):
        engine.update(some_samples(step), step)
        alone.update(some_samples(step), step)
    found, expected = exported(engine, tmp_path / "two"), exported(alone, tmp_path / "one")
    print(max(float((found[name] - value).abs().max()) for name, value in expected.items()))
    t = time.time()
    engine.close()
    print("close", time.time() - t)
