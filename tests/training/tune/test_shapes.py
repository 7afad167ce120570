"""Fine-tuning of Llama and Qwen3 models: what is learned is what the embedded server then answers with."""

import io
import json

import pytest
import torch
from shape_kit import make_shape

from chimera.serving.embedded.checkpoint import load_checkpoint
from chimera.serving.embedded.decoding.engine import Chunk, Engine, Singles
from training.tune import child
from training.tune.child import Spec

TOKENS = list(range(40, 80))


def served_loss(folder):
    """Mean negative log-probability of the learned tokens, in the embedded server."""
    checkpoint = load_checkpoint(str(folder))
    engine = Engine(checkpoint.shape, checkpoint.weights, rows=1, context=64)
    _, (logits,) = engine.forward(Singles(), [Chunk(0, TOKENS, 0, scored=21)])
    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(TOKENS[20:])))


@pytest.mark.parametrize(("name", "rank"), [("llama", 4), ("qwen3", 0)])
def test_a_tuned_model_is_served_with_what_it_learned(serving_model, tmp_path, name, rank):
    folder = make_shape(tmp_path / "before", name, serving_model())
    row = {"input_ids": TOKENS, "labels": [-100] * 20 + TOKENS[20:]}
    (tmp_path / "rows.jsonl").write_text(2 * (json.dumps(row) + "\n"))
    spec = Spec(
        dataset=str(tmp_path / "rows.jsonl"), model=str(folder), out=str(tmp_path / "after"), seed=0, epochs=4,
        batch_size=1, micro_batch_size=1, lr=1e-2, warmup_ratio=0.0, max_length=64, lora_rank=rank, lora_alpha=8,
        unsloth="never",
    )  # fmt: skip
    told = io.StringIO()
    child.train(spec, told)
    first = next(json.loads(line) for line in told.getvalue().splitlines() if '"step"' in line)
    before, after = served_loss(folder), served_loss(tmp_path / "after")
    assert first["loss"] == pytest.approx(before, rel=0.05)  # The processor may train in bfloat16.
    assert after < before - 0.5
