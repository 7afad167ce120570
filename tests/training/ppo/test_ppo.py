"""The PPO phase: what it refuses, and the loop over a lab whose rollouts are made up, with a real engine.

The lab here stands in for servers and society: a rollout's tokens and reward follow from its seed and the version that
is live, so that a run has one right result whatever happens to it.
"""

import asyncio
import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from engine_kit import ppo_settings
from fake_bench import FakeBench
from message_kit import refused
from ppo_kit import FLAWS, TASKS, Stop, digest, record, wait_for_engines
from record_kit import spans_of

from chimera.core.errors import ConfigError, RunError
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.traces.spans import write
from evaluation.traces.token_records import read_tokens, tokens_file, write_tokens
from training.configuration import load_config
from training.learning.base import PhasePlan
from training.phases import make_phases
from training.ppo import steps as ppo_steps
from training.ppo.checkpoints import Checkpoints, Progress
from training.ppo.phase import Ppo

ROLES = ("HypothesisRefiner", "ProtocolDesigner")
PLAN = PhasePlan("ppo", "ppo", tuple(ROLES), ("senior",))
ONLINE = Path(__file__).parents[3] / "configs" / "online.yaml"


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            ["models.senior={kind: endpoint, base_url: 'http://x/v1', model: m}"],
            ("ppo", "models.senior.kind=endpoint", "set this slot", "models.senior.path"),
        ),
        (["models.senior.temperature=0"], ("models.senior.temperature=0", "set it to 1")),
        (["models.senior.dtype=bfloat16"], ("models.senior.dtype=bfloat16", "set it to float32")),
        (
            ["ppo.ahead=1", "models.senior.temperature=0.5"],
            ("models.senior.temperature=0.5", "ppo.ahead=1", "set it to 1"),
        ),
        (["ppo.start=seniour"], ("ppo.start=seniour", "junior, supervisor, senior")),
        (
            ["ppo.start=junior", "models.senior.path=/mine"],
            ("ppo.start=junior", "models.senior.path=/mine", "set ppo.start=null"),
        ),
        (["ppo.n=1"], ("ppo.n=1", "grpo", "set ppo.n")),
        (
            ["models.senior.kind=vllm", "models.senior.python=/bin/true", "ppo.credit=counterfactual"],
            ("ppo.credit=counterfactual", "vLLM", "models.senior.kind to embedded"),
        ),
        (["ppo.tasks_per_step=8"], ("ppo.tasks_per_step=8", "7 training tasks")),
        (
            ["ppo.verl.trainer.test_freq=1", "ppo.test_tasks=3"],
            ("ppo.test_tasks=3", "2 validation tasks", "data.validation_share"),
        ),
        (["ppo.verl.actors={a: 1}"], ("'actors'", "'actor'")),
        (["ppo.verl.actor.policy_loss={loss_mode: gspo}"], ("ppo.verl.actor.policy_loss", "cannot be set here")),
        (["ppo.verl.actor.loss_scale_factor=2"], ("ppo.verl.actor.loss_scale_factor", "cannot be set here")),
        (["ppo.verl.actor.clip_ratio_c=1"], ("actor.clip_ratio_c is 1", "greater than 1")),
        (["ppo.verl.optim={lr_warmup_steps: null}"], ("optim.lr_warmup_steps is None", "integer")),
        (["ppo.verl.algorithm.kl_ctrl={type: x}"], ("algorithm.kl_ctrl.type is 'x'", "'fixed' or 'adaptive'")),
        (
            ["ppo.adv_estimator=gae", "ppo.steps=2", "ppo.critic_warmup=2"],
            ("ppo.critic_warmup=2", "ppo.steps=2", "set ppo.critic_warmup", "raise ppo.steps"),
        ),
        (["ppo.roles=[]"], ("pipeline.ppo.roles", "[Geneticist]")),
        (["ppo.roles=[Geneticist, Supervisor]"], ("pipeline.ppo.roles", "junior: Geneticist; supervisor: Supervisor")),
    ],
)
def test_what_cannot_be_trained_is_refused_at_once(overrides, complaint):
    with refused(ConfigError, complaint):
        make_phases(["ppo"], load_config(ONLINE, ["ppo.tasks_per_step=2", *overrides]), DATASET)
    make_phases(["ppo"], load_config(ONLINE, ["ppo.tasks_per_step=2", "ppo.n=1", "ppo.adv_estimator=gae"]), DATASET)


