"""Token records: what an engine used is what is written, found again by rollout, and replaced whole."""

import gzip
import math
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from engine_kit import chosen, hugging_face, log_softmax
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import RunError
from evaluation.traces.token_loss import gradient_shares, is_clipped, loss, loss_shares, pull, ratio
from evaluation.traces.token_records import Objective, TokenRecord, read_tokens, tokens_file, tokens_of, write_tokens
from training.learning.experience import Call
from training.ppo.credit import Credited
from training.ppo.engine.update import PpoEngine
from training.ppo.steps import samples_of
from training.ppo.tokens import record_update, token_weights
from training.ppo.verl.settings import PpoSettings

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
numbers = st.floats(allow_nan=False, allow_infinity=False)


def tenths(least, most):
    return st.integers(least, most).map(lambda number: number / 10)


def made_up(rollout_id="ro-1", tokens=2):
    values = [float(number) for number in range(tokens)]
    return TokenRecord(
        rollout_id, f"{rollout_id}-r", "ProtocolDesigner", 1, 1, 1, 0.5, "v", [1.0] * tokens, values, values,
        objective=Objective(0.5, 1.0, 1.0, 4.0, 0.2, 0.28, 3.0),
    )  # fmt: skip


def credited(number, response, reward):
    call = Call(f"ro-{number}", "HypothesisRefiner", 1, 1, 1, f"r-{number}", (1, 2, number), response, "v7", 0.0, True)
    return Credited(call, reward)


