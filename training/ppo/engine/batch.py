"""The sampled calls of one PPO step, as tensors and as VeRL's packed batches.

Shapes: B calls, T tokens of the longest response. Values of response tokens are (B, T) tensors, padded on the right.
VeRL's engine takes jagged tensors, which are made here for the rows of one mini-batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from training.learning.experience import Call

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

WEIGHTS = "rollout_is_weights"
"""VeRL's name of the importance weights of tokens, see `training.ppo.engine.advantages`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call: its prompt, its sampled response and its reward.

    Attributes:
        prompt_ids: Token ids of the prompt, as the server saw them.
        response_ids: Token ids as sampled.
        reward: r, the call's reward, given at its last token.
        group: Name of its group: the calls that its reward is compared with, see `ppo_steps.group_of`.
        task: The rollout's id, for messages.
        call: The call, for records. It is ignored when samples are compared.
        parts: The weighted parts that the reward is the sum of, for records; empty for a share of a rollout's reward.
        log_probs: Natural logarithm of each response token's probability under the weights that sampled it; None where
            those are the weights that learn from it.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    reward: float
    group: str
    task: str
    call: Call | None = field(default=None, compare=False, repr=False)
    parts: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    log_probs: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.prompt_ids or not self.response_ids:
            raise ValueError(f"the call of {self.task} has no prompt or no response tokens")
        if not math.isfinite(self.reward):
            raise ValueError(f"the call of {self.task} has the reward {self.reward}")
        if self.log_probs is not None and len(self.log_probs) != len(self.response_ids):
            counts = f"{len(self.log_probs)} log-probabilities for {len(self.response_ids)} tokens"
            raise ValueError(f"the call of {self.task} has {counts}")


