"""PPO through VeRL on tiny random models: that it learns, resumes and exports exactly, and keeps to itself."""

import json
import os
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from engine_kit import exported, hugging_face, log_softmax, ppo_settings, some_samples, untimed
from message_kit import refused

from chimera.config.sections.bundled import NANO
from chimera.core.errors import ConfigError, RunError
from chimera.serving.embedded.checkpoint import load_checkpoint
from training.ppo.engine.batch import Sample
from training.ppo.engine.update import PpoEngine
from training.ppo.verl.configuration import OURS, PASSED, check_verl
from training.ppo.verl.settings import PpoSettings

WANTED = range(120)


pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # pytest resets the filter that the engine sets


def sampled(engine, folder, seed, prompts=6, peers=8, length=6):
    """Responses of the engine's model to random prompts; the reward is the share of WANTED tokens."""
    import torch

    engine.export(folder)
    model = hugging_face(folder)
    torch.manual_seed(seed)
    asked = torch.randint(0, 400, (prompts, 5)).repeat_interleave(peers, dim=0)
    with torch.no_grad():
        answers = model.generate(
            asked, do_sample=True, top_k=0, max_new_tokens=length, min_new_tokens=length, pad_token_id=0
        )[:, 5:]
    return [
        Sample(tuple(ask), tuple(answer), sum(t in WANTED for t in answer) / length, f"p{place // peers}", "t")
        for place, (ask, answer) in enumerate(zip(asked.tolist(), answers.tolist(), strict=True))
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"adv_estimator": "grpo"},
        {"adv_estimator": "rloo"},
        {"adv_estimator": "reinforce_plus_plus"},
        {"adv_estimator": "gae", "critic_warmup": 2, "critic_lr": 3e-3},
        {"adv_estimator": "grpo", "lora_rank": 4, "use_kl_loss": True, "lr": 4e-2},
    ],
    ids=["grpo", "rloo", "reinforce_plus_plus", "gae", "lora"],
)
def test_a_toy_reward_rises(engine, serving_model, tmp_path, options):
    updates = 11
    one = engine(ppo_settings(**{"lr": 3e-2, "ppo_mini_batch_size": 24} | options), total_steps=updates)
    history = [one.update(sampled(one, tmp_path / "model", step), step) for step in range(updates)]
    rewards = [metrics["critic/score/mean"] for metrics in history]
    assert np.mean(rewards[:2]) < 0.35
    assert np.mean(rewards[-2:]) > 0.5
    if options["adv_estimator"] == "gae":
        assert [("actor/loss" in metrics) for metrics in history[:3]] == [False, False, True]
        assert all("critic/vf_loss" in metrics for metrics in history)


def test_the_critic_learns_the_values(engine):
    one = engine(adv_estimator="gae", critic_warmup=30, critic_lr=3e-3, lam=1.0)
    samples = [Sample((5 + place % 2, 9), (7, 8, 9), float(place % 2), "g", "t") for place in range(16)]
    losses = [one.update(samples, step)["critic/vf_loss"] for step in range(25)]
    assert losses[-1] < 0.2 * losses[0]


def trained(engine, steps):
    return [engine.update(some_samples(step), step) for step in steps]


