"""Processor time of passes of the embedded server's engine, with weights in float32 and in bfloat16.

    python -m benchmarks.engine_passes [--layers 8] [--rounds 5] [--tiny]

The model has the widths and the vocabulary of Qwen2.5-0.5B, by default a third of its layers, and random weights. The
kinds of weights take turns in one process with one thread, so that what else the machine does slows them alike. The
last kind is what torch makes of bfloat16 by itself; where the processor multiplies bfloat16, it is the second too.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from chimera.serving.embedded.decoding.engine import Engine
    from chimera.serving.embedded.shapes import Shape

PROMPT, CACHED, ROWS = 250, 300, 8
"""Tokens of a prompt; tokens before a decode step; requests that are decoded at a time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a small vocabulary and one layer: shows that it runs")
    options = parser.parse_args()
    import torch

    from chimera.serving.embedded.decoding.engine import Engine
    from chimera.serving.embedded.shapes import Shape

    torch.set_num_threads(1)
    layers, vocabulary, rounds = (1, 4096, 1) if options.tiny else (options.layers, 151_936, options.rounds)
    shape = Shape(vocabulary, 896, layers, 14, 2, 64, 1e6, 1e-6, 32_768, tied=True)
    kinds: Mapping[str, tuple[Any, Any]] = {
        "float32": (torch.float32, None),
        "bfloat16": (torch.bfloat16, None),
        "bfloat16, by torch": (torch.bfloat16, torch.bfloat16),
    }
    engines = {
        name: Engine(shape, random_weights(shape, stored), rows=ROWS, context=CACHED + 100, dtype=dtype)
        for name, (stored, dtype) in kinds.items()
    }
    seconds = measure(engines, rounds)
    table = Table("processor time, ms", *WORK, title=f"{layers} layers, vocabulary of {vocabulary:,}, one thread")
    for name in kinds:
        table.add_row(name, *(f"{1000 * statistics.median(seconds[name, work]):,.1f}" for work in WORK))
    Console().print(table)


def random_weights(shape: "Shape", dtype: Any, inner: int = 4864) -> "dict[str, Tensor]":
    """Weights by their Hugging Face names; as long as norms are 1, no number grows."""
    import torch

    from chimera.serving.embedded.shapes import expected_tensors

    def some(name: str, size: tuple[int, ...]) -> "Tensor":
        sizes = {
            "gate_proj": (inner, shape.hidden),
            "up_proj": (inner, shape.hidden),
            "down_proj": (shape.hidden, inner),
        }
        size = next((found for part, found in sizes.items() if part in name), size)
        return torch.ones(size, dtype=dtype) if "norm" in name else (0.02 * torch.randn(size)).to(dtype)

    return {name: some(name, size) for name, size in expected_tensors(shape, {})}


def _prompt(engine: "Engine") -> object:
    from chimera.serving.embedded.decoding.engine import Chunk, Singles

    return engine.forward(Singles(), [Chunk(0, [7] * PROMPT, 0)])


def _step(rows: int) -> "Callable[[Engine], object]":
    def step(engine: "Engine") -> object:
        from chimera.serving.embedded.decoding.engine import Singles

        return engine.forward(Singles([5] * rows, [CACHED] * rows, CACHED + 1), [])

    return step


WORK: "Mapping[str, Callable[[Engine], object]]" = {
    f"a prompt of {PROMPT} tokens": _prompt,
    "a step of 1 request": _step(1),
    f"of {ROWS} requests": _step(ROWS),
}


def measure(engines: "Mapping[str, Engine]", rounds: int) -> dict[tuple[str, str], list[float]]:
    """Processor seconds of each engine and work, the engines by turns; a first round is left out."""
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for work, do in WORK.items():
            for name, engine in engines.items():
                began = time.process_time()
                do(engine)
                if turn:
                    found.setdefault((name, work), []).append(time.process_time() - began)
    return found


if __name__ == "__main__":
    main()