DATASET = Dataset(tuple(TASKS), tuple(replace(task, id=f"held-{task.id}") for task in TASKS[:2]), (), "generated", "x")


async def learn(lab):
    return await Ppo().learn(PLAN, lab.settings, lab)


class MadeUpLab(FakeBench):
    """Rollouts of made-up tokens. `flaw(given)` may spoil one, or hold it back."""

    def __init__(self, folder, model, flaw=lambda given: {}, **ppo):
        folder.mkdir(exist_ok=True)
        versions = {"junior": "nano@0", "senior": "nano@0"}
        super().__init__(Run(folder, writable=True), dataset=DATASET, versions=versions, weights={"senior": model})
        self.settings = ppo_settings(**{"tasks_per_step": 2, "n": 3, "steps": 3, "lr": 0.05, **ppo})
        self.flaw, self.model, self.stop_at = flaw, model, None
        self.on_live = lambda policy: None

    @property
    def went_live(self):
        return [policy.version for policy in self.published]

    async def publish(self, policy):
        assert not self.is_computing
        await super().publish(policy)
        assert (self.weights(policy.target) / "model.safetensors").is_file()
        self.on_live(policy)
        if policy.version == self.stop_at:
            raise Stop

    async def play(self, given, versions):
        assert self.settings.ahead or not self.is_computing
        spoiled = self.flaw(given)
        if spoiled == "late":
            await asyncio.Event().wait()
        stale = spoiled.pop("stale", ())
        made = record(given, versions["senior"], phase=given.phase, **spoiled)
        path = f"traces/{made.rollout_id}.jsonl.gz"
        reward = made_up_rollout(made, versions["senior"], self.run.path / path, stale)
        known = {"reward": reward, "parts": {"alignment": reward}} if made.reward else {}
        return replace(made, trace=path, **known)


def made_up_rollout(made, live, path, stale=()):
    """A trace of two senior calls; the reward is the share of small token ids in their answers."""
    draw = random.Random(f"{made.task_id}/{made.seed}/{live}")
    visits, small = [], []
    for role in ROLES:
        version = "other@1" if role in stale else live
        response = [draw.randrange(500) for _ in range(draw.randint(3, 6))]
        small += [token < 100 for token in response]
        scores = {"content": [{"logprob": -draw.uniform(6.0, 8.0)} for _ in response]}
        choice = {"message": {"role": "assistant", "content": "{}"}, "token_ids": response, "logprobs": scores}
        asked = {"model": "senior", "messages": [{"role": "user", "content": "{}"}]}
        told = {"choices": [choice], "prompt_token_ids": [1, 2, 3], "weights_version": version}
        visits.append((role, "senior", [(asked, {"id": f"{made.rollout_id}-{role}", **told})]))
    write(spans_of(made.rollout_id, visits), path)
    return sum(small) / len(small)


@pytest.fixture(scope="module")
def straight(serving_model, tmp_path_factory):
    """A run of three steps without a stop; validates after the second."""
    lab = MadeUpLab(tmp_path_factory.mktemp("run"), serving_model(), test_freq=2, test_tasks=2)
    lab.result = asyncio.run(learn(lab))
    return lab


def test_each_steps_weights_go_live_for_the_next(straight):
    assert straight.result.policy == Policy("weights", "senior", "senior@ppo-3", "models/senior/ppo-3")
    assert straight.went_live == ["senior@ppo-1", "senior@ppo-2", "senior@ppo-3"]
    path = straight.run.path
    assert digest(path / "models/senior/ppo-3") != digest(straight.model)
    assert [folder.name for folder in (path / "models/senior").iterdir()] == ["ppo-3"]
    assert [folder.name for folder in (path / "checkpoints/ppo").iterdir()] == ["3"]
    counted = {f"rollouts/{reason}": 0 for reason in ppo_steps.REASONS}
    figures = {"steps": 3, "updates": 3, "skipped": 0, "calls/stale": 0, **counted}
    assert straight.result.figures == figures
    assert straight.computed == 3