@pytest.mark.parametrize(
    "options",
    [
        {"verl": {"optim": {"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1, "lr_warmup_steps": 2}}},
        {"adv_estimator": "gae", "critic_warmup": 1, "lora_rank": 4},
        {
            "use_kl_loss": True,
            "verl": {"algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"type": "adaptive", "horizon": 40}}},
        },
    ],
    ids=["schedule", "critic and lora", "kl"],
)
def test_a_resumed_engine_goes_on_bit_for_bit(engine, tmp_path, options):
    import torch

    straight = engine(**options)
    whole = trained(straight, range(4))
    expected = exported(straight, tmp_path / "straight")
    first = engine(**options)
    trained(first, range(2))
    first.save(tmp_path / "checkpoint")
    trained(first, [2])
    random.seed(99)  # Another process has other random states.
    torch.manual_seed(99)
    resumed = engine(**options)
    resumed.load(tmp_path / "checkpoint")
    assert resumed.updates == 2
    rest = trained(resumed, range(2, 4))
    for name, value in exported(resumed, tmp_path / "resumed").items():
        assert torch.equal(value, expected[name]), name
    assert list(map(untimed, rest)) == list(map(untimed, whole[2:]))


@pytest.mark.whole
def test_a_new_process_goes_on_bit_for_bit_and_keeps_to_itself(engine, serving_model, tmp_path):
    """The child also shows that the engine listens on loopback only and leaves the process as it was."""
    import torch

    code = """
        import json, logging, os, random, sys, warnings
        from pathlib import Path
        import psutil

        before = dict(os.environ), random.getstate(), logging.getLogger().handlers[:]
        from training.ppo.verl.settings import PpoSettings
        from training.ppo.engine.batch import Sample
        from training.ppo.engine.update import PpoEngine

        asked = json.load(sys.stdin)
        one = PpoEngine(Path(asked["model"]), PpoSettings(**asked["config"]), seed=0, total_steps=20)
        one.load(Path(asked["checkpoint"]))
        for step, batch in asked["batches"]:
            one.update([Sample(tuple(p), tuple(r), *rest) for p, r, *rest in batch], step)
        one.export(Path(asked["export"]))
        listening = [c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
        one.close()
        changed = {name for name in {*before[0], *os.environ} if before[0].get(name) != os.environ.get(name)}
        rank = changed & {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "VERL_PLATFORM", "GLOO_SOCKET_IFNAME"}
        print(json.dumps({
            "listening": listening, "rank": sorted(rank), "same random": random.getstate() == before[1],
            "same handlers": logging.getLogger().handlers == before[2],
        }))
    """
    config = {"lr": 1e-3, "ppo_mini_batch_size": 8, "verl": {"actor": {"entropy_coeff": 0.01}}}
    one = engine(PpoSettings(**config))
    trained(one, range(2))
    one.save(tmp_path / "checkpoint")
    trained(one, range(2, 4))
    expected = exported(one, tmp_path / "straight")
    one.close()
    fields = ("prompt_ids", "response_ids", "reward", "group", "task")
    spec = {
        "model": str(serving_model(seed=3)),
        "config": config,
        "checkpoint": str(tmp_path / "checkpoint"),
        "export": str(tmp_path / "resumed"),
        "batches": [(n, [[getattr(each, f) for f in fields] for each in some_samples(n)]) for n in (2, 3)],
    }
    # As many threads as here, for the order of sums depends on it.
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": os.getcwd()}
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        input=json.dumps(spec),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    seen = json.loads(child.stdout)
    assert set(seen.pop("listening")) <= {"127.0.0.1"}
    assert seen == {"rank": [], "same random": True, "same handlers": True}
    assert child.stderr == ""
    for name, value in load_checkpoint(str(tmp_path / "resumed")).weights.items():
        assert torch.equal(value, expected[name]), name


def test_a_checkpoint_is_whole_and_belongs_to_its_engine(engine, tmp_path):
    one = engine()
    trained(one, [0])
    one.save(tmp_path / "checkpoint")
    trained(one, [1])
    one.save(tmp_path / "checkpoint")
    assert json.loads((tmp_path / "checkpoint" / "engine.json").read_text())["updates"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    with pytest.raises(RunError, match="no whole checkpoint"):
        one.load(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="made with"):
        engine(lora_rank=4).load(tmp_path / "checkpoint")


def test_the_process_keeps_its_random_states(engine):
    import torch

    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    one = engine(adv_estimator="gae")
    trained(one, [0])
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def assert_merges(base, folder, merged):
    """The adapter in `folder` makes the merged weights of those in `base`, when PEFT reads it."""
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(hugging_face(base), folder / "adapter").merge_and_unload().state_dict()
    for name, value in merged.items():
        assert adapted[name].numpy() == pytest.approx(value.numpy(), abs=1e-6), name


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_an_export_is_a_model_that_answers_as_the_engine_does(engine, serving_model, tmp_path, tied, lora_rank):
    folder = serving_model(seed=3, tied=tied)
    one = engine(lora_rank=lora_rank, lr=2e-2, folder=folder)
    trained(one, range(2))
    learned = exported(one, tmp_path / "model")
    first = load_checkpoint(str(folder)).weights
    assert ("lm_head.weight" in learned) is (not tied)
    assert learned.keys() == first.keys()
    assert (
        learned["model.layers.1.mlp.up_proj.weight"] - first["model.layers.1.mlp.up_proj.weight"]
    ).abs().max() > 1e-3
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "model" / name).read_bytes() == (folder / name).read_bytes()
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "float32"
    if lora_rank:
        assert_merges(folder, tmp_path / "model", learned)
    else:
        assert not (tmp_path / "model" / "adapter").exists()
    samples = some_samples(7)
    model = hugging_face(tmp_path / "model")
    logs = [log_softmax(model, each) for each in samples]
    entropy = sum(-(each.exp() * each).sum().item() for each in logs) / sum(map(len, logs))
    assert one.update(samples, 7)["actor/entropy"] == pytest.approx(entropy, abs=1e-5)


def test_the_bundled_model_comes_out_as_it_went_in(engine, tmp_path):
    import torch

    learned = exported(engine(folder=NANO), tmp_path / "model")
    for name, value in load_checkpoint("nano").weights.items():
        assert torch.equal(learned[name], value), name
    assert load_checkpoint(str(tmp_path / "model")).eos == load_checkpoint("nano").eos


def test_an_export_that_fails_leaves_the_old_model(engine, serving_model, tmp_path, monkeypatch):
    one, states = engine(adv_estimator="gae", critic_warmup=0), []
    one.export(tmp_path / "model")
    old = (tmp_path / "model" / "model.safetensors").read_bytes()
    trained(one, [0])

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with refused(RunError, "model.safetensors", "No space left", "make room", "--resume"):
        one.export(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == old
    monkeypatch.setattr("training.ppo.engine.update.worker_state", lambda worker: states.append(worker) or {})
    with refused(RunError, "actor.safetensors", "No space left"):
        one.save(tmp_path / "checkpoint")
    assert len(states) == 2  # Other ranks wait in each.
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_second_engine_waits_for_the_first_to_close(engine, serving_model):
    one = engine()
    with refused(RunError, "process group", "close the other engine first"):
        PpoEngine(serving_model(seed=3), PpoSettings(), seed=0, total_steps=1)
    trained(one, [0])  # The first is none the worse for it.
    one.close()
    one.close()
    trained(engine(), [0])


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ({"actr": {}}, ("'actr'", "'actor'")),
        ({"actor": {"clip_ratio_d": 3}}, ("design.verl.actor.clip_ratio_d", "'clip_ratio_c'")),
        ({"actor": {"rollout_n": 2}}, ("design.verl.actor.rollout_n", "set by design.n")),
        ({"optim": {"lr": 0.1}}, ("design.verl.optim.lr", "set by design.lr", "leave this out")),
        ({"engine": {"ulysses_sequence_parallel_size": 2}}, "design.verl.engine.ulysses_sequence_parallel_size"),
        ({"model": [1]}, ("design.verl.model", "[1]", "mapping")),
    ],
)
def test_wrong_names_for_verl_are_named_under_the_phase(passed, message):
    with refused(ConfigError, message):
        check_verl(passed, "design")


def test_samples_without_peers_are_an_error_with_the_phases_own_settings(engine):
    with refused(RunError, "step 4", "1 samples", "raise design.n", "design.adv_estimator="):
        engine(phase="design", adv_estimator="grpo").update(some_samples(0, count=1, peers=1), 4)


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ({"optim": {"lr_scheduler_type": "linear"}}, "ppo.verl.optim"),
        ({"algorithm": {"kl_ctrl": {"horizn": 9}}}, ("ppo.verl.algorithm.kl_ctrl.horizn", "'horizon'")),
    ],
)
def test_wrong_values_for_verl_are_errors(engine, passed, message):
    with refused(ConfigError, message):
        engine(verl=passed)
    trained(engine(), [0])


def test_what_is_passed_through_takes_effect(engine, tmp_path):
    import torch

    plain = engine()
    trained(plain, [0])
    usual = exported(plain, tmp_path / "usual")
    changes = [
        {"actor": {"shuffle": False}},
        {"optim": {"weight_decay": 0.3}},
        {"optim": {"optimizer": "SGD", "override_optimizer_config": {"momentum": 0.5}}},
        {"engine": {"mixed_precision": {"param_dtype": "bf16"}}},
    ]
    for passed in changes:
        one = engine(verl=passed)
        trained(one, [0])
        other = exported(one, tmp_path / "other")
        assert not all(torch.equal(other[name], usual[name]) for name in usual), passed


def test_verl_has_every_key_that_can_be_passed():
    import dataclasses

    from verl.trainer.config import AlgoConfig
    from verl.workers.config import ActorConfig, CriticConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    kinds = {
        "actor": ActorConfig,
        "critic": CriticConfig,
        "engine": FSDPEngineConfig,
        "optim": FSDPOptimizerConfig,
        "model": HFModelConfig,
        "algorithm": AlgoConfig,
    }
    assert {*kinds, "trainer"} == PASSED.keys() == OURS.keys()
    for part, kind in kinds.items():
        names = {field.name for field in dataclasses.fields(kind)}
        assert PASSED[part] <= names
        assert OURS[part].keys() <= names
        assert not PASSED[part] & OURS[part].keys()
        assert set(OURS[part].values()) <= PpoSettings.model_fields.keys()
