"""The supervisor's bandit: a reward model over actions, how it learns from logged choices, and its folder on disk.

A logged choice is (x, a, p, r): context, action, propensity of the action, reward. There are K actions. The importance
weight against a uniform choice is c = min(1 / (K p), cut). The update learns:

* direct: row phi(x, a) with reward r.
* ips: the same row with weight c, so that actions that the logging policy rarely took count as much as frequent ones.
* dr: a row for every action with weight 1 / K and reward q(x, a') + [a' = a] K c (r - q(x, a)). This is doubly robust
  (Dudik et al. 2014): correct if either the propensities or the reward model q are correct. q is learned on earlier
  events and on the other folds of this batch, never on the event itself.
* hindsight: a row for every action. Training tasks have labels, so it is known which hypotheses were right: an action
  that was not taken gets the reward of the rollout with the alignment that its own answer would have had.

A Thompson posterior takes a weighted reward to be as exact as an unweighted one, so it explores less with ips and dr
than with direct.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from agents.context import Candidates
from agents.policies.events import BanditEvent
from agents.policies.features import feature_names, features, search_features, search_names
from agents.policies.models import Array, LinearThompson, RewardModel, SoftLogistic
from chimera.core.errors import RunError
from chimera.core.files import read_json_object
from chimera.core.types import LABELS, Label

SETTINGS, ARRAYS = "policy.json", "arrays.safetensors"
FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that a policy was made with, by the names of the bandit's settings; 0 `hashed_features`: no text."""

    policy: Literal["thompson", "logistic"]
    update: Literal["direct", "ips", "dr", "hindsight"]
    hashed_features: int = 256
    prior_variance: float = 0.3
    noise_variance: float = 0.25
    lr: float
    epochs: int
    max_weight: float
    seed: int
    labels: tuple[Label, ...] = LABELS
    combines: bool = False

    @classmethod
    def of(cls, config: Any, seed: int, labels: Sequence[Label] = LABELS, *, combines: bool = False) -> "Settings":
        """Take what a phase sets from its settings.

        Args:
            labels: The answers that the tasks offer.
            combines: Findings are combined: it is chosen whether juniors search once more, and among no hypotheses.
        """
        keys = ("policy", "update", "lr", "epochs", "max_weight")
        taken = {key: getattr(config, key) for key in keys}
        return cls(**taken, seed=seed, labels=tuple(labels), combines=combines)


@dataclass(frozen=True, slots=True)
class LoggedExample:
    """A logged choice with its rows phi(x, .) of shape (K, d); `action` is the index of the action a."""

    event: BanditEvent
    rows: Array
    action: int


