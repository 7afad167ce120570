"""PPO on Llama and Qwen3 models: the learner's log-probabilities are the server's, before and after an update."""

import pytest
import torch
from engine_kit import some_samples
from shape_kit import make_shape

from chimera.serving.embedded.checkpoint import load_checkpoint
from chimera.serving.embedded.decoding.engine import Chunk, Engine, Singles

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # pytest resets the filter that the engine sets


def served(folder, samples):
    """Log-probabilities of the samples' answers by the embedded server's engine."""
    checkpoint = load_checkpoint(str(folder))
    server = Engine(checkpoint.shape, checkpoint.weights, rows=1, context=128)
    found = []
    for one in samples:
        tokens, answer = one.prompt_ids + one.response_ids, torch.tensor(one.response_ids)
        _, (logits,) = server.forward(Singles(), [Chunk(0, tokens, 0, scored=len(answer) + 1)])
        found.append(torch.log_softmax(logits[:-1], -1).gather(1, answer[:, None])[:, 0])
    return torch.cat(found)


def of_answers(values, samples):
    return torch.cat([row[: len(one.response_ids)] for row, one in zip(values, samples, strict=True)])


@pytest.mark.parametrize(("name", "rank"), [("llama", 0), ("llama-biased", 0), ("qwen3", 4)])
def test_log_probs_of_learner_and_server_are_equal(engine, serving_model, tmp_path, name, rank):
    folder = make_shape(tmp_path / "before", name, serving_model())
    samples, seen = some_samples(1), []
    learner = engine(folder=folder, lora_rank=rank, lr=1e-2)
    learner.update(samples, 0, lambda batch, metrics: seen.append(batch))
    learner.export(tmp_path / "after")
    before = of_answers(seen[0].columns["old_log_probs"], samples)
    after = of_answers(seen[0].after, samples)
    assert torch.allclose(before, served(folder, samples), atol=1e-4)
    assert torch.allclose(after, served(tmp_path / "after", samples), atol=1e-4)
    assert (after - before).abs().max() > 0.01
