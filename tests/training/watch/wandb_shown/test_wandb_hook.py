"""W&B for the runner of any user of Agent Lightning."""

import asyncio
import multiprocessing

import agentlightning as agl
import pytest
from mirror_kit import WAIT_SECONDS, read_offline

from training.watch.wandb.hook import WandbLoggingHook

pytestmark = pytest.mark.whole


class Scored(agl.LitAgent):
    async def rollout_async(self, task, resources, rollout):
        if task == "plain":
            agl.emit_reward(0.25)
        elif task == "parts":
            agl.emit_reward({"reward": 0.75, "alignment": 0.5, "novelty": 0.25}, primary_key="reward")
        elif task == "unscored":
            agl.emit_annotation({"reward_parts": {"alignment": 0.5}})
        else:
            raise ValueError(task)


async def run_with(hook, tasks):
    """Run `Scored` on `tasks` with Agent Lightning's own runner, tracer and store."""
    store = agl.InMemoryLightningStore()
    await store.update_resources("none", {})
    runner = agl.LitAgentRunner(tracer=agl.OtelTracer())
    with runner.run_context(agent=Scored(), store=store, hooks=[hook]):
        for task in tasks:
            try:
                await runner.step(task, mode="train")
            except ValueError as error:
                assert str(error) == task  # noqa: PT017  the runner raises what the agent raises
    return [rollout.status for rollout in await store.query_rollouts()]


def run_hook(folder):
    """A runner process of some Agent Lightning user."""
    hook = WandbLoggingHook(project="theirs", mode="offline", dir=folder)
    asyncio.run(run_with(hook, ["plain", "parts", "failing", "unscored"]))


def test_the_hook_logs_every_rollouts_reward_and_parts_from_agent_lightnings_own_runner(tmp_path):
    child = multiprocessing.get_context("spawn").Process(target=run_hook, args=(str(tmp_path),))
    child.start()
    child.join(WAIT_SECONDS)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    data = read_offline(file)
    rows = [{key: value for key, value in row.items() if key[0] != "_"} for row in data.history.values()]
    assert len({row.pop("rollout/rollout_id") for row in rows}) == 4
    assert rows == [
        {"rollout/index": 1, "rollout/mode": "train", "rollout/reward": 0.25},
        {
            "rollout/index": 2,
            "rollout/mode": "train",
            "rollout/reward": 0.75,
            "rollout/parts/alignment": 0.5,
            "rollout/parts/novelty": 0.25,
        },
        {"rollout/index": 3, "rollout/mode": "train"},
        {"rollout/index": 4, "rollout/mode": "train", "rollout/parts/alignment": 0.5},
    ]
    assert data.run[0].project == "theirs"
    assert ("rollout/*", "rollout/index") in {(metric.glob_name, metric.step_metric) for metric in data.metric}


class BrokenRun:
    def __init__(self):
        self.calls = 0

    def define_metric(self, *arguments, **options):
        self.calls += 1
        raise OSError("W&B is gone")


async def test_a_hook_that_fails_says_so_once_and_rollouts_go_on(caplog):
    broken = BrokenRun()
    statuses = await run_with(WandbLoggingHook(broken), ["plain", "plain", "plain"])
    assert statuses == ["succeeded"] * 3
    assert broken.calls == 1
    assert [record.message for record in caplog.records if record.name == "training.watch.wandb.hook"] == [
        "rollouts are no longer logged to W&B: OSError: W&B is gone"
    ]