class BanditPolicy:
    """Selects a hypothesis, or whether juniors search once more, and learns from logged choices.

    Attributes:
        events: Number of logged choices that it has learned from.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.events = 0
        self._model = _make_model(settings)
        self._outcomes = _make_model(settings)
        """The reward model q of the doubly robust update; the other updates do not use it."""

    def expected(self, rows: Array) -> Array:
        """Predicted rewards (K,) of the K actions of one choice, given its rows (K, d)."""
        return self._model.predict(rows)

    def probabilities(self, candidates: Candidates, *, greedy: bool) -> Array:
        """Probabilities (K,) of the K hypotheses. `greedy`: 1 for the best one, for the first of equals.

        Raises:
            RunError: The policy has learned another kind of choice.
        """
        rows = self._rows(candidates)
        if greedy:
            return np.eye(len(rows))[int(self.expected(rows).argmax())]
        return self._model.probabilities(rows)

    def examples(self, events: Sequence[BanditEvent]) -> list[LoggedExample]:
        """Compute the rows of `events`; raises RunError as `probabilities` does."""
        return [
            LoggedExample(
                event,
                self._rows(Candidates(event.goal, event.hypotheses, event.sources, event.cues)),
                [hypothesis["author"] for hypothesis in event.hypotheses].index(event.author),
            )
            for event in events
        ]

    def _rows(self, candidates: Candidates) -> Array:
        if bool(candidates.cues) != self.settings.combines:
            raise RunError(
                "the bandit's policy is for another kind of choice: society.graph.choose was another when it learned; "
                "set it as it was, or run the bandit phase again"
            )
        if self.settings.combines:
            return search_features(candidates.cues)
        return features(candidates, self.settings.hashed_features, self.settings.labels)

    def learn(self, examples: Sequence[LoggedExample]) -> None:
        """Learn from further logged choices, made by any policy.

        Raises:
            RunError: The update needs a propensity that is missing.
        """
        if not examples:
            return
        if self.settings.update == "dr":
            self._learn_doubly_robust(examples)
        elif self.settings.update == "hindsight":
            self._learn_in_hindsight(examples)
        else:
            self._learn_logged(examples)
        self.events += len(examples)

    def _learn_logged(self, examples: Sequence[LoggedExample]) -> None:
        weighted = self.settings.update == "ips"
        weights = [self._importance(example) if weighted else 1.0 for example in examples]
        _learn(self._model, examples, weights)

    def _learn_in_hindsight(self, examples: Sequence[LoggedExample]) -> None:
        rewards = np.concatenate([_hindsight(example.event) for example in examples])
        self._model.scale_to(rewards)
        self._model.learn(np.vstack([example.rows for example in examples]), rewards, np.ones(len(rewards)))

    def _learn_doubly_robust(self, examples: Sequence[LoggedExample]) -> None:
        before = self._outcomes.state()
        rows: list[Array] = []
        rewards: list[Array] = []
        for fold, others in folds(examples):
            self._outcomes.restore(before)
            _learn(self._outcomes, others, [1.0] * len(others))
            for example in fold:
                outcome = self._outcomes.predict(example.rows)
                weight = len(example.rows) * self._importance(example)
                outcome[example.action] += weight * (example.event.reward - outcome[example.action])
                rows.append(example.rows)
                rewards.append(outcome)
        self._outcomes.restore(before)
        _learn(self._outcomes, examples, [1.0] * len(examples))
        self._model.scale_to(_rewards(examples))
        counts = np.concatenate([np.full(len(each), 1.0 / len(each)) for each in rewards])
        self._model.learn(np.vstack(rows), np.concatenate(rewards), counts)

    def _importance(self, example: LoggedExample) -> float:
        """The importance weight c in the module's docstring."""
        propensities = example.event.propensities
        if propensities is None:
            raise RunError(
                f"the choice on task {example.event.task_id} was logged without propensities: "
                "gather in this version, or set update=direct for the phase"
            )
        return min(1.0 / (len(propensities) * propensities[example.event.author]), self.settings.max_weight)

    def save(self, folder: Path) -> None:
        """Write the policy to `folder`, made if missing: JSON and safetensors, which run no code when they are read."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"model.{name}": value for name, value in self._model.state().items()}
        arrays |= {f"outcomes.{name}": value for name, value in self._outcomes.state().items()}
        save_file(arrays, folder / ARRAYS)
        text = json.dumps({"settings": asdict(self.settings), "events": self.events}, indent=2)
        (folder / SETTINGS).write_text(text + "\n", encoding="utf-8")


def folds(examples: Sequence[LoggedExample]) -> list[tuple[list[LoggedExample], list[LoggedExample]]]:
    """Split `examples` into up to `FOLDS` parts, each with the rest; choices on the same task stay together."""
    tasks = sorted({str(example.event.task_id) for example in examples})
    Random(FOLDS).shuffle(tasks)
    part_of = {task: number % FOLDS for number, task in enumerate(tasks)}
    parts = [part_of[str(example.event.task_id)] for example in examples]
    return [
        (
            [example for example, part in zip(examples, parts, strict=True) if part == number],
            [example for example, part in zip(examples, parts, strict=True) if part != number],
        )
        for number in sorted(set(parts))
    ]


def _make_model(settings: Settings) -> RewardModel:
    columns = len(search_names() if settings.combines else feature_names(settings.hashed_features, settings.labels))
    if settings.policy == "thompson":
        return LinearThompson(columns, settings.prior_variance, settings.noise_variance, settings.seed)
    return SoftLogistic(columns, settings.lr, settings.epochs, settings.seed)


def _learn(model: RewardModel, examples: Sequence[LoggedExample], weights: Sequence[float]) -> None:
    """Let `model` learn from the row of the action that each example took."""
    if examples:
        rows = np.array([example.rows[example.action] for example in examples])
        model.learn(rows, _rewards(examples), np.array(weights))


def _hindsight(event: BanditEvent) -> Array:
    """The reward of each hypothesis, in their order; raises RunError if it is not known."""
    if event.hindsight is None:
        raise RunError(
            f"the choice on task {event.task_id} was logged without the alignment that other hypotheses would have "
            "had: set reward.alignment to another number than 0, or update=direct for the phase"
        )
    return np.array([event.hindsight[hypothesis["author"]] for hypothesis in event.hypotheses])


def _rewards(examples: Sequence[LoggedExample]) -> Array:
    return np.array([example.event.reward for example in examples])


def load_policy(folder: Path) -> BanditPolicy:
    """Load the policy in `folder`; it can continue learning.

    Raises:
        RunError: There is no policy, or it cannot be read.
    """
    try:
        data: dict[str, Any] = read_json_object(folder / SETTINGS)
        settings = data["settings"]
        policy = BanditPolicy(Settings(**{**settings, "labels": tuple(settings.get("labels", LABELS))}))
        arrays = load_file(folder / ARRAYS)
        for prefix, model in (("model.", policy._model), ("outcomes.", policy._outcomes)):
            model.restore({name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)})
        policy.events = int(data["events"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"bandit policy {folder} cannot be read: {error}; run the bandit phase again") from error
    return policy
