"""One update of PPO through VeRL on tiny random models: what it computes, beside a loop written by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from engine_kit import apart, chosen, exported, hugging_face, log_softmax, ppo_settings, some_samples, untimed
from hypothesis import given
from hypothesis import strategies as st

from chimera.config.sections.bundled import NANO
from chimera.core.errors import RunError
from chimera.serving.embedded.checkpoint import load_checkpoint
from training.ppo.engine.advantages import importance
from training.ppo.engine.batch import Sample, mini_batches
from training.ppo.verl.settings import PpoSettings

MEASURED = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "ppo_mini_batch_size": 100}


pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # pytest resets the filter that the engine sets


log_probs = st.lists(
    st.lists(st.tuples(st.floats(-8, 0), st.floats(-8, 0)), min_size=1, max_size=6), min_size=1, max_size=4
)


@given(log_probs, st.sampled_from([0.5, 1.0, 2.0, 100.0]))
def test_importance_weights_are_truncated_ratios(rows, threshold):
    import torch

    width = max(map(len, rows))
    mask = torch.tensor([[float(place < len(row)) for place in range(width)] for row in rows])
    old, sampled = (
        torch.tensor([[pair[which] for pair in row] + [0.0] * (width - len(row)) for row in rows]) for which in (0, 1)
    )
    token, metrics = importance(old, sampled, mask, level="token", threshold=threshold)
    whole, _ = importance(old, sampled, mask, level="sequence", threshold=threshold)
    same, _ = importance(old, old, mask, level="token", threshold=max(1.0, threshold))
    assert torch.equal(same, mask)
    for row, of_tokens, of_row in zip(rows, token, whole, strict=True):
        expected = [min(math.exp(left - right), threshold) for left, right in row]
        assert of_tokens.tolist() == pytest.approx(expected + [0.0] * (width - len(row)), rel=1e-4)
        ratio = math.exp(max(-20.0, min(20.0, math.fsum(left - right for left, right in row))))
        assert of_row[: len(row)].tolist() == pytest.approx([min(ratio, threshold)] * len(row), rel=1e-4)
    assert metrics["rollout_corr/rollout_is_max"] <= threshold * (1 + 1e-6)


class ByHand:
    """PPO with transformers and torch.optim: no packing, no VeRL; groups of three, token mean."""

    def __init__(self, folder, config):
        import torch

        self.config, self.model = config, hugging_face(folder)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=0.01)

    def update(self, samples):
        import torch

        config, verl = self.config, self.config.verl_values
        groups = np.array([one.reward for one in samples]).reshape(-1, 3)
        advantages = ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-6)).ravel()
        total = sum(len(one.response_ids) for one in samples)
        with torch.no_grad():
            before = [chosen(log_softmax(self.model, one), one) for one in samples]
        losses, norms = [], []
        ones = [torch.ones(len(one.response_ids)) for one in samples]
        if config.ahead:
            sampled = [torch.tensor(one.log_probs) for one in samples]
            ones = [(old - by).exp().clamp(max=1.5) for old, by in zip(before, sampled, strict=True)]
        for _ in range(verl.actor.ppo_epochs):
            loss = torch.zeros(())
            for one, advantage, old, weight in zip(samples, advantages.tolist(), before, ones, strict=True):
                logs = log_softmax(self.model, one)
                ratio = (chosen(logs, one) - old).exp()
                clipped = ratio.clamp(1 - verl.actor.clip_ratio_low, 1 + verl.actor.clip_ratio_high)
                objective = torch.minimum(advantage * ratio, advantage * clipped)
                if advantage < 0:
                    objective = objective.clamp(min=3.0 * advantage)
                entropy = -(logs.exp() * logs).sum(-1)
                loss = loss - (weight * objective + verl.actor.entropy_coeff * entropy).sum() / total
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), verl.optim.clip_grad).item())
            self.optimiser.step()
            self.optimiser.zero_grad()
            losses.append(loss.item())
        return np.mean(losses), np.mean(norms)


@pytest.mark.parametrize(("budget", "ahead"), [(4096, 0), (64, 0), (64, 1)])
def test_updates_equal_those_of_a_loop_written_by_hand(engine, serving_model, tmp_path, budget, ahead):
    # The rate is so high that the second epoch leaves the clip range; a budget of 64 tokens makes many micro-batches.
    folder = serving_model(seed=3)
    config = ppo_settings(
        **MEASURED, lr=3e-3, ppo_epochs=2, entropy_coeff=0.01, clip_grad=0.5, ppo_max_token_len_per_gpu=budget,
        ahead=ahead, rollout_is_threshold=1.5,
    )  # fmt: skip
    verl, hand = engine(config, folder=folder), ByHand(folder, config)
    first = load_checkpoint(str(folder)).weights
    for step in range(3):
        samples = some_samples(step)
        if ahead:
            drawn = np.random.default_rng(step)
            scores = [tuple(drawn.uniform(-8, -5, len(one.response_ids)).tolist()) for one in samples]
            samples = [replace(one, log_probs=two) for one, two in zip(samples, scores, strict=True)]
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
        "actor/optimizer_steps": 1.0,
        "actor/pg_clipfrac": 0.0,
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
    assert {"actor/pg_loss", "actor/grad_norm", "critic/advantages/min"} < metrics.keys()
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


def test_broken_weights_are_not_trained_on(engine, serving_model, tmp_path):
    from safetensors.torch import load_file, save_file

    from training.model.weights import write_model

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


def test_samples_without_tokens_or_a_reward_are_errors():
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


@pytest.mark.parametrize(("budget", "temperature"), [(90, 0.7), (300, 0.7), (10_000, 0.7), (300, 1.0)])
def test_answers_to_one_prompt_learn_as_if_each_were_computed_alone(
    engine, serving_model, tmp_path, monkeypatch, budget, temperature
):
    """Shared beginnings are computed once: equal weights and metrics, from fewer tokens."""
    from training.ppo.verl.patches import TreeEngine

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
    assert untimed(with_tree[1]) == pytest.approx(untimed(alone[1]), rel=1e-3, abs=1e-5)
    assert all(np.allclose(weights[name], others[name], atol=2e-5) for name in others)


def test_the_budget_of_tokens_changes_no_mini_batch(engine, tmp_path):
    samples, weights = branches(5, prompts=4, peers=3), []
    for budget in (90, 10_000):
        one = engine(ppo_max_token_len_per_gpu=budget)
        one.update(samples, 1)
        weights.append(exported(one, tmp_path / str(budget)))
    assert apart(*weights) < 2e-5


@pytest.mark.parametrize("shared", [True, False])
def test_logits_in_chunks_teach_the_same(engine, serving_model, tmp_path, monkeypatch, shared):
    """Log-probabilities and entropies of a few tokens at a time, also where calls share beginnings."""
    from training.model import chunked_head

    samples = branches(5, prompts=4, peers=3) if shared else some_samples(5)
    results, sizes = [], []
    scores = chunked_head.ChunkedHead._scores

    def counted(self, hidden, labels, asked):
        sizes.append(len(hidden))
        return scores(self, hidden, labels, asked)

    monkeypatch.setattr(chunked_head.ChunkedHead, "_scores", counted)
    for logits in (chunked_head.LOGITS, 10 * 512):
        monkeypatch.setattr(chunked_head, "LOGITS", logits)
        one = engine(temperature=0.7, ppo_epochs=2)
        figures = [one.update(samples, step) for step in (1, 2)]
        results.append((figures, exported(one, tmp_path / str(logits))))
        if logits > 10 * 512:
            assert sizes == []
    assert max(sizes) == 10
    (whole, weights), (chunked, others) = results
    assert untimed(chunked[1]) == pytest.approx(untimed(whole[1]), rel=1e-3, abs=1e-5)
    assert all(np.allclose(weights[name], others[name], atol=2e-5) for name in others)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_tree_keeps_each_beginning_once_and_every_token_sees_its_own_sequence(sequences):
    import torch

    from training.model.prefix_tree import grow

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
