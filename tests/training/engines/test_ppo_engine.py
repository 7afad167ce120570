"""PPO through VeRL on tiny random models: what an update computes, that it learns, resumes and exports exactly."""

import gc
import json
import os
import random
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigError, RunError
from chimera.serving.embedded.checkpoint import NANO, load_checkpoint
from training.algorithms.ppo.batch import Sample, mini_batches
from training.algorithms.ppo.settings import PpoSettings
from training.engines.local import PpoEngine
from training.engines.verl_config import OURS, PASSED, check_verl
from training.engines.verl_runtime import load_verl, no_progress_bars

WANTED = range(120)
MEASURED = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "ppo_mini_batch_size": 100}


pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # pytest resets the filter that the engine sets


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """Closing an engine collects garbage, which takes a second with VeRL's hundred thousands of objects among it."""
    load_verl("cpu")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def engine(serving_model):
    """Opens one engine at a time; the last one is closed at the end."""
    opened: list[PpoEngine] = []

    def open_(config=None, *, folder=None, seed=0, total_steps=20, temperature=1.0, **options):
        if opened:
            opened.pop().close()
        config = config or PpoSettings(**{"lr": 1e-3, "ppo_mini_batch_size": 8, "entropy_coeff": 0.01} | options)
        folder = folder or serving_model(seed=3)
        opened.append(PpoEngine(folder, config, seed=seed, total_steps=total_steps, temperature=temperature))
        return opened[0]

    yield open_
    for one in opened:
        one.close()


def some_samples(seed, count=12, peers=3):
    numbers = np.random.default_rng(seed)
    ids = [tuple(numbers.integers(0, 400, length).tolist()) for length in numbers.integers(2, 40, 2 * count)]
    rewards = numbers.normal(size=count).tolist()
    return [
        Sample(ids[place], ids[count + place], rewards[place], f"g{place // peers}", f"t{place}")
        for place in range(count)
    ]


def exported(engine, folder):
    engine.export(folder)
    return load_checkpoint(str(folder)).weights


def hugging_face(folder):
    import torch
    from transformers import AutoModelForCausalLM

    with no_progress_bars():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def log_softmax(model, sample, temperature=1.0):
    """(response tokens, vocabulary), from one unpacked forward pass."""
    import torch

    ids = torch.tensor([sample.prompt_ids + sample.response_ids])
    return torch.log_softmax(model(ids).logits[0, len(sample.prompt_ids) - 1 : -1] / temperature, dim=-1)


def chosen(logs, sample):
    import torch

    return logs.gather(1, torch.tensor(sample.response_ids)[:, None])[:, 0]


# --- what an update computes


class ByHand:
    """PPO with transformers and torch.optim: no packing, no VeRL; groups of three, token mean."""

    def __init__(self, folder, config):
        import torch

        self.config, self.model = config, hugging_face(folder)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=0.01)

    def update(self, samples):
        import torch

        config = self.config
        groups = np.array([one.reward for one in samples]).reshape(-1, 3)
        advantages = ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-6)).ravel()
        total = sum(len(one.response_ids) for one in samples)
        with torch.no_grad():
            before = [chosen(log_softmax(self.model, one), one) for one in samples]
        losses, norms = [], []
        for _ in range(config.ppo_epochs):
            loss = torch.zeros(())
            for one, advantage, old in zip(samples, advantages.tolist(), before, strict=True):
                logs = log_softmax(self.model, one)
                ratio = (chosen(logs, one) - old).exp()
                clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
                objective = torch.minimum(advantage * ratio, advantage * clipped)
                if advantage < 0:
                    objective = objective.clamp(min=3.0 * advantage)
                entropy = -(logs.exp() * logs).sum(-1)
                loss = loss - (objective + config.entropy_coeff * entropy).sum() / total
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip).item())
            self.optimiser.step()
            self.optimiser.zero_grad()
            losses.append(loss.item())
        return np.mean(losses), np.mean(norms)