def test_each_step_is_logged_under_verls_names(straight):
    assert [(phase, step) for phase, step, _ in straight.logged] == [("ppo", 1), ("ppo", 2), ("ppo", 3)]
    for _, step, values in straight.logged:
        assert values["policy"] == f"senior@ppo-{step}"
        assert (values["rollouts/good"], values["calls/HypothesisRefiner"], values["step/skipped"]) == (6, 6, 0)
        assert values["timing_s/step"] > values["timing_s/gen"] > 0
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "timing_s/publish"):
            assert name in values
        assert ("val-core/reward/mean" in values) == (step == 2)
    assert straight.logged[1][2]["val-aux/rollouts"] == 2


def test_what_each_step_learned_from_is_kept_token_by_token(straight):
    for _, step, values in straight.logged:
        records = read_tokens(tokens_file(straight.run.path, "ppo", step))
        advantages = [value for record in records for value in record.advantages]
        assert Counter(record.role for record in records) == dict.fromkeys(ROLES, 6)
        assert len({record.response_id for record in records}) == 12
        assert sum(map(len, (record.mask for record in records))) == len(advantages)
        assert values["critic/score/mean"] == pytest.approx(sum(record.reward for record in records) / 12)
        assert values["critic/advantages/max"] == pytest.approx(max(advantages))
        assert values["response_length/mean"] == pytest.approx(len(advantages) / 12)
        assert {record.policy for record in records} == {"nano@0" if step == 1 else f"senior@ppo-{step - 1}"}


def test_held_out_tasks_are_for_validation_only(straight):
    held_out = [one for mode, one in straight.asked if mode == "val"]
    assert sorted(one.task.id for one in held_out) == ["held-t0", "held-t1"]
    assert {one.phase for one in held_out} == {"validation-ppo-2"}
    assert not any(one.task.id.startswith("held") for mode, one in straight.asked if mode == "train")


@pytest.fixture(autouse=True)
def one_engine_at_a_time():
    yield
    wait_for_engines()


@pytest.mark.parametrize(("save_freq", "stop_at"), [(1, "senior@ppo-3"), (2, "senior@ppo-3"), (3, "senior@ppo-2")])
def test_a_continued_run_ends_with_the_same_weights_bit_for_bit(straight, tmp_path, save_freq, stop_at):
    """Stopped just after weights went live, before their checkpoint: the worst moment."""
    stopped = MadeUpLab(tmp_path, straight.model, save_freq=save_freq)
    stopped.stop_at = stop_at
    with pytest.raises(Stop):
        asyncio.run(learn(stopped))
    wait_for_engines()
    resumed = MadeUpLab(tmp_path, straight.model, save_freq=save_freq)
    result = asyncio.run(learn(resumed))
    final = result.policy.folder
    assert digest(tmp_path / final) == digest(straight.run.path / final)
    assert result.figures == straight.result.figures
    for step in (1, 2, 3):
        assert read_tokens(tokens_file(tmp_path, "ppo", step)) == read_tokens(
            tokens_file(straight.run.path, "ppo", step)
        )
    asked = [one for lab in (stopped, resumed) for _, one in lab.asked]
    assert len(asked) == len({(one.task.id, one.repeat) for one in asked}) == 18


def test_a_finished_run_is_not_trained_again(straight):
    again = MadeUpLab(straight.run.path, straight.model)
    result = asyncio.run(learn(again))
    assert (again.asked, again.logged) == ([], [])
    assert (result.figures, result.policy) == (straight.result.figures, straight.result.policy)


