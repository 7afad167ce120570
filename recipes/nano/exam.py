"""Evaluates how well the small model reads held-out generated tasks: quotes, comparisons, answers.

The model must write the junior's final answer after a successful search, because all other turns depend on it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agents.schemas import Hypothesis
from chimera.core.types import LABELS
from recipes.nano.fit import render
from recipes.nano.transcripts import Transcript

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM


@dataclass(frozen=True, slots=True)
class Marks:
    """Shares in [0, 1] over the transcripts. An unreadable answer counts as wrong in every share."""

    n: int
    parsed: float
    quoted: float
    compared: float
    right: float
    right_by_label: dict[str, float]
    answers: dict[str, int]

    def line(self) -> str:
        labels = " ".join(f"{label} {share:.2f}" for label, share in self.right_by_label.items())
        return (
            f"n {self.n} parsed {self.parsed:.2f} quoted {self.quoted:.2f} compared {self.compared:.2f} "
            f"right {self.right:.3f} ({labels}) answers {self.answers}"
        )


def examine(
    model: "Qwen2ForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    transcripts: Sequence[Transcript],
    *,
    batch: int = 200,
) -> Marks:
    """Let the model write each transcript's last turn, and compare it with the transcript."""
    prompts = [render(tokenizer, t, len(t.messages) - 1, generation=True) for t in transcripts]
    truth = [Hypothesis.model_validate_json(t.messages[-1]["content"]) for t in transcripts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers: dict[int, Hypothesis | None] = {}
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        for row, text in zip(rows, _generate(model, tokenizer, [prompts[i] for i in rows]), strict=True):
            answers[row] = _read(text)
    pairs = [(answers[i], truth[i]) for i in range(len(truth))]
    per_label = {
        label: _share([g is not None and g.answer == t.answer for g, t in pairs if t.answer == label])
        for label in LABELS
    }
    return Marks(
        n=len(pairs),
        parsed=_share([g is not None for g, _ in pairs]),
        quoted=_share([g is not None and g.evidence == t.evidence for g, t in pairs]),
        compared=_share([g is not None and g.comparison == t.comparison for g, t in pairs]),
        right=_share([g is not None and g.answer == t.answer for g, t in pairs]),
        right_by_label=per_label,
        answers=dict(Counter(g.answer if g else "unparsed" for g, _ in pairs)),
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else float("nan")


def _read(text: str) -> Hypothesis | None:
    try:
        return Hypothesis.model_validate(json.loads(text))
    except (json.JSONDecodeError, ValidationError):
        return None


def _generate(model: "Qwen2ForCausalLM", tokenizer: "PreTrainedTokenizerFast", prompts: Sequence[str]) -> list[str]:
    import torch

    encoded = tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    model.eval()
    with torch.inference_mode():
        output = model.generate(  # pyright: ignore[reportAttributeAccessIssue] - transformers 5's protocol rejects its own class
            input_ids=encoded["input_ids"].to(model.device),
            attention_mask=encoded["attention_mask"].to(model.device),
            max_new_tokens=768,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            do_sample=False,
        )
    model.train()
    width = encoded["input_ids"].shape[1]
    texts = tokenizer.batch_decode([row[width:] for row in output.cpu()], skip_special_tokens=True)
    return [text.strip() for text in texts]


def score(
    model: "Qwen2ForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    transcripts: Sequence[Transcript],
    *,
    batch: int = 16,
) -> dict[str, float]:
    """Let the model write each transcript's last turn: the share of each field that is as in the transcript.

    Fields of findings are counted over findings.
    """
    marks: dict[str, list[bool]] = {}
    for start in range(0, len(transcripts), batch):
        rows = transcripts[start : start + batch]
        prompts = [render(tokenizer, t, len(t.messages) - 1, generation=True) for t in rows]
        for row, text in zip(rows, _generate(model, tokenizer, prompts), strict=True):
            for field, right in compared(text, json.loads(row.messages[-1]["content"])):
                marks.setdefault(field, []).append(right)
    return {field: round(_share(flags), 3) for field, flags in marks.items()}


def compared(text: str, truth: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Each field of an answer, and whether it is as in `truth`."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        answer = {}
    for name, value in truth.items():
        if name != "findings":
            yield name, answer.get(name) == value
            continue
        written = answer.get(name) or []
        for number, finding in enumerate(value):
            other = written[number] if number < len(written) else {}
            yield from ((field, other.get(field) == item) for field, item in finding.items())