@pytest.mark.parametrize("budget", [4096, 64])
def test_updates_equal_those_of_a_loop_written_by_hand(engine, serving_model, tmp_path, budget):
    # The rate is so high that the second epoch leaves the clip range; a budget of 64 tokens makes many micro-batches.
    folder = serving_model(seed=3)
    config = PpoSettings(
        **MEASURED, lr=3e-3, ppo_epochs=2, entropy_coeff=0.01, grad_clip=0.5, ppo_max_token_len_per_gpu=budget
    )
    verl, hand = engine(config, folder=folder), ByHand(folder, config)
    first = load_checkpoint(str(folder)).weights
    for step in range(3):
        samples = some_samples(step)
        metrics = verl.update(samples, step)
        loss, norm = hand.update(samples)
        assert metrics["actor/loss"] == pytest.approx(loss, abs=1e-6)
        assert metrics["actor/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert metrics["actor/pg_clipfrac"] > 0.1
    learned, own = exported(verl, tmp_path / "model"), hand.model.state_dict()
    for name, value in learned.items():
        assert (value - own[name]).abs().max() < 5e-5
        assert (value - first[name]).abs().max() > 2e-3


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_metrics_have_verls_names_and_are_true(engine, serving_model, temperature):
    samples = [*some_samples(1), Sample((1, 2), (3,), 9.0, "lonely", "t")]
    kept = samples[:-1]
    model = hugging_face(serving_model(seed=3))
    logs = [log_softmax(model, one, temperature) for one in kept]
    entropy = sum(-(one.exp() * one).sum().item() for one in logs) / sum(map(len, logs))
    metrics = engine(temperature=temperature, ppo_mini_batch_size=100).update(samples, 1)
    rewards = [one.reward for one in kept]
    expected = {
        "actor/entropy": entropy,
        "actor/lr": 1e-3,
        "actor/ppo_kl": 0.0,
        "critic/score/mean": np.mean(rewards),
        "critic/score/max": max(rewards),
        "critic/rewards/mean": np.mean(rewards),
        "response_length/mean": np.mean([len(one.response_ids) for one in kept]),
        "prompt_length/max": max(len(one.prompt_ids) for one in kept),
        "perf/total_num_tokens": sum(len(one.prompt_ids) + len(one.response_ids) for one in kept),
        "group/alone": 1.0,
        "group/zero_variance": 0.0,
        "actor/nonfinite_grads": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-5)
    stages = ("old_log_prob", "adv", "update_actor", "step")
    assert all(metrics[f"timing_s/{stage}"] > 0 for stage in stages)
    assert {"actor/pg_loss", "actor/pg_clipfrac", "actor/grad_norm", "critic/advantages/min"} < metrics.keys()
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_kl_is_to_the_phases_first_weights(engine, serving_model, tmp_path, lora_rank):
    one, samples = engine(use_kl_loss=True, lora_rank=lora_rank, lr=2e-3, ppo_mini_batch_size=100), some_samples(0)
    assert one.update(samples, 0)["actor/kl_loss"] == pytest.approx(0, abs=1e-6)
    one.export(tmp_path / "model")
    base, now = hugging_face(serving_model(seed=3)), hugging_face(tmp_path / "model")
    apart = [chosen(log_softmax(base, each), each) - chosen(log_softmax(now, each), each) for each in samples]
    expected = sum((part.exp() - part - 1).sum().item() for part in apart) / sum(map(len, apart))
    assert expected > 1e-3
    assert one.update(samples, 1)["actor/kl_loss"] == pytest.approx(expected, rel=1e-3)


def test_the_kl_may_also_be_taken_from_the_reward(engine):
    passed = {"algorithm": {"use_kl_in_reward": True, "kl_penalty": "abs", "kl_ctrl": {"kl_coef": 0.5}}}
    one, samples = engine(lr=1e-2, verl=passed), some_samples(0)
    one.update(samples, 0)
    metrics = one.update(samples, 1)
    assert metrics["actor/reward_kl_penalty"] > 0
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    lost = metrics["critic/score/mean"] - metrics["critic/rewards/mean"]
    assert lost > 0.5 * metrics["actor/reward_kl_penalty"]


def test_with_the_default_settings_ratio_clip_and_kl_act(engine):
    """A default step brings about 80 calls; its second optimiser step meets weights that the first has moved."""
    short = [
        replace(one, prompt_ids=one.prompt_ids[:4], response_ids=one.response_ids[:4])
        for one in some_samples(0, count=84, peers=4)
    ]
    metrics = engine(PpoSettings(), folder=NANO).update(short, 0)
    assert metrics["actor/optimizer_steps"] >= 2
    assert abs(metrics["actor/ppo_kl"]) > 1e-3
    assert metrics["actor/pg_clipfrac"] > 0.01


def test_a_batch_that_is_learned_from_once_is_on_policy(engine):
    metrics = engine(ppo_mini_batch_size=100, ppo_epochs=1).update(some_samples(0), 0)
    assert metrics["actor/optimizer_steps"] == 1
    assert metrics["actor/pg_clipfrac"] == 0
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)


