"""How long the viewer takes to open a long run: seconds of each page, and after that with one more rollout recorded.

A run of 10,000 made-up rollouts is written, each with as much text as a rollout of the default run. Pages are asked for
over HTTP from a server of their own, as a browser does it.

    python -m benchmarks.viewer [--tiny]
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from chimera.config.tree import Config
from chimera.run.directory import Run
from evaluation.records.rollouts import RolloutRecord

ROLLOUTS, TINY = 10_000, 200
TEXT = 4_500
"""Characters of a made-up rollout's outputs; its line is then about as long as one of the default run, 6.6 kB."""
STAGES = ("gather", "gate-base", "gate-sft", "gate-ppo", "bandit")
ROLES = ("Geneticist", "Pharmacologist", "Neurologist", "Supervisor", "HypothesisRefiner", "ProtocolDesigner")
PARTS = ("novelty", "feasibility", "impact", "clarity", "groundedness", "efficiency", "alignment")
PAGES = {
    "the run, first time": "/runs/made-up",
    "the run again": "/runs/made-up",
    "first 100 rollouts": "/runs/made-up/rollouts",
    "highest rewards of a stage": "/runs/made-up/rollouts?phase=gate-ppo&sort=-reward",
    "not right, by a role's tokens": "/runs/made-up/rollouts?right=no&role=Geneticist&sort=-role:tokens",
    "the same tasks in two stages": "/tasks?left=made-up/gate-base&right=made-up/gate-ppo",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help=f"{TINY} rollouts: shows that it runs")
    count = TINY if parser.parse_args().tiny else ROLLOUTS
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        megabytes = make_run(folder, count)
        print(f"{count:,} rollouts, {megabytes:.0f} MB; seconds of a page")
        command = [sys.executable, "-m", "chimera", "view", "--runs-dir", scratch]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            try:
                measure(address, folder, count)
            finally:
                server.terminate()


def measure(address: str, folder: Path, count: int) -> None:
    """Print the time of each page, and of the run's page after one more rollout."""
    with httpx.Client(base_url=address.partition("/?")[0], timeout=600) as client:
        client.get(address)  # Gives the cookie; the list of runs, to which it leads, is not asked for.
        for title, page in PAGES.items():
            print(f"{title:<32} {timed(client, page):>7.3f}")
        with Run(folder / "made-up").own() as run:
            run.append_rollout(made(count, random.Random(count)).dump(), phase=STAGES[-1])
        print(f"{'the run with one rollout more':<32} {timed(client, PAGES['the run again']):>7.3f}")


def timed(client: httpx.Client, page: str) -> float:
    started = time.perf_counter()
    client.get(page).raise_for_status()
    return time.perf_counter() - started


def make_run(folder: Path, count: int) -> float:
    """Write the run; returns the megabytes of its rollouts."""
    with Run.create("made-up", Config(runs_dir=folder)) as run:
        run.ledger("planned", phases=["gather", "sft", "ppo", "bandit"])
        rng = random.Random(0)
        for start, stage in enumerate(STAGES):
            records = [made(number, rng) for number in range(start, count, len(STAGES))]
            lines = [json_line(record.dump() | {"phase": stage}) for record in records]
            run.rollouts_file(stage).write_text("".join(lines), encoding="utf-8")
        return sum(file.stat().st_size for file in (run.path / "rollouts").iterdir()) / 1e6


def json_line(data: Mapping[str, object]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def made(number: int, rng: random.Random) -> RolloutRecord:
    answer, label = rng.choice(("yes", "no", "maybe")), rng.choice(("yes", "no", "maybe"))
    parts: dict[str, float | None] = {name: rng.random() for name in PARTS}
    visits = {f"{role}/1": {"calls": 2, "prompt": rng.randrange(400), "completion": 90} for role in ROLES}
    return RolloutRecord(
        rollout_id=f"ro-{number:012x}",
        task_id=f"made-up-{number // len(STAGES)}",
        source="generated",
        level=1,
        phase=STAGES[0],
        repeat=0,
        seed=number,
        attempt=1,
        status="succeeded",
        error=None,
        label=label,
        answer=answer,
        decision=rng.choice(("GO", "NO-GO", "UNDECIDED")),
        reward=sum(value or 0.0 for value in parts.values()),
        parts=parts,
        policy_versions=dict.fromkeys(ROLES, "nano@0"),
        outputs={"research_goal": "Is it made up?", "text": "x" * TEXT},
        counts={"model_calls": 12},
        visits=visits,
        tool_calls=dict.fromkeys(ROLES[:3], 1),
        seconds=2.0,
    )


if __name__ == "__main__":
    main()
