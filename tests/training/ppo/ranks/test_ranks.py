"""Updates by two ranks: those of one rank, whatever is learned; checkpoints for any number; a rank that dies."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import psutil
import pytest
from engine_kit import apart, exported, some_samples, untimed

from chimera.core.errors import RunError
from training.ppo.engine.batch import Sample
from training.ppo.ranks.here import LocalRanks

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),  # pytest resets the filter that the engine sets
]

SCHEDULE = {"optim": {"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1, "lr_warmup_steps": 2}}
IN_REWARD = {"algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"type": "adaptive", "horizon": 40}}}


def peers(seed, prompts=5, answers=3):
    """Answers to the same prompts, and one call that is alone in its group."""
    numbers = np.random.default_rng(seed)
    asked = [tuple(numbers.integers(0, 400, 30).tolist()) for _ in range(prompts)]
    said = [tuple(numbers.integers(0, 400, int(length)).tolist()) for length in numbers.integers(1, 14, 99)]
    rewards = numbers.normal(size=99).tolist()
    return [
        Sample(asked[n // answers], said[n], rewards[n], f"g{n // answers}", "t") for n in range(prompts * answers)
    ] + [Sample((1, 2), (3,), 9.0, "lonely", "t")]


def sampled(sample):
    """With how likely its tokens were when they were sampled: about as likely as for the model of these tests."""
    numbers = np.random.default_rng(len(sample.response_ids))
    return replace(sample, log_probs=tuple(numbers.normal(-6.2, 0.1, len(sample.response_ids)).tolist()))


def learned(engine, folder, batches):
    """Metrics, what each update's watch has seen, and the weights at the end."""
    seen = []

    def watch(batch, metrics):
        columns = {"mask": batch.mask, "after": batch.after, **batch.columns}
        seen.append((batch.samples, {name: value.clone() for name, value in columns.items()}))

    metrics = [engine.update(batch, step, watch) for step, batch in enumerate(batches)]
    return metrics, seen, exported(engine, folder)


@pytest.mark.parametrize(
    "options",
    [
        {"adv_estimator": "grpo", "ppo_epochs": 2},
        {"adv_estimator": "rloo", "loss_agg_mode": "seq-mean-token-mean", "shards": "fsdp"},
        {"adv_estimator": "reinforce_plus_plus", "verl": IN_REWARD},
        {"adv_estimator": "gae", "critic_warmup": 1, "shards": "fsdp"},
        {"lora_rank": 4, "use_kl_loss": True, "lr": 4e-3},
        {"lora_rank": 4, "use_kl_loss": True, "lr": 4e-3, "shards": "fsdp"},
        {"use_kl_loss": True, "kl_loss_coef": 0.1, "shards": "fsdp"},
        {"ahead": 1, "rollout_is": "sequence", "rollout_is_threshold": 1.5},
    ],
    ids=["grpo", "rloo fsdp", "reinforce++ kl", "gae fsdp", "lora", "lora fsdp", "reference fsdp", "ahead"],
)
def test_two_ranks_learn_what_one_learns(one, two, tmp_path, options):
    batches = [some_samples(0), peers(1), peers(2)]
    if "ahead" in options:
        batches = [[sampled(one) for one in batch] for batch in batches]
    metrics, seen, weights = learned(one(**options), tmp_path / "one", batches)
    engine = two(**options)
    others, witnessed, found = learned(engine, tmp_path / "two", batches)
    for own, other in zip(metrics, others, strict=True):
        assert untimed(other) == pytest.approx(untimed(own), rel=1e-4, abs=1e-5)
        assert own.keys() == other.keys()
    for (samples, columns), (theirs, values) in zip(seen, witnessed, strict=True):
        assert samples == theirs
        assert columns.keys() == values.keys()
        for name in columns:
            assert values[name].numpy() == pytest.approx(columns[name].numpy(), rel=1e-4, abs=2e-5), name
    assert apart(found, weights) < 1e-5


def test_micro_batches_and_ranks_without_rows_change_nothing(one, two, tmp_path):
    """A budget of 90 tokens makes ranks with different numbers of pieces; the last batch has one call for two ranks."""
    options = {"adv_estimator": "gae", "ppo_max_token_len_per_gpu": 90, "shards": "fsdp", "critic_warmup": 0}
    batches = [peers(1), [Sample((5, 6, 7), (8, 9, 10), 1.0, "g", "t")]]
    _, _, weights = learned(one(**options), tmp_path / "one", batches)
    _, _, found = learned(two(**options), tmp_path / "two", batches)
    assert apart(found, weights) < 5e-5  # Where a gradient is nearly 0, Adam enlarges rounding.


