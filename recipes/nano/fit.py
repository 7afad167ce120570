"""Trains the small model from scratch: a copy warm-up, then next-token loss only on the assistant's turns.

Muon for matrices and AdamW for the rest reach in minutes a loss that AdamW alone does not reach in an hour. The warm-up
on repeated random segments forms the induction heads that verbatim quoting needs.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipes.nano.tokenizer import END, PAD

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

    from recipes.nano.transcripts import Transcript

WARM_UP_TOKENS = 256


@dataclass(frozen=True, slots=True)
class NanoShape:
    """The Qwen2 shape. The default has 1.9 million parameters, 3.7 MB in bfloat16."""

    vocab_size: int = 1536
    hidden_size: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    intermediate_size: int = 512
    context_length: int = 2048


@dataclass(frozen=True, slots=True)
class Schedule:
    """Training schedule: `warm_up` copy batches, then `steps` batches of `batch` transcripts."""

    steps: int
    batch: int = 64
    warm_up: int = 2000
    adamw_rate: float = 3e-3
    muon_rate: float = 0.02
    final_share: float = 0.05


@dataclass(frozen=True, slots=True)
class TokenizedTranscript:
    """Token ids of one conversation. `learned[i]` is true if token i is the assistant's and so has a loss."""

    tokens: list[int]
    learned: list[bool]


def encode(tokenizer: "PreTrainedTokenizerFast", transcript: "Transcript") -> TokenizedTranscript:
    """Render a transcript with the chat template and mark the assistant's tokens, end of turn included."""
    tokens: list[int] = []
    learned: list[bool] = []
    rendered = ""

    def append(text: str, mark: bool) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        tokens.extend(ids)
        learned.extend([mark] * len(ids))

    for position, message in enumerate(transcript.messages):
        if message["role"] != "assistant":
            continue
        prompt = render(tokenizer, transcript, position, generation=True)
        answered = render(tokenizer, transcript, position + 1, generation=False)
        append(prompt[len(rendered) :], False)
        append(answered[len(prompt) :].removesuffix("\n"), True)
        rendered = answered.removesuffix("\n")
    return TokenizedTranscript(tokens, learned)


def render(tokenizer: "PreTrainedTokenizerFast", transcript: "Transcript", count: int, *, generation: bool) -> str:
    """The first `count` messages as text for the model. `generation` opens the assistant's turn."""
    text = tokenizer.apply_chat_template(
        list(transcript.messages[:count]),
        tools=[{"type": "function", "function": {"name": name}} for name in transcript.tools] or None,
        tokenize=False,
        add_generation_prompt=generation,
    )
    assert isinstance(text, str)
    return text


def new_model(shape: NanoShape, tokenizer: "PreTrainedTokenizerFast", seed: int) -> "Qwen2ForCausalLM":
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            intermediate_size=shape.intermediate_size,
            max_position_embeddings=shape.context_length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=_id_of(tokenizer, END),
            pad_token_id=_id_of(tokenizer, PAD),
        )
    )


def _id_of(tokenizer: "PreTrainedTokenizerFast", token: str) -> int:
    number = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(number, int)
    return number


class Fitter:
    """Optimisers and schedule of one model. `fit` consumes examples and reports the smoothed loss."""

    def __init__(self, model: "Qwen2ForCausalLM", schedule: Schedule, seed: int, *, device: str = "cpu") -> None:
        import torch

        from recipes.nano.muon import FloatMuon

        self.model = model.to(device)  # pyright: ignore[reportArgumentType] - transformers' wrapper hides nn.Module.to
        self.schedule = schedule
        self.device = device
        # A processor without bfloat16 instructions computes in it many times more slowly than in float32.
        self._half = device != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        in_muon = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in in_muon]
        self._optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr=schedule.adamw_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
            (torch.optim.Muon if self._half else FloatMuon)(
                matrices, lr=schedule.muon_rate, momentum=0.95, weight_decay=0.01
            ),
        ]
        self._rates = [group["lr"] for optimiser in self._optimisers for group in optimiser.param_groups]

    def warm_up(self, report: Callable[[int, float], None]) -> None:
        """Train on a copy task: a repeated random segment, with loss on all but its first occurrence."""
        import torch

        vocabulary, batch, smoothed = self.model.config.vocab_size, self.schedule.batch, None
        for step in range(self.schedule.warm_up):
            length = self._random.randint(8, 96)
            segment = torch.randint(5, vocabulary, (batch, length), generator=self._generator)
            ids = segment.repeat(1, -(-WARM_UP_TOKENS // length))[:, :WARM_UP_TOKENS]
            learned = torch.zeros(ids.shape, dtype=torch.bool)
            learned[:, length + 1 :] = True
            smoothed = self._step(ids, learned, min(1.0, (step + 1) / 50), smoothed)
            if (step + 1) % 100 == 0:
                report(step + 1, smoothed)
            if smoothed < 0.05:
                report(step + 1, smoothed)
                break

    def fit(
        self, examples: Iterator[TokenizedTranscript], report: Callable[[int, float, float], None], done: int = 0
    ) -> None:
        """Make at least `schedule.steps` updates, of which `done` were made before a stop, up to a pool's end.

        Batches come from pools sorted by length, so that padding is short.
        """
        smoothed, step, tokens, started = None, done, 0, time.perf_counter()
        while step < self.schedule.steps:
            pool = sorted((next(examples) for _ in range(self.schedule.batch * 8)), key=lambda e: len(e.tokens))
            batches = [pool[i : i + self.schedule.batch] for i in range(0, len(pool), self.schedule.batch)]
            self._random.shuffle(batches)
            for batch in batches:
                ids, learned = collate(batch)
                share = step / self.schedule.steps
                final = self.schedule.final_share
                rate = min(1.0, (step - done + 1) / (10 if done else 50)) * (
                    final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1, share)))
                )
                smoothed = self._step(ids, learned, rate, smoothed)
                step += 1
                tokens += sum(len(e.tokens) for e in batch)
                if step % 10 == 0:
                    report(step, smoothed, tokens / (time.perf_counter() - started))

    def _step(self, ids: "torch.Tensor", learned: "torch.Tensor", rate: float, smoothed: float | None) -> float:
        import torch
        import torch.nn.functional as F

        ids, learned = ids.to(self.device), learned.to(self.device)
        for group, base in zip((g for o in self._optimisers for g in o.param_groups), self._rates, strict=True):
            group["lr"] = base * rate
        chosen = learned[:, 1:]
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self._half):
            # Right padding and a causal mask: padded positions come after every learned one, so no mask is needed.
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
            logits = self.model.lm_head(hidden[chosen])
        loss = F.cross_entropy(logits.float(), ids[:, 1:][chosen])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        value = loss.item()
        return value if smoothed is None else 0.95 * smoothed + 0.05 * value


def collate(examples: Sequence[TokenizedTranscript]) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Right-padded ids (B, T) and the learned mask (B, T)."""
    import torch

    width = max(len(example.tokens) for example in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    learned = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        ids[row, : len(example.tokens)] = torch.tensor(example.tokens)
        learned[row, : len(example.tokens)] = torch.tensor(example.learned)
    return ids, learned


def save(model: "Qwen2ForCausalLM", tokenizer: "PreTrainedTokenizerFast", folder: Any) -> None:
    """Write weights in bfloat16 (half the size; the server computes in float32) and the tokenizer."""
    import torch

    model.to(torch.bfloat16).save_pretrained(folder)  # pyright: ignore[reportArgumentType] - see Fitter
    tokenizer.save_pretrained(folder)