def test_a_bad_step_is_skipped_and_the_weights_stay(straight, tmp_path):
    """Step 1: all but two of its rollouts are useless, one way or another; step 2 and 3 are as they should be."""

    def flaw(one):
        return flaws.get((one.task.id, one.repeat), {})

    first = ppo_steps.inputs_of(next(ppo_steps.draw(TASKS, 2, "0/ppo")), "ppo", 1, 3, 0)
    bad = [*FLAWS.values(), *FLAWS.values()]
    flaws = {(one.task.id, one.repeat): kind for one, kind in zip(first, bad, strict=False)}
    lab = MadeUpLab(tmp_path, straight.model, flaw)
    write_tokens([], tokens_file(tmp_path, "ppo", 1))
    result = asyncio.run(learn(lab))
    assert [tokens_file(tmp_path, "ppo", step).exists() for step in (1, 2, 3)] == [False, True, True]
    assert lab.went_live == ["senior@ppo-2", "senior@ppo-3"]
    assert [values["step/skipped"] for _, _, values in lab.logged] == [1, 0, 0]
    assert lab.logged[0][2]["policy"] == "nano@0"
    assert "actor/pg_loss" not in lab.logged[0][2]
    counted = {reason: result.figures[f"rollouts/{reason}"] for reason in FLAWS}
    assert counted == {"failed": 2, "unscored": 2}
    assert (result.figures["updates"], result.figures["skipped"]) == (2, 1)
    assert any("step 1 is skipped" in line and "only 2 of 6" in line for line in lab.view.lines)


def test_calls_of_other_weights_are_left_out_and_counted(straight, tmp_path):
    lab = MadeUpLab(tmp_path, straight.model, lambda one: {"stale": [ROLES[0]]} if one.repeat == 0 else {}, steps=1)
    result = asyncio.run(learn(lab))
    records = read_tokens(tokens_file(tmp_path, "ppo", 1))
    assert Counter(record.role for record in records) == {ROLES[0]: 4, ROLES[1]: 6}
    assert {record.policy for record in records} == {"nano@0"}
    assert (result.figures["calls/stale"], lab.logged[0][2]["calls/stale"], result.figures["updates"]) == (2, 2, 1)


def test_ahead_learns_from_weights_one_version_older_and_a_continued_run_makes_no_rollout_twice(straight, tmp_path):
    """Killed after the second update, when the third step's rollouts are there; some calls are of other weights."""

    def lab(name):
        flaw = {"stale": [ROLES[0]]}
        return MadeUpLab(tmp_path / name, straight.model, lambda one: dict(flaw) if one.repeat == 3 else {}, ahead=1)

    alone = lab("alone")
    result = asyncio.run(learn(alone))
    for step, sampler in ((1, "nano@0"), (2, "nano@0"), (3, "senior@ppo-1")):
        records = read_tokens(tokens_file(alone.run.path, "ppo", step))
        assert {record.policy for record in records} == {sampler}
        assert alone.logged[step - 1][2]["calls/older"] == (len(records) if step > 1 else 0)
    assert (result.figures["calls/stale"], result.figures["calls/older"]) == (2, 22)
    stopped = lab("stopped")
    stopped.stop_at = "senior@ppo-2"
    with pytest.raises(Stop):
        asyncio.run(learn(stopped))
    wait_for_engines()
    resumed = lab("stopped")
    again = asyncio.run(learn(resumed))
    assert (len(stopped.asked), len(resumed.asked)) == (18, 0)
    assert again.figures == result.figures
    assert digest(resumed.run.path / again.policy.folder) == digest(alone.run.path / result.policy.folder)


@pytest.mark.parametrize(("reason", "flaw", "timeout_s"), [("failed", FLAWS["failed"], 300.0), ("late", "late", 0.01)])
def test_when_every_step_is_skipped_nothing_was_learned(straight, tmp_path, reason, flaw, timeout_s):
    """All rollouts failed, or came after the deadline."""
    lab = MadeUpLab(tmp_path, straight.model, lambda one: flaw, steps=2, step_timeout_s=timeout_s)
    result = asyncio.run(learn(lab))
    assert result.policy is None
    assert (result.figures["skipped"], result.figures[f"rollouts/{reason}"]) == (2, 12)
    assert lab.went_live == []
    assert "ppo: every step was skipped, so nothing was learned" in lab.view.lines


async def test_a_stop_frees_the_engine_for_another(straight, tmp_path):
    started = asyncio.Event()

    def hold(one):
        started.set()
        return "late"

    running = asyncio.create_task(learn(MadeUpLab(tmp_path, straight.model, hold)))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.to_thread(wait_for_engines)
    result = await learn(MadeUpLab(tmp_path / "next", straight.model, steps=1))
    assert result.figures["updates"] == 1