class Batch:
    """The calls of one step and the values of their response tokens."""

    def __init__(self, samples: Sequence[Sample], temperature: float = 1.0) -> None:
        import torch

        self.samples = tuple(samples)
        self.temperature = temperature
        lengths = torch.tensor([len(sample.response_ids) for sample in samples])
        self.mask: Tensor = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).float()
        """(B, T): 1.0 for the tokens of each response."""
        self.columns: dict[str, Tensor] = {}
        """(B, T) tensors by VeRL's names: old_log_probs, advantages, ..."""
        self.after: Tensor | None = None
        """(b, t): log-probabilities of the first b calls under the weights after the update, for records."""

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of tokens of each call, prompt and response together."""
        return [len(sample.prompt_ids) + len(sample.response_ids) for sample in self.samples]

    def bundles(self) -> list[list[int]]:
        """Rows with one prompt, by their first row. They stay together, so that their prompt is computed once."""
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for row, sample in enumerate(self.samples):
            by_prompt.setdefault(sample.prompt_ids, []).append(row)
        return list(by_prompt.values())

    def sampled(self, current: "Tensor") -> "Tensor":
        """(B, T) log-probabilities under the weights that sampled: those of `current` where a call has none."""
        import torch

        values = current.clone()
        for row, sample in enumerate(self.samples):
            if sample.log_probs is not None:
                values[row, : len(sample.log_probs)] = torch.tensor(sample.log_probs, dtype=values.dtype)
        return values

    def share(self, bundles: Sequence[Sequence[int]], budget: int) -> Sequence[Sequence[int]]:
        """The rows that this process computes, for `packed`. All of them, where it is the only one.

        Args:
            bundles: Rows of one mini-batch, by bundles.
            budget: Most tokens of a micro-batch. A bundle with more is divided, into nearly equal numbers of rows.
        """
        import numpy as np

        divided: list[list[int]] = []
        for rows in bundles:
            most = max(1, budget // max(self.sizes[row] for row in rows))
            divided += [part.tolist() for part in np.array_split(rows, math.ceil(len(rows) / most))]
        return divided

    def gathered(self, bundles: Sequence[Sequence[int]], values: "Tensor") -> "Tensor":
        """Values of all calls, (B, T), from those of the rows that this process has computed.

        Args:
            bundles: As `share` gave it.
            values: (rows, t) in the order of `bundles`.
        """
        rows = [row for bundle in bundles for row in bundle]
        return values[sorted(range(len(rows)), key=rows.__getitem__)]

    def packed(self, bundles: Sequence[Sequence[int]], columns: Sequence[str] = (), **settings: Any) -> "TensorDict":
        """The jagged batch of some rows for VeRL's engine.

        A bundle's rows come into one micro-batch, if all bundles have equally many rows.

        Args:
            bundles: Indices of the calls, by bundles.
            columns: Names of the `columns` to include.
        """
        import torch
        from verl.utils import tensordict_utils as tu

        def jagged(parts: "list[Tensor]") -> "Tensor":
            return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

        rows = [row for bundle in bundles for row in bundle]
        peers = {len(bundle) for bundle in bundles}
        chosen = [self.samples[row] for row in rows]
        ones = [torch.ones(len(sample.response_ids), dtype=torch.long) for sample in chosen]
        tensors: dict[str, Any] = {
            "input_ids": jagged([torch.tensor(sample.prompt_ids + sample.response_ids) for sample in chosen]),
            "position_ids": jagged([torch.arange(self.sizes[row]) for row in rows]),
            "prompts": jagged([torch.tensor(sample.prompt_ids) for sample in chosen]),
            "responses": jagged([torch.tensor(sample.response_ids) for sample in chosen]),
            "loss_mask": jagged(ones),
            "response_mask": jagged(ones),
        }
        for name in columns:
            values = self.columns[name]
            tensors[name] = jagged(
                [values[row, : len(sample.response_ids)] for row, sample in zip(rows, chosen, strict=True)]
            )
        return tu.get_tensordict(
            tensors,
            {
                "temperature": self.temperature,
                "pad_mode": "no_padding",
                "global_token_num": [self.sizes[row] for row in rows],
                "force_group_size": peers.pop() if len(peers) == 1 else 1,
                **settings,
            },
        )

    def figures(self, rewards: "Tensor") -> dict[str, float]:
        """Means, maxima and minima by VeRL's names. `rewards` are token rewards after any KL penalty."""
        import torch

        valid = self.mask.bool()
        numbers = {
            "critic/score": torch.tensor([sample.reward for sample in self.samples]),
            "critic/rewards": rewards.sum(dim=1),
            "critic/advantages": self.columns["advantages"][valid],
            "critic/returns": self.columns["returns"][valid],
            "response_length": self.mask.sum(dim=1),
            "prompt_length": torch.tensor([float(len(sample.prompt_ids)) for sample in self.samples]),
        }
        if "values" in self.columns:
            numbers["critic/values"] = self.columns["values"][valid]
        return {
            f"{name}/{what}": float(getattr(values, what)())
            for name, values in numbers.items()
            for what in ("mean", "max", "min")
        }


def mini_batches(
    bundles: Sequence[Sequence[int]], size: int, *, seed: Sequence[int], shuffle: bool
) -> list[list[Sequence[int]]]:
    """Split bundles of rows into mini-batches whose number of rows is as near to `size` as possible.

    Bundles stay whole, and the mini-batches have nearly equally many of them (within one). VeRL needs a whole number of
    full mini-batches, but the number of calls varies. A small last mini-batch would cause a full optimiser step from
    few calls, and padding would change the means of the loss.
    """
    import numpy as np

    count = sum(map(len, bundles))
    order = np.random.default_rng(list(seed)).permutation(len(bundles)) if shuffle else np.arange(len(bundles))
    parts = np.array_split(order, min(len(bundles), max(1, round(count / size))))
    return [[bundles[number] for number in part] for part in parts]


def reduce(outputs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """One number for each metric of several mini-batches, by VeRL's own rules (sums within, means between)."""
    from itertools import chain

    from verl.utils.metric import Metric, reduce_metrics
    from verl.utils.py_functional import append_to_dict

    merged: dict[str, Any] = {}
    for output in outputs:
        metrics = dict(output)
        for key, value in metrics.items():
            if isinstance(value, list):
                parts = isinstance(value[0], Metric)
                metrics[key] = Metric.aggregate_dp(value) if parts else list(chain.from_iterable(value))
        append_to_dict(merged, metrics)
    return {key: float(value) for key, value in reduce_metrics(merged).items()}