def test_broken_weights_are_not_trained_on(engine, serving_model, tmp_path):
    from safetensors.torch import load_file, save_file

    from training.learning.weights import write_model

    broken = tmp_path / "broken"
    weights = dict(load_checkpoint(str(serving_model(seed=3))).weights)
    write_model(broken, weights, serving_model(seed=3))
    stored = load_file(broken / "model.safetensors")
    stored["model.norm.weight"][0] = float("nan")
    save_file(stored, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(RunError, match="not finite"):
        engine(folder=broken).update(some_samples(0), 0)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # There was no optimiser step before it.
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(engine, tmp_path):
    import torch

    one = engine(adv_estimator="rloo", ppo_mini_batch_size=100)
    before = exported(one, tmp_path / "before")
    samples = [Sample((1, 2), (3, 4), reward, "g", "t") for reward in (3e38, -3e38)]
    metrics = one.update(samples, 0)
    assert metrics["actor/nonfinite_grads"] == 1
    assert "actor/grad_norm" not in metrics
    assert all(torch.equal(value, before[name]) for name, value in exported(one, tmp_path / "after").items())


def test_samples_without_peers_or_tokens_are_errors(engine):
    with pytest.raises(RunError, match="none with a peer"):
        engine().update(some_samples(0, peers=1), 0)
    with pytest.raises(ValueError, match="no response tokens"):
        Sample((1,), (), 1.0, "g", "t")
    with pytest.raises(ValueError, match="reward nan"):
        Sample((1,), (2,), float("nan"), "g", "t")


@pytest.mark.parametrize(
    ("count", "peers", "sizes"),
    [(128, 1, [64, 64]), (70, 1, [70]), (97, 1, [49, 48]), (3, 1, [3]), (104, 8, [56, 48]), (72, 72, [72])],
)
def test_mini_batches_are_near_the_size_and_keep_peers_together(count, peers, sizes):
    bundles = [list(range(first, first + peers)) for first in range(0, count, peers)]
    parts = mini_batches(bundles, 64, seed=(0, 1, 0), shuffle=True)
    assert [sum(map(len, part)) for part in parts] == sizes
    assert sorted(bundle for part in parts for bundle in part) == bundles
    assert parts == mini_batches(bundles, 64, seed=(0, 1, 0), shuffle=True)
    assert len(bundles) == 1 or parts != mini_batches(bundles, 64, seed=(0, 2, 0), shuffle=True)


def branches(seed, prompts, peers, length=12):
    """Answers to the same prompts; some are equal, some begin alike."""
    numbers = np.random.default_rng(seed)
    asked = [tuple(numbers.integers(0, 400, 30).tolist()) for _ in range(prompts)]
    samples = []
    for number, prompt in enumerate(asked):
        first = numbers.integers(0, 400, length).tolist()
        for peer in range(peers):
            kept = int(numbers.integers(0, length + 1))
            answer = first[:kept] + numbers.integers(0, 400, int(numbers.integers(1, length))).tolist()
            samples.append(Sample(prompt, tuple(answer), float(numbers.normal()), f"g{number}", f"t{number}-{peer}"))
    return samples


@pytest.mark.parametrize("budget", [90, 300, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_answers_to_one_prompt_learn_as_if_each_were_computed_alone(
    engine, serving_model, tmp_path, monkeypatch, budget, temperature
):
    """Shared beginnings are computed once: equal weights and metrics, from fewer tokens."""
    from training.engines.verl_tree import TreeEngine

    samples, results, computed = branches(5, prompts=4, peers=3), [], []
    ask = TreeEngine.prepare_model_inputs

    def counted(self, micro_batch):
        inputs, outputs = ask(self, micro_batch)
        computed[-1] += inputs["input_ids"].shape[1]
        return inputs, outputs

    monkeypatch.setattr(TreeEngine, "prepare_model_inputs", counted)
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr(TreeEngine, "_fits", lambda self, micro_batch: False)
        one = engine(ppo_max_token_len_per_gpu=budget, temperature=temperature, ppo_epochs=2)
        computed.append(0)
        figures = [one.update(samples, step) for step in (1, 2)]
        results.append((figures, exported(one, tmp_path / f"{shared}")))
    (with_tree, weights), (alone, others) = results
    assert computed[0] < (0.7 if budget > 90 else 1.0) * computed[1]
    for name, value in alone[1].items():
        if "timing" not in name and "perf/" not in name and "memory" not in name:
            assert with_tree[1][name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert all(np.allclose(weights[name], others[name], atol=2e-5) for name in others)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_tree_keeps_each_beginning_once_and_every_token_sees_its_own_sequence(sequences):
    import torch

    from training.engines.prefix_tree import grow

    tree = grow(torch.tensor([token for one in sequences for token in one]), [len(one) for one in sequences])
    prefixes = {tuple(one[: depth + 1]) for one in sequences for depth in range(len(one))}
    assert len(tree.kept) == len(prefixes) == sum(run.size for run in tree.runs)
    flat = [tuple(one[: depth + 1]) for one in sequences for depth in range(len(one))]
    assert [flat[tree.kept[place]] for place in tree.place.tolist()] == flat
    begins = np.cumsum([0, *(run.size for run in tree.runs)]).tolist()
    for number, run in enumerate(tree.runs):
        seen = [begins[earlier] + depth for earlier, size in run.before for depth in range(size)]
        own = flat[tree.kept[begins[number]]]
        assert [flat[tree.kept[place]] for place in seen] == [own[: depth + 1] for depth in range(len(own) - 1)]


# --- learning


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
    updates = 15
    one = engine(PpoSettings(**{"lr": 3e-2, "ppo_mini_batch_size": 24} | options), total_steps=updates)
    history = [one.update(sampled(one, tmp_path / "model", step), step) for step in range(updates)]
    rewards = [metrics["critic/score/mean"] for metrics in history]
    assert np.mean(rewards[:2]) < 0.35
    assert np.mean(rewards[-2:]) > 0.6
    if options["adv_estimator"] == "gae":
        assert [("actor/loss" in metrics) for metrics in history[:3]] == [False, False, True]
        assert all("critic/vf_loss" in metrics for metrics in history)


def test_the_critic_learns_the_values(engine):
    one = engine(adv_estimator="gae", critic_warmup=30, critic_lr=3e-3, lam=1.0)
    samples = [Sample((5 + place % 2, 9), (7, 8, 9), float(place % 2), "g", "t") for place in range(16)]
    losses = [one.update(samples, step)["critic/vf_loss"] for step in range(25)]
    assert losses[-1] < 0.2 * losses[0]


# --- resuming


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
    for one, other in zip(rest, whole[2:], strict=True):
        same = [name for name in other if not name.startswith(("perf/", "timing_s/"))]
        assert {name: one[name] for name in same} == {name: other[name] for name in same}


def test_a_new_process_goes_on_bit_for_bit_and_keeps_to_itself(engine, serving_model, tmp_path):
    """The child also shows that the engine listens on loopback only and leaves the process as it was."""
    import torch

    code = """
        import json, logging, os, random, sys, warnings
        from pathlib import Path
        import psutil

        before = dict(os.environ), random.getstate(), logging.getLogger().handlers[:]
        from training.algorithms.ppo.settings import PpoSettings
        from training.engines.local import PpoEngine, Sample

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
    config = {"lr": 1e-3, "ppo_mini_batch_size": 8, "entropy_coeff": 0.01}
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


# --- exporting


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
    one = engine()
    one.export(tmp_path / "model")
    old = (tmp_path / "model" / "model.safetensors").read_bytes()
    trained(one, [0])

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(RunError, match=r"No space.*: make room there"):
        one.export(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# --- one engine at a time, and VeRL's configuration


def test_a_second_engine_waits_for_the_first_to_close(engine, serving_model):
    one = engine()
    with pytest.raises(RunError, match="close the other engine first"):
        PpoEngine(serving_model(seed=3), PpoSettings(), seed=0, total_steps=1)
    trained(one, [0])  # The first is none the worse for it.
    one.close()
    one.close()
    trained(engine(), [0])


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ({"actr": {}}, r"no part 'actr' \(did you mean 'actor'\?\)"),
        ({"actor": {"clip_ratio_d": 3}}, r"verl\.actor\.clip_ratio_d is unknown .*did you mean 'clip_ratio_c'"),
        ({"actor": {"clip_ratio_low": 0.1}}, r"is set by ppo\.clip_ratio_low"),
        ({"optim": {"lr": 0.1}}, r"verl\.optim\.lr is set by ppo\.lr"),
        ({"engine": {"ulysses_sequence_parallel_size": 2}}, "unknown or has no effect here"),
        ({"model": [1]}, "must be a mapping"),
    ],
)
def test_wrong_names_for_verl_are_errors(passed, message):
    with pytest.raises(ConfigError, match=message):
        check_verl(passed)


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ({"optim": {"lr_scheduler_type": "linear"}}, r"ppo\.verl\.optim: VeRL refuses it"),
        ({"actor": {"policy_loss": {"los_mode": "gspo"}}}, r"ppo\.verl\.actor\.policy_loss\.los_mode is unknown"),
    ],
)
def test_wrong_values_for_verl_are_errors(engine, passed, message):
    with pytest.raises(ConfigError, match=message):
        engine(verl=passed)
    trained(engine(), [0])


def test_what_is_passed_through_takes_effect(engine, tmp_path):
    import torch

    plain = engine()
    trained(plain, range(2))
    usual = exported(plain, tmp_path / "usual")
    changes = [
        {"actor": {"policy_loss": {"loss_mode": "gspo"}}},
        {"actor": {"shuffle": False}},
        {"optim": {"weight_decay": 0.3}},
        {"optim": {"optimizer": "SGD", "override_optimizer_config": {"momentum": 0.5}}},
        {"engine": {"mixed_precision": {"param_dtype": "bf16"}}},
    ]
    for passed in changes:
        one = engine(verl=passed)
        trained(one, range(2))
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
    assert kinds.keys() == PASSED.keys() == OURS.keys()
    for part, kind in kinds.items():
        names = {field.name for field in dataclasses.fields(kind)}
        assert PASSED[part] <= names
        assert OURS[part].keys() - {"grad_clip"} <= names
        assert not PASSED[part] & OURS[part].keys()
        assert set(OURS[part].values()) <= PpoSettings.model_fields.keys()