def test_progress_survives_its_file(tmp_path):
    progress = Progress(2, 1, [1], {"late": 3}, 5, Policy("weights", "senior", "senior@ppo-2", "models/senior/ppo-2"))
    checkpoints = Checkpoints(Run(tmp_path, writable=True), PLAN, 1)
    assert checkpoints.latest() is None
    checkpoints.write(progress, lambda folder: folder.mkdir())
    assert checkpoints.latest() == (tmp_path / "checkpoints/ppo/2/engine", progress)


def test_a_write_that_was_cut_off_leaves_the_checkpoint_before(tmp_path):
    checkpoints = Checkpoints(Run(tmp_path, writable=True), PLAN, 2)
    for step in (9, 10, 11):
        checkpoints.write(Progress(step), lambda folder: folder.mkdir())

    def fail(folder):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.write(Progress(12), fail)
    (tmp_path / "checkpoints/ppo/.12.1").mkdir()
    assert checkpoints.latest()[1] == Progress(11)
    assert sorted(folder.name for folder in (tmp_path / "checkpoints/ppo").iterdir()) == ["10", "11"]


def test_a_broken_checkpoint_says_what_to_do(tmp_path):
    (tmp_path / "checkpoints/ppo/3").mkdir(parents=True)
    with refused(RunError, "checkpoints/ppo/3", "remove this folder"):
        Checkpoints(Run(tmp_path), PLAN, 1).latest()


class MakesAFile:
    """Does so when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (Path.touch, (self.file,))


def test_a_run_that_somebody_gave_you_is_resumed_without_running_its_code(straight, tmp_path):
    """Its checkpoint holds pickles alone, and the ledger knows nothing of it."""
    import torch

    made, lab = tmp_path / "code-was-run", MadeUpLab(tmp_path / "run", straight.model)
    engine = lab.run.path / "checkpoints/ppo/2/engine"
    shutil.copytree(straight.run.path / "checkpoints/ppo/3", engine.parent)
    progress = json.loads((engine.parent / "phase.json").read_text())
    (engine.parent / "phase.json").write_text(json.dumps({**progress, "step": 2}))
    for part in ("json", "safetensors"):
        (engine / f"actor.{part}").unlink()
    (engine / "actor").mkdir()
    for part in ("model", "optim", "extra_state"):
        torch.save({"a": MakesAFile(made)}, engine / "actor" / f"{part}_world_size_1_rank_0.pt")
    shutil.copytree(straight.run.path / "models", lab.run.path / "models")
    with refused(RunError, "actor.json", "cannot be read"):
        asyncio.run(learn(lab))
    assert not made.exists()
    wait_for_engines()
    torch.load(engine / "actor" / "optim_world_size_1_rank_0.pt", weights_only=False)
    assert made.exists()


@pytest.mark.parametrize("name", ["engine/actor.safetensors", "engine/actor.json", "engine/random.json", "phase.json"])
def test_a_checkpoint_that_was_changed_is_named_and_can_be_removed(straight, tmp_path, name):
    """Every file of it is compared with the ledger; without it the phase comes to the same weights again."""
    folder = shutil.copytree(straight.run.path, tmp_path / "run")
    lab = MadeUpLab(folder, straight.model)
    file = folder / "checkpoints/ppo/3" / name
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    with refused(RunError, f"checkpoints/ppo/3/{name}", "hash", "remove the folder"):
        asyncio.run(learn(lab))
    file.unlink()
    with refused(RunError, f"checkpoints/ppo/3/{name}", "missing", "remove the folder"):
        asyncio.run(learn(lab))


def test_what_was_removed_is_made_again_to_the_same_weights(straight, tmp_path):
    folder = shutil.copytree(straight.run.path, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints/ppo/3")
    lab = MadeUpLab(folder, straight.model)
    result = asyncio.run(learn(lab))
    assert lab.asked == []
    assert digest(folder / result.policy.folder) == digest(straight.run.path / result.policy.folder)
