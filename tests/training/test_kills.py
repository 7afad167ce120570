"""A run is killed at named moments, again and again: it goes on each time, loses and repeats nothing, leaves nothing.

The short chain kills while rollouts are gathered. The long one goes through every phase and
the evaluation; in the end the same rollouts are given to a run that nobody kills, which must learn the same weights.
"""

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from kill_chain import GONE_S, Chain, Kill, events, exists, learned, lines, metrics, recorded, written

from chimera.run.chain import read_chain
from chimera.run.directory import Run
from chimera.run.jsonl import read_lines
from chimera.run.policies import live
from chimera.run.seals import history, unlike_disk

pytestmark = pytest.mark.whole

FEW = ["data.size=60", "rollouts.concurrency=2", "gate.tasks=4", "gate.margin=9", "gate.margin_alignment=0.9",
       "evaluation.auditor.kind=none", "wandb.mode=disabled"]  # fmt: skip
SETTINGS = [
    *FEW, "gather.tasks=12", "sft.min_examples=1", "sft.epochs=8", "sft.batch_size=8", "sft.micro_batch_size=8",
    "ppo.steps=3", "ppo.tasks_per_step=2", "ppo.n=2", "ppo.min_good_share=0.1", "bandit.tasks=6",
]  # fmt: skip
PHASES = ("gather", "sft", "ppo", "bandit")


def rollouts(phase: str) -> dict:
    """A moment: one more rollout of `phase` is recorded."""
    return {"moment": f"a rollout of {phase}", "count": lines(f"rollouts/{phase}.jsonl")}


def last_stage(run: Path) -> int:
    """How many rollouts of the evaluation are those of the last stage, whichever phase that is."""
    files = run.glob("rollouts/eval-test-*.jsonl")
    return sum(len(list(read_lines(file))) for file in files if file.stem != "eval-test-base-at-0.3")


def began(phase: str) -> dict:
    """A moment: `phase` begins, or begins again."""
    return {"moment": f"the beginning of {phase}", "count": events("phase_started", phase)}


def has_learned(phase: str) -> dict:
    """A moment: what `phase` learned is in the ledger, and not yet compared."""
    return {"moment": f"the end of learning of {phase}", "count": events("phase_learned", phase)}


STARTING = [
    Kill("main", "the folder's making", exists(".")),
    Kill("main", "the first line of the ledger", written("ledger.jsonl", "created")),
    Kill("main", "the settings' writing", written("config.yaml")),
    Kill("main", "the plan's writing", written("ledger.jsonl", "planned")),
    Kill("server", "its start"),
    Kill("main", "the server's start", written("logs/models.log")),
]
GATHERING = [Kill("main", **began("gather")), Kill("server", **rollouts("gather")), Kill("main", **rollouts("gather"))]
SHORT = [STARTING[0], *GATHERING]
LONG = [
    *STARTING,
    *GATHERING,
    Kill("main", "the end of gather", events("phase_finished", "gather")),
    Kill("main", **rollouts("gate-base")),
    Kill("server", **rollouts("gate-base")),
    Kill("main", **began("sft")),
    Kill("child", "its start"),
    Kill("child", "the examples' writing", written("phases/sft/examples.jsonl")),
    Kill("main", "a step of sft", metrics("sft")),
    Kill("child", "a step of sft", metrics("sft")),
    Kill("main", **has_learned("sft")),
    Kill("server", **rollouts("gate-sft")),
    Kill("main", **began("ppo")),
    Kill("main", **rollouts("ppo")),
    Kill("main", "new weights going live", exists("models/senior/ppo-1")),
    Kill("server", **rollouts("ppo")),
    Kill("main", "another step of ppo", metrics("ppo")),
    Kill("main", **has_learned("ppo")),
    Kill("main", **rollouts("gate-ppo")),
    Kill("main", **began("bandit")),
    Kill("server", **rollouts("bandit")),
    Kill("main", **rollouts("bandit")),
    Kill("main", **has_learned("bandit")),
    Kill("main", **rollouts("eval-test-base-at-0.3"), module="chimera.eval"),
    Kill("server", **rollouts("eval-test-base-at-0.3"), module="chimera.eval"),
    Kill("main", "a rollout of the last stage's evaluation", last_stage, module="chimera.eval"),
]


def follow(chain: Chain, kills: list[Kill]) -> None:
    for number, one in enumerate(kills, start=1):
        chain.kill(one)
        print(f"{number:2}/{len(kills)} {one}", flush=True)


