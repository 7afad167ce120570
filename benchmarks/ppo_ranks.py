"""Time of a PPO update by several ranks against one rank of the same, in one run.

    python -m benchmarks.ppo_ranks [--ranks 2] [--model nano|FOLDER] [--calls 64] [--answers 8] [--repeats 5] [--tiny]

All start from the same weights and learn from the same calls (those of `benchmarks.ppo_update`), on one torch thread a
rank: one rank in this process, several with a copy of the weights each, and several with the weights split (FSDP2).
They take turns, so that what else the machine does falls on all. Wall time tells something on idle cores only;
processor seconds, of all ranks together, show what sharing costs. At the end their weights are compared: the table
would mean nothing if they had not computed the same.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.ppo_update import make_samples
from chimera.serving.embedded.checkpoint import locate
from training.algorithms.ppo.settings import PpoSettings
from training.cluster.team import Team
from training.cluster.team_engine import TeamEngine
from training.engines.base import TrainingEngine
from training.engines.local import PpoEngine, Sample

Seconds = tuple[float, float]
"""Wall time and processor time."""
Shards = Literal["copy", "fsdp"]
SHARDS: tuple[Shards, ...] = ("copy", "fsdp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the teams")
    parser.add_argument("--model", default="nano", help="'nano' or a folder")
    parser.add_argument("--calls", type=int, default=64, help="calls of one update")
    parser.add_argument("--answers", type=int, default=8, help="calls of one prompt")
    parser.add_argument("--mini-batch", type=int, default=64, help="calls of one optimiser step")
    parser.add_argument("--repeats", type=int, default=5, help="timed updates of each")
    parser.add_argument("--tiny", action="store_true", help="4 calls, 1 repeat, FSDP2 only: shows that it runs")
    options = parser.parse_args()
    if options.tiny:
        options.calls, options.mini_batch, options.repeats, options.answers = 4, 4, 1, 2
    folder = locate(options.model)
    samples = make_samples(folder, options.calls, options.answers)
    tokens = sum(len(one.prompt_ids) + len(one.response_ids) for one in samples)
    console = Console()
    console.print(f"{options.model}: {len(samples)} calls, {tokens:,} tokens, 1 torch thread a rank")
    config = PpoSettings(ppo_mini_batch_size=options.mini_batch, verl={"actor": {"shuffle": False}})
    seconds, apart = run(folder, config, samples, options.ranks, options.repeats, SHARDS[options.tiny :])
    table = Table(title="One PPO update")
    for name in ("ranks", "seconds", "against one", "CPU seconds", "against one"):
        table.add_column(name, justify="left" if name == "ranks" else "right")
    middles = {
        name: [statistics.median(values) for values in zip(*of_one, strict=True)] for name, of_one in seconds.items()
    }
    base = middles["1"]
    for name, (wall, processor) in middles.items():
        table.add_row(
            name, f"{wall:.2f}", f"{wall / base[0]:.2f} x", f"{processor:.2f}", f"{processor / base[1]:.2f} x"
        )
    console.print(table)
    console.print(f"largest difference of a weight after {options.repeats + 1} updates: {apart:.1e} (lr {config.lr:g})")


def run(
    folder: Path, config: PpoSettings, samples: Sequence[Sample], ranks: int, repeats: int, ways: Sequence[Shards]
) -> tuple[Mapping[str, list[Seconds]], float]:
    """Seconds of every timed update by engine, and how far apart the weights are at the end."""
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    with ExitStack() as closing:
        scratch = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        engines: dict[str, tuple[TrainingEngine, Callable[[], list[int]]]] = {}
        one = PpoEngine(folder, config, seed=0, total_steps=repeats + 1, device="cpu")
        closing.callback(one.close)
        engines["1"] = one, lambda: [os.getpid()]
        for shards in ways:
            settings = config.model_copy(update={"ranks": ranks, "shards": shards})
            team = Team(ranks, scratch, shards)
            closing.callback(team.end)
            engines[f"{ranks}, {shards}"] = (
                TeamEngine(
                    folder,
                    settings,
                    seed=0,
                    total_steps=repeats + 1,
                    team=lambda team=team: team,
                    newest=lambda: None,
                    note=print,
                    device="cpu",
                ),
                lambda team=team: [os.getpid(), *team.pids],
            )
        seconds: dict[str, list[Seconds]] = {name: [] for name in engines}
        for repeat in range(repeats + 1):
            for name, (engine, pids) in engines.items():
                began, before = time.perf_counter(), _processor(pids())
                engine.update(samples, repeat)
                taken = time.perf_counter() - began, _processor(pids()) - before
                if repeat:  # The first warms all up.
                    seconds[name].append(taken)
        learned = []
        for number, (engine, _) in enumerate(engines.values()):
            engine.export(scratch / str(number))
            learned.append(load_file(scratch / str(number) / "model.safetensors"))
    return seconds, max(
        float((value - other[name]).abs().max()) for other in learned[1:] for name, value in learned[0].items()
    )


def _processor(pids: Sequence[int]) -> float:
    """Processor seconds of processes so far."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


if __name__ == "__main__":
    main()
