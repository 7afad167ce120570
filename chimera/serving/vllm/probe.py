"""Proves which weights a server serves: log-probabilities of a fixed prompt, by it and by the learner's library.

The learner computes with transformers, so transformers computes here too, from the same folder.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.config.sections.models import Precision
from chimera.core.errors import ModelError, boundary
from chimera.serving.embedded.checkpoint import load_language
from chimera.serving.vllm.replicas import Replica

Expected = tuple[list[int], list[float]]
"""The probe's tokens, and the learner's log-probability of each after the first."""
Learner = Callable[[Path, Sequence[int], Precision], list[float]]
"""Computes these log-probabilities with the weights in a folder."""
ANSWER_S = 900.0

TEXT = (
    "Does the programme lower body weight in adults? We compared 120 participants with 118 controls over 12 weeks. "
    "The mean difference was 2.4 kg (95 % CI 1.1 to 3.7, p=0.01), and no serious harm was seen. Answer: yes"
)
LONGEST = 64
"""Tokens of the prompt."""
TOLERANCE: Mapping[Precision, float] = {"float32": 1e-4, "bfloat16": 0.05}
"""The largest mean difference of log-probabilities with which weights count as the same. In float32 4.3e-6 was measured
as the largest single one; in bfloat16 each number has 8 bits."""


class Probe:
    """Asks replicas for the probe.

    Args:
        dtype: The numbers that they compute with.
        learner: Computes what the learner expects.
    """

    def __init__(self, dtype: Precision, learner: Learner) -> None:
        self._dtype: Precision = dtype
        self._learner = learner

    async def expect(self, source: Path) -> Expected:
        """What a server of the weights in `source` says.

        Raises:
            ModelError: The model cannot be computed.
        """
        with boundary(ModelError, f"the model in {source} cannot be computed"):
            tokens = await asyncio.to_thread(probe_tokens, source)
            return tokens, await asyncio.to_thread(self._learner, source, tokens, self._dtype)

    async def ask(self, expected: Expected, replicas: Sequence[Replica], adapter: str | None = None) -> list[float]:
        """How far each replica's log-probabilities of the probe are from the learner's.

        Args:
            adapter: The name of an adapter to ask; None for the weights without one.

        Raises:
            ModelError: One is further than `TOLERANCE`.
        """
        tokens, learner = expected
        distances: list[float] = []
        for replica in replicas:
            model = adapter or replica.model
            body = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
            answer = await replica.ask("/v1/completions", body, limit_s=ANSWER_S)
            served = _prompt_log_probs(answer, tokens, replica.name)
            distance = sum(abs(a - b) for a, b in zip(served, learner, strict=True)) / len(served)
            if not distance <= TOLERANCE[self._dtype]:
                raise ModelError(
                    f"{replica.name} does not serve the weights in the folder: its log-probabilities of a probe prompt "
                    f"are {distance:.2g} from the learner's on average, and {TOLERANCE[self._dtype]:g} is tolerated "
                    f"({self._dtype})"
                )
            distances.append(distance)
        return distances


def probe_tokens(folder: Path) -> list[int]:
    """The probe's token ids in the model of `folder`."""
    return load_language(folder).tokenizer.encode(TEXT, add_special_tokens=False).ids[:LONGEST]


def learner_log_probs(folder: Path, tokens: Sequence[int], dtype: Precision) -> list[float]:
    """The log-probability of each token after the first, by transformers with the weights in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True, local_files_only=True
        )
        logits = model.eval()(torch.tensor([list(tokens)])).logits[0, :-1].float()
        log_probs = torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens[1:])[:, None])
    return log_probs.squeeze(-1).tolist()


def _prompt_log_probs(answer: Any, tokens: Sequence[int], server: str) -> list[float]:
    """The log-probability of each token after the first, in the answer of a server.

    Raises:
        ModelError: They are not there.
    """
    try:
        log_probs = answer["choices"][0]["prompt_logprobs"]
        return [float(log_probs[at][str(token)]["logprob"]) for at, token in enumerate(tokens) if at]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(f"{server} told no log-probabilities of the probe prompt: is it vLLM?") from error