def test_the_records_are_what_the_engine_used(serving_model, tmp_path, monkeypatch):
    monkeypatch.setattr("training.ppo.engine.update.REREAD", 2)
    folder = serving_model(seed=3)
    calls = [credited(0, (5, 6, 7), 1.0), credited(1, (8,), 0.0), credited(2, (), 9.0), credited(3, (9, 4), 0.5)]
    samples = samples_of(calls, "t0") + samples_of([credited(4, (3,), 2.0)], "lonely")
    settings = PpoSettings(lr=1e-3)
    model = hugging_face(folder)
    with closing(PpoEngine(folder, settings, seed=0, total_steps=3)) as engine:
        metrics = engine.update(samples, 1, partial(record_update, tmp_path, "ppo", 1, settings))
        engine.export(tmp_path / "after")
    after = hugging_face(tmp_path / "after")
    records = read_tokens(tokens_file(tmp_path, "ppo", 1))
    assert [record.response_id for record in records] == ["r-0", "r-1", "r-3"]  # no tokens, no peer: not learned from
    assert [(record.reward, record.policy) for record in records] == [(1.0, "v7"), (0.0, "v7"), (0.5, "v7")]
    rewards = np.array([1.0, 0.0, 0.5])
    for record, sample, reward in zip(records, samples, rewards, strict=False):
        expected = chosen(log_softmax(model, sample), sample)
        assert record.old_log_probs == pytest.approx(expected.tolist(), abs=1e-5)
        advantage = (reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        assert record.advantages == pytest.approx([advantage] * len(sample.response_ids), abs=1e-5)
        assert record.mask == [1.0] * len(sample.response_ids)
        assert (record.new_log_probs is None) == (record.response_id == "r-3"), "two calls are read again"
        if record.new_log_probs is not None:
            expected = chosen(log_softmax(after, sample), sample)
            assert record.new_log_probs == pytest.approx(expected.tolist(), abs=1e-5)
            assert record.new_log_probs != pytest.approx(record.old_log_probs, abs=1e-4)
        assert record.objective.grad_norm == metrics["actor/grad_norm"]
    assert sum(share for record in records for share in loss_shares(record)) == pytest.approx(1)
    assert sum(share for record in records for share in gradient_shares(record)) == pytest.approx(1)
    assert metrics["critic/advantages/max"] == max(value for record in records for value in record.advantages)


@given(st.lists(st.tuples(numbers, numbers), max_size=5), numbers, st.integers(0, 3))
def test_a_record_is_read_as_it_was_written(tmp_path_factory, values, reward, copies):
    path = tokens_file(tmp_path_factory.mktemp("run"), "ppo", 3)
    columns = [[pair[place] for pair in values] for place in (0, 1)]
    record = replace(
        made_up(), reward=reward, mask=[1.0] * len(values), advantages=columns[0], old_log_probs=columns[1]
    )
    write_tokens([record] * copies, path)
    assert read_tokens(path) == [record] * copies


def test_a_rollout_is_found_in_whatever_update_learned_from_it(tmp_path):
    assert tokens_of(tmp_path, "ro-1") == []
    for step, names in ((2, ["ro-1", "ro-2"]), (10, ["ro-12", "ro-3"])):
        write_tokens(map(made_up, names), tokens_file(tmp_path, "ppo", step))
    assert tokens_of(tmp_path, "ro-3") == [made_up("ro-3")]
    assert tokens_of(tmp_path, "ro-1") == [made_up("ro-1")]
    assert tokens_of(tmp_path, "ro-9") == []


def test_a_step_made_again_replaces_its_file_whole(tmp_path):
    path = tokens_file(tmp_path, "ppo", 1)
    write_tokens([made_up("ro-1"), made_up("ro-2")], path)
    first = path.read_bytes()
    write_tokens([made_up("ro-9")], path)
    assert [record.rollout_id for record in read_tokens(path)] == ["ro-9"]
    write_tokens([made_up("ro-1"), made_up("ro-2")], path)
    assert path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_broken_file_is_an_error_that_names_it(tmp_path):
    path = tokens_file(tmp_path, "ppo", 1)
    with pytest.raises(RunError, match="tokens-1"):
        read_tokens(path)
    write_tokens([made_up()], path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RunError, match="tokens-1"):
        tokens_of(tmp_path, "ro-1")
    path.write_bytes(gzip.compress(b'{"rollout_id": "ro-1"}'))
    with pytest.raises(RunError, match="tokens-1"):
        read_tokens(path)


def test_an_advantage_that_is_no_number_is_kept_as_such(tmp_path):
    write_tokens([replace(made_up(), advantages=[math.nan, -math.inf])], tokens_file(tmp_path, "ppo", 1))
    (record,) = read_tokens(tokens_file(tmp_path, "ppo", 1))
    assert math.isnan(record.advantages[0])
    assert record.advantages[1] == -math.inf


@given(
    st.lists(st.tuples(tenths(-30, 30), tenths(-50, -1), tenths(-20, 20)), min_size=1, max_size=6),
    st.sampled_from(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]),
)
def test_loss_and_gradient_are_those_of_verl(tokens, mode):
    """VeRL's own loss of one call, and autograd's gradient by the logits of a vocabulary of five."""
    import torch
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import ActorConfig

    objective = Objective(0, 0, 0, None, 0.2, 0.28, 3.0)
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_mini_batch_size=1, ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0, optim=OmegaConf.create({}),
    )  # fmt: skip
    logits = torch.tensor([[shift, 0.3, -0.2, 0.1, -1.0] for _, _, shift in tokens], dtype=torch.float64)
    logits.requires_grad_()
    new = torch.log_softmax(logits, -1)[:, 0]
    old = torch.tensor([value for _, value, _ in tokens], dtype=torch.float64)
    advantages = torch.tensor([value for value, _, _ in tokens], dtype=torch.float64)
    mask = torch.ones(1, len(tokens), dtype=torch.float64)
    made = compute_policy_loss_vanilla(old[None], new[None], advantages[None], mask, mode, config)[0]
    made.backward()
    (weight,) = token_weights(mode, [len(tokens)])
    ratios = [ratio(*pair) for pair in zip(old.tolist(), new.tolist(), strict=True)]
    losses = [loss(a, r, objective) for a, r in zip(advantages.tolist(), ratios, strict=True)]
    assert weight * sum(losses) == pytest.approx(made.item(), rel=1e-6, abs=1e-9)
    columns = map(torch.Tensor.tolist, (advantages, old, new))
    for a, o, n, r, of_token in zip(*columns, ratios, logits.grad, strict=True):
        least = weight * pull(a, o, n, objective)
        assert least * (1 - 1e-6) - 1e-9 <= float(of_token.norm()) <= math.sqrt(2) * least * (1 + 1e-6) + 1e-9
        assert (least == 0) == (a == 0 or is_clipped(a, r, objective))
