"""Time of a PPO update through VeRL against a bare Hugging Face + AdamW loop of the same mathematics, in one run.

    python -m benchmarks.ppo_update [--model nano|FOLDER] [--calls 64] [--answers 1] [--repeats 5] [--tiny]

Both start from the same weights and learn from the same calls, whose prompts are texts of generated tasks:
log-probabilities before the update, GRPO advantages, the clipped objective, gradient clipping at 1, and AdamW in
float32, on one torch thread. Both pack as many equal micro-batches as the token budget needs and attend per sequence by
the same function. With --answers 8, each prompt has so many calls, and only VeRL's engine computes their shared
beginnings once (`training.model.prefix_tree`). They take turns, so that what else the machine does falls on both;
medians are printed, and CPU seconds hold when the machine is busy. At the end their weights are compared: the table
would mean nothing if they had not computed the same.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")

from rich.console import Console
from rich.table import Table

from chimera.data.generated.tasks import generate
from chimera.serving.embedded.checkpoint import locate
from training.ppo.engine.batch import Sample
from training.ppo.engine.update import PpoEngine
from training.ppo.verl.settings import PpoSettings

PARTS = ("log-probs", "training", "whole", "whole, CPU")
PEERS, PROMPT_TOKENS, RESPONSE_TOKENS = 4, (250, 550), (40, 160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="'nano' or a folder")
    parser.add_argument("--calls", type=int, default=64, help="calls of one update")
    parser.add_argument("--answers", type=int, default=1, help="calls of one prompt")
    parser.add_argument("--mini-batch", type=int, default=32, help="calls of one optimiser step")
    parser.add_argument("--budget", type=int, default=8192, help="tokens of one micro-batch")
    parser.add_argument("--repeats", type=int, default=5, help="timed updates of each")
    parser.add_argument("--tiny", action="store_true", help="4 calls, 1 repeat: shows that it runs, not how fast")
    options = parser.parse_args()
    if options.tiny:
        options.calls, options.mini_batch, options.repeats = 4, 4, 1
    config = PpoSettings(
        ppo_mini_batch_size=options.mini_batch,
        ppo_max_token_len_per_gpu=options.budget,
        verl={"actor": {"shuffle": False}},
    )
    folder = locate(options.model)
    samples = make_samples(folder, options.calls, options.answers)
    tokens = sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples)
    console = Console()
    console.print(f"{options.model}: {len(samples)} calls, {tokens:,} tokens, 1 torch thread")
    seconds, apart = run(folder, config, samples, options.repeats)
    table = Table(title="One PPO update")
    for name in ("system", "part", "seconds", "ms / 1,000 tokens", "against bare"):
        table.add_column(name, justify="left" if name in ("system", "part") else "right")
    for (system, part), values in seconds.items():
        middle, base = statistics.median(values), statistics.median(seconds["bare loop", part])
        table.add_row(system, part, f"{middle:.2f}", f"{1e6 * middle / tokens:.0f}", f"{middle / base:.2f} x")
    console.print(table)
    console.print(f"largest difference of a weight after {options.repeats + 1} updates: {apart:.1e} (lr {config.lr:g})")


def run(
    folder: Path, config: PpoSettings, samples: Sequence[Sample], repeats: int
) -> tuple[dict[tuple[str, str], list[float]], float]:
    """Seconds of every timed update by system and part, and how far apart the weights are at the end."""
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    engine = PpoEngine(folder, config, seed=0, total_steps=repeats + 1, device="cpu")
    bare = Bare(folder, config)
    seconds: dict[tuple[str, str], list[float]] = {
        (system, part): [] for part in PARTS for system in ("bare loop", "VeRL")
    }
    for repeat in range(repeats + 1):
        start = time.process_time()
        loop = bare.update(samples)
        between = time.process_time()
        figures = engine.update(samples, repeat)
        end = time.process_time()
        verl = [figures[f"timing_s/{name}"] for name in ("old_log_prob", "update_actor", "step")]
        if repeat:  # The first warms both up.
            for part, bare_part, other in zip(PARTS, [*loop, between - start], [*verl, end - between], strict=True):
                seconds["bare loop", part].append(bare_part)
                seconds["VeRL", part].append(other)
    with tempfile.TemporaryDirectory() as scratch:
        engine.export(Path(scratch) / "model")
        learned = load_file(Path(scratch) / "model" / "model.safetensors")
    engine.close()
    bare_weights = dict(bare.model.state_dict())
    return seconds, max(float((value - bare_weights[name]).abs().max()) for name, value in learned.items())


def make_samples(folder: Path, count: int, answers: int) -> list[Sample]:
    """Calls with the lengths of a senior's: task texts as prompts, other task texts as what was sampled.

    Args:
        folder: The model's.
        count: Number of calls; groups have `PEERS` of them.
        answers: Number of consecutive calls with one prompt.
    """
    import numpy as np
    from tokenizers import Tokenizer

    random = np.random.default_rng(0)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tasks = [generated_task.task for generated_task in generate(2 * count, seed=1, levels=[4])]
    texts = [" ".join(section.text for section in task.context) * 8 for task in tasks]
    ids = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]

    def cut(text: int, bounds: tuple[int, int]) -> tuple[int, ...]:
        return ids[text][: int(random.integers(*bounds))]

    prompts = [cut(place, PROMPT_TOKENS) for place in range(-(-count // answers))]
    return [
        Sample(
            prompts[place // answers],
            cut(count + place, RESPONSE_TOKENS),
            random.random(),
            group=f"{place // PEERS}",
            task="",
        )
        for place in range(count)
    ]


class Bare:
    """What one would write by hand with transformers and torch.optim."""

    def __init__(self, folder: Path, config: PpoSettings) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from training.model import varlen_attention

        self._torch, self._config = torch, config
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=varlen_attention.NAME
        )
        self._optimiser = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=0.01)

    def update(self, samples: Sequence[Sample]) -> tuple[float, float, float]:
        """One update; returns the seconds of log-probabilities, training and the whole."""
        torch, config, verl = self._torch, self._config, self._config.verl_values
        begin = time.perf_counter()
        old: dict[int, Any] = {}
        with torch.no_grad():
            for rows in self._micro_batches(range(len(samples)), samples):
                log_probs = self._log_probs([samples[row] for row in rows])
                lengths = [len(samples[row].response_ids) for row in rows]
                old |= dict(zip(rows, log_probs.split(lengths), strict=True))
        middle = time.perf_counter()
        advantages = self._advantages(samples)
        for start in range(0, len(samples), config.ppo_mini_batch_size):
            mini = range(start, min(start + config.ppo_mini_batch_size, len(samples)))
            total = sum(len(samples[row].response_ids) for row in mini)
            for rows in self._micro_batches(mini, samples):
                before = torch.cat([old[row] for row in rows])
                advantage = torch.cat([advantages[row].expand(len(old[row])) for row in rows])
                ratio = (self._log_probs([samples[row] for row in rows]) - before).clamp(-20, 20).exp()
                clipped = ratio.clamp(1 - verl.actor.clip_ratio_low, 1 + verl.actor.clip_ratio_high)
                loss = torch.maximum(-advantage * ratio, -advantage * clipped)
                loss = torch.where(advantage < 0, torch.minimum(loss, -3.0 * advantage), loss)
                (loss.sum() / total).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), verl.optim.clip_grad)
            self._optimiser.step()
            self._optimiser.zero_grad()
        end = time.perf_counter()
        return middle - begin, end - middle, end - begin

    def _micro_batches(self, rows: Sequence[int], samples: Sequence[Sample]) -> list[list[int]]:
        """Rows in turn, longest first, to as many micro-batches as the budget needs: nearly equal ones."""
        sizes = {row: len(samples[row].prompt_ids) + len(samples[row].response_ids) for row in rows}
        count = -(-sum(sizes.values()) // self._config.ppo_max_token_len_per_gpu)
        ordered = sorted(rows, key=lambda row: -sizes[row])
        return [ordered[start::count] for start in range(count)]

    def _log_probs(self, chosen: Sequence[Sample]) -> Any:
        """Log-probabilities of all response tokens, one after the other, from one packed forward pass."""
        torch = self._torch
        ids = torch.tensor([token for sample in chosen for token in sample.prompt_ids + sample.response_ids])
        sizes = [len(sample.prompt_ids) + len(sample.response_ids) for sample in chosen]
        positions = torch.cat([torch.arange(size) for size in sizes])
        ends = torch.tensor(sizes).cumsum(0).tolist()
        lengths = [len(sample.response_ids) for sample in chosen]
        places = torch.cat([torch.arange(end - n - 1, end - 1) for end, n in zip(ends, lengths, strict=True)])
        logits = self.model(ids[None], position_ids=positions[None], use_cache=False).logits[0]
        return -torch.nn.functional.cross_entropy(logits[places], ids[places + 1], reduction="none")

    def _advantages(self, samples: Sequence[Sample]) -> Any:
        torch = self._torch
        groups = torch.tensor([sample.reward for sample in samples]).view(-1, PEERS)
        return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).flatten()


if __name__ == "__main__":
    main()