def check_left(chain: Chain) -> None:
    """Processes end within 3 s of their parent; on a machine that does other work too, only that they end counts."""
    print(f"{chain.starts} starts; all processes were gone {chain.slowest:.1f} s after their parent at the latest")
    if os.getloadavg()[0] < (os.cpu_count() or 1):
        assert chain.slowest < GONE_S


def check_metrics(chain: Chain) -> None:
    """Metrics name each rollout of training once, also one that was recorded when its run was killed."""
    logged = [line["rollout_id"] for line in read_lines(chain.run / "metrics.jsonl") if line["phase"] == "rollout"]
    records = [record for phase, of in recorded(chain.run).items() if not phase.startswith("eval-") for record in of]
    assert logged
    assert sorted(logged) == sorted(record["rollout_id"] for record in records)


@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_four_times_while_it_gathers_loses_nothing(tmp_path):
    """Each time by --resume and the run's name alone, as a user types it."""
    chain = Chain(tmp_path, "short", [*FEW, "gather.tasks=8"], ["gather"], knows_itself=True)
    try:
        follow(chain, SHORT)
        chain.finish()
    finally:
        chain.close()
    assert {phase: len(found) for phase, found in recorded(chain.run).items()} == {"gather": 8}
    ledger = list(read_lines(chain.run / "ledger.jsonl"))
    found = Counter(event["event"] for event in ledger)
    assert (found["phase_failed"], found["phase_finished"]) == (1, 1), "one server was killed"
    assert list(unlike_disk(chain.run, history(ledger))) == []
    check_metrics(chain)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The run that went through the long chain, and its evaluation."""
    folder = tmp_path_factory.mktemp("kills")
    chain = Chain(folder, "killed", SETTINGS, PHASES)
    try:
        follow(chain, LONG)
        chain.finish("chimera.eval")
    finally:
        chain.close()
    return chain


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_nothing_is_lost_or_made_twice_or_left_running_by_thirty_kills(killed):
    assert len(LONG) >= 30
    counts = {phase: len(found) for phase, found in recorded(killed.run).items()}
    held_out = {f"gate-{stage}": 4 for stage in ("base", "sft", "ppo", "bandit")}
    tests = [counts.pop(phase) for phase in list(counts) if phase.startswith("eval-test-")]
    assert counts == {"gather": 12, "ppo": 12, "bandit": 6, **held_out}
    assert tests == [12, 12]
    ledger = list(read_lines(killed.run / "ledger.jsonl"))
    assert read_chain(killed.run / "ledger.jsonl")
    assert list(unlike_disk(killed.run, history(ledger))) == []
    for event in ("phase_finished", "phase_learned"):
        of_phase = [line["phase"] for line in ledger if line["event"] == event]
        assert len(of_phase) == len(set(of_phase)), event
    check_metrics(killed)
    steps = {line["step"] for line in read_lines(killed.run / "metrics.jsonl") if line["phase"] == "ppo"}
    assert steps >= {1, 2, 3}
    check_left(killed)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_an_unkilled_run_learns_the_same_weights_from_the_same_rollouts(killed):
    """Phase by phase, so that each finds the rollouts that there were at its time; none is left to be made."""
    chain = Chain(killed.run.parent, "unkilled", SETTINGS, PHASES)
    chain.run.mkdir()
    for name in ("config.yaml", "environment.json"):
        shutil.copy(killed.run / name, chain.run)
    beginning = (killed.run / "ledger.jsonl").read_text().splitlines(keepends=True)
    planned = next(number for number, line in enumerate(beginning) if '"event":"planned"' in line)
    (chain.run / "ledger.jsonl").write_text("".join(beginning[: planned + 1]))
    (chain.run / "rollouts").mkdir()
    printed = ""
    try:
        for number, phase in enumerate(PHASES):
            names = [phase, f"gate-{phase}"] + ["gate-base"] * (phase == "sft")
            for name in names:
                if (source := killed.run / "rollouts" / f"{name}.jsonl").exists():
                    shutil.copy(source, chain.run / "rollouts")
                if (source := killed.run / "traces" / name).exists():
                    shutil.copytree(source, chain.run / "traces" / name)
            printed = chain.finish(phases=PHASES[: number + 1])
    finally:
        chain.close()
    assert all(f"{phase}: finished before" in printed for phase in PHASES[:-1])
    made = recorded(chain.run)
    assert made == {phase: records for phase, records in recorded(killed.run).items() if phase in made}
    assert learned(chain.run) == learned(killed.run)
    assert set(learned(chain.run)) >= {"junior@sft", "senior@ppo-3"}
    assert live(Run(chain.run).events()) == live(Run(killed.run).events())