def test_what_cannot_be_learned_is_said_as_by_one_rank_and_the_ranks_go_on(two):
    engine = two()
    with pytest.raises(RunError, match="none with a peer"):
        engine.update(some_samples(0, peers=1), 0)
    assert engine.update(some_samples(0), 0)["actor/optimizer_steps"] == 2


def test_a_checkpoint_fits_any_number_of_ranks(one, two, tmp_path):
    """Saved by two, it is continued by two bit for bit, by one in this process, and by three."""
    import torch

    options = {"adv_estimator": "gae", "shards": "fsdp", "lora_rank": 4, "verl": SCHEDULE}
    first = two(**options)
    for step in (0, 1):
        first.update(some_samples(step), step)
    checkpoint = tmp_path / "checkpoint"
    first.save(checkpoint)
    alone = one(**options)
    alone.save(tmp_path / "of one")
    assert sorted(file.name for file in checkpoint.iterdir()) == sorted(
        file.name for file in (tmp_path / "of one").iterdir()
    )
    expected = first.update(some_samples(2), 2), exported(first, tmp_path / "straight")
    again = two(**options)
    again.load(checkpoint)
    assert again.updates == 2
    metrics, weights = again.update(some_samples(2), 2), exported(again, tmp_path / "again")
    assert untimed(metrics) == untimed(expected[0])
    assert all(torch.equal(weights[name], value) for name, value in expected[1].items())
    alone.load(checkpoint)
    three = two(**options, start=lambda: LocalRanks(3, tmp_path, "three"))
    three.load(checkpoint)
    for engine, name in ((alone, "one"), (three, "three")):
        assert engine.update(some_samples(2), 2)["actor/lr"] == expected[0]["actor/lr"]
        assert engine.updates == 3
        assert apart(exported(engine, tmp_path / name), expected[1]) < 1e-5
    three.close()


def test_a_rank_that_is_killed_is_named_and_its_step_can_be_made_again(two, ranks, tmp_path):
    """As `--resume` does: new ranks go on from the last checkpoint, to the same weights bit for bit."""
    import torch

    checkpoint = tmp_path / "checkpoint"
    straight = two(shards="fsdp")
    for step in range(3):
        straight.update(some_samples(step), step)
    expected = exported(straight, tmp_path / "straight")
    engine = two(shards="fsdp")
    engine.update(some_samples(0), 0)
    engine.save(checkpoint)
    engine.update(some_samples(1), 1)
    before = ranks.started[-1].pids
    os.kill(before[1], signal.SIGSTOP)  # So the update cannot end before the kill.
    killer = threading.Timer(0.5, os.kill, (before[1], signal.SIGKILL))
    killer.start()
    with pytest.raises(RunError) as lost:
        engine.update(some_samples(2), 2)
    killer.join()
    engine.close()
    for text in (f"rank 1 of 2 (process {before[1]})", "SIGKILL", "--resume"):
        assert text in str(lost.value)
    assert not any(psutil.pid_exists(pid) for pid in before)
    again = two(shards="fsdp")
    again.load(checkpoint)
    for step in (1, 2):
        again.update(some_samples(step), step)
    assert again.updates == 3
    assert all(torch.equal(expected[name], value) for name, value in exported(again, tmp_path / "two").items())


def test_ranks_end_with_their_parent(tmp_path):
    """However it ends: here by SIGKILL, while its ranks wait for orders."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = list(map(int, parent.stdout.readline().split()))
    processes = [psutil.Process(pid) for pid in pids]
    parent.kill()
    assert not psutil.wait_procs(processes, timeout=60)[1]
    parent.wait()
    parent.stdout.close()


PARENT = """
import sys, time
from pathlib import Path
from training.ppo.ranks.here import LocalRanks
ranks = LocalRanks(2, Path(sys.argv[1]), "orphans")
print(*ranks.pids, flush=True)
time.sleep(600)
"""


def test_ranks_meet_on_loopback_only(ranks):
    ranks()
    listening = [one.laddr.ip for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
    assert set(listening) == {"127.0.0.1"}
    for pid in ranks.started[-1].pids:
        theirs = [one.laddr.ip for one in psutil.Process(pid).net_connections() if one.status == psutil.CONN_LISTEN]
        assert set(theirs) <= {"127.0.0.1"}
