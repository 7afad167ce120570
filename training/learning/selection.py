"""Selects the conversations to imitate: from rollouts with a high reward, by roles that contributed to it. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from agents.visit.sources import sources_seen
from chimera.core.errors import RunError
from chimera.core.quotes import missing_quotes
from training.learning.episodes import Episode
from training.learning.examples import Candidate, Example, Key, Render, Row, Selected
from training.learning.fine_tuning import SftSettings


def candidates(episode: Episode, roles: Sequence[str]) -> list[Candidate]:
    """The conversations of `roles` in a rollout; none if it has no reward.

    Answers that needed a repair are not candidates.

    Raises:
        RunError: Its trace cannot be read.
    """
    record = episode.record
    if record.reward is None:
        return []
    conversations = [conversation for conversation in episode.conversations(roles) if conversation.parsed]
    return [Candidate(record, record.reward, conversation) for conversation in conversations]


def select(pool: Sequence[Candidate], render: Render, config: SftSettings, phase: str = "sft") -> Selected:
    """Select by reward, credit, true quotes, uniqueness and length, in this order.

    Raises:
        RunError: Fewer than `min_examples` are left. The message says which stage removed most.
    """
    in_order = sorted(pool, key=lambda candidate: candidate.place)
    good = _of_good_rollouts(in_order, config)
    credited = [candidate for candidate in good if _is_credited(candidate, config)]
    honest = _with_true_quotes(credited, config)
    best: dict[tuple[Row, ...], Example] = {}
    for candidate in sorted(honest, key=lambda candidate: -candidate.reward):
        rows = render(candidate.conversation)
        best.setdefault(rows, Example(candidate, rows))
    fitting = [example for example in best.values() if max(len(row.ids) for row in example.rows) <= config.max_length]
    fitting.sort(key=lambda example: example.candidate.place)
    figures: dict[str, Any] = {
        "rollouts": len({candidate.key for candidate in pool}),
        "candidates": len(pool),
        "of_good_rollouts": len(good),
        "credited": len(credited),
        "misquoting": len(credited) - len(honest),
        "misquoting_kept": config.true_quotes == "prefer" and not all(map(_quotes_are_real, honest)),
        "duplicates": len(honest) - len(best),
        "too_long": len(best) - len(fitting),
        "selected": len(fitting),
        "selected_by_role": dict(Counter(example.candidate.role for example in fitting)),
    }
    if len(fitting) < config.min_examples:
        raise RunError(_too_few(phase, figures, max((candidate.reward for candidate in pool), default=None), config))
    figures["reward_of_candidates"] = fmean([candidate.reward for candidate in pool])
    figures["reward_of_selected"] = fmean([example.candidate.reward for example in fitting])
    return Selected(tuple(fitting), figures)


def _of_good_rollouts(pool: Sequence[Candidate], config: SftSettings) -> list[Candidate]:
    """The candidates whose rollout reaches the threshold, or is in the best share of rollouts of its role."""
    if config.select == "threshold":
        return [candidate for candidate in pool if candidate.reward >= config.threshold]
    rewards: dict[str, dict[Key, float]] = defaultdict(dict)
    for candidate in pool:
        rewards[candidate.role][candidate.key] = candidate.reward
    good = {role: _best_share(of_role, config.quantile) for role, of_role in rewards.items()}
    return [candidate for candidate in pool if candidate.key in good[candidate.role]]


def _best_share(rewards: Mapping[Key, float], share: float) -> set[Key]:
    """The best `share` of the rollouts, rounded up. Among equal rewards the smaller key wins."""
    ranked = sorted(rewards, key=lambda key: (-rewards[key], key))
    # 0.6 is not exact in binary: 0.6 x 5 must give 3, not the ceiling of 3.0000000000000004.
    return set(ranked[: math.ceil(round(share * len(ranked), 9))])


def _is_credited(candidate: Candidate, config: SftSettings) -> bool:
    """True if the settings credit this conversation with the rollout's reward."""
    record = candidate.record
    if config.credited == "all":
        return True
    if config.credited == "selected":
        authors = {hypothesis["author"] for hypothesis in record.outputs["initial_hypotheses"]}
        return candidate.role not in authors or record.outputs["selected_hypothesis"]["author"] == candidate.role
    stance = candidate.conversation.stance
    return stance is None or (record.answer is not None and record.answer == stance)


def _with_true_quotes(credited: list[Candidate], config: SftSettings) -> list[Candidate]:
    """Candidates without misquotes. All, if misquotes are ignored, or if they are allowed when too few are left."""
    if config.true_quotes == "ignore":
        return credited
    honest = [candidate for candidate in credited if _quotes_are_real(candidate)]
    return credited if config.true_quotes == "prefer" and len(honest) < config.min_examples else honest


def _quotes_are_real(candidate: Candidate) -> bool:
    """True if all quotes of the answer occur in texts that the role has read."""
    if not candidate.conversation.quotes:
        return True
    read = [passage["text"] for passage in sources_seen({candidate.role: candidate.conversation.messages})]
    return not missing_quotes(candidate.conversation.quotes, read)


def _too_few(phase: str, figures: Mapping[str, Any], highest: float | None, config: SftSettings) -> str:
    """The message on too few examples: counts by stage, and the key to change for the stage that removed most."""
    counts = (
        f"{phase} found {figures['selected']} conversations to learn from and {phase}.min_examples is "
        f"{config.min_examples}: {figures['rollouts']} rollouts with a reward gave "
        f"{figures['candidates']} conversations that were read at once"
    )
    if highest is None:
        return f"{counts}; gather more, or look in rollouts/ why none has a reward"
    limit = config.threshold if config.select == "threshold" else config.quantile
    key = f"{phase}.{config.select}={limit:g}"
    stages = {
        (f"lower {key}" if config.select == "threshold" else f"raise {key}"): figures["candidates"]
        - figures["of_good_rollouts"],
        f"set {phase}.credited=all": figures["of_good_rollouts"] - figures["credited"],
        f"set {phase}.true_quotes=ignore": figures["misquoting"],
        "gather more tasks, which differ": figures["duplicates"],
        f"raise {phase}.max_length={config.max_length}": figures["too_long"],
    }
    remedy = max(stages, key=lambda stage: stages[stage]) if any(stages.values()) else "gather more"
    return (
        f"{counts}, {figures['of_good_rollouts']} of them from rollouts within {key} (the highest reward is "
        f"{highest:.3f}), {figures['credited']} credited ({phase}.credited={config.credited}), "
        f"{figures['misquoting']} of those misquoting, {figures['duplicates']} twice and {figures['too_long']} longer "
        f"than {phase}.max_length={config.max_length}; {remedy}, or lower {phase}.min_examples"
    )
