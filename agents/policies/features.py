"""The bandit's features of each action: the question, the hypotheses, and which of them this action selects.

Each hypothesis gives one row phi(x, a), which has three blocks:

* named cues in [0, 1]: its author, its answer, how many others agree, and how quotes, comparison, claim, question and
  sources overlap. Further cues cross its answer with the direction and significance that four texts state: its
  comparison, its quotes, the sentences that the quotes come from, and the sentences that bear on the question. The
  bandit learns which authors and combinations are good; nothing here tells it.
* the means of these cues over the hypotheses. They are the same for every action, so they cannot change which action is
  best. They account for the question's difficulty, which would otherwise be noise in the reward.
* hashed text (Weinberger et al. 2009): words of the question crossed with the author, and words of quotes and
  comparison crossed with the answer. Each of the two has length `HASHED_LENGTH`. All weights share one prior
  variance, so a single word has little effect until many examples hold it.

Whether juniors search once more rests on a few numbers (`SEARCH_CUES`), with weights of their own for each action.

Features depend on what is logged only, so logged choices give the same rows at any time.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from agents.context import Candidates
from agents.findings import SEARCH_AGAIN
from chimera.config.roles import JUNIORS
from chimera.core.abstracts import (
    DIRECTIONS,
    SIGNIFICANCES,
    Passages,
    direction,
    numbers,
    share,
    significance,
    stems,
    words,
)
from chimera.core.quotes import missing_quotes
from chimera.core.types import LABELS, Label, decides

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.float64]

Hypothesis = Mapping[str, Any]

HASHED_LENGTH = 0.5
SEARCH_CUES: Mapping[str, float] = {
    "findings": 16,
    "counting": 16,
    "points yes": 32,
    "points no": 32,
    "margin": 1,
    "maybe": 1,
    "rounds": 4,
    "named": 3,
}
"""The cues of `agents.findings.search_cues`, each with what counts as 1: all weights share one prior variance."""
_MOST_QUOTES = 3


def feature_names(hashed: int, labels: Sequence[Label] = LABELS) -> list[str]:
    names = _names(tuple(labels))
    means = (f"mean of {name}" for name in names)
    return [*names, *means, *(f"hashed {number}" for number in range(hashed))]


def features(candidates: Candidates, hashed: int, labels: Sequence[Label] = LABELS) -> "Rows":
    """The rows phi(x, a) of one choice.

    Args:
        candidates: The question, the hypotheses and the passages.
        hashed: Number of columns for hashed text; 0 leaves it out.

    Returns:
        An array (number of hypotheses, number of columns), with the columns of `feature_names`.
    """
    import numpy as np

    names = _names(tuple(labels))

    goal = content_stems(candidates.goal)
    passages = Passages.of(goal, [source["text"] for source in candidates.sources])
    rows = []
    for hypothesis in candidates.hypotheses:
        cues = _cues(candidates, hypothesis) | _overlaps(candidates, hypothesis, goal, passages)
        cues |= _meeting(candidates.goal, hypothesis, passages)
        rows.append([cues.get(name, 0.0) for name in names])
    named = np.array(rows)
    means = np.broadcast_to(named.mean(axis=0), named.shape)
    return np.hstack([named, means, _hashed(candidates, hashed)] if hashed else [named, means])


def search_names() -> list[str]:
    """The columns of `search_features`, in order."""
    return [f"{action['author']}: {cue}" for action in SEARCH_AGAIN for cue in ("always", *SEARCH_CUES)]


def search_features(cues: Mapping[str, float]) -> "Rows":
    """The rows phi(x, a) of one choice whether juniors search once more, with the columns of `search_names`."""
    import numpy as np

    standing = [1.0, *(cues[name] / unit for name, unit in SEARCH_CUES.items())]
    return np.array(
        [[number * (row is action) for row in SEARCH_AGAIN for number in standing] for action in SEARCH_AGAIN]
    )


@cache
def _names(labels: tuple[Label, ...]) -> tuple[str, ...]:
    """The named cues. Only yes, no and maybe are crossed with directions and significance; options state neither."""
    identity = [f"author {author}" for author in JUNIORS] + [f"answer {label}" for label in labels]
    crossed = labels if decides(labels) else ()
    overlaps = ["question in quotes", "question in claim", "claim in quotes", "claim in question"]
    sources = ["quotes verbatim", "quotes similar", "relevant quoted", "relevant missed", "quotes beside the point"]
    meeting = [
        *(f"{label}: {kind}, {way}" for label, kind, way in product(crossed, SIGNIFICANCES, DIRECTIONS)),
        *(f"{label}: {kind}" for label, kind in product(crossed, SIGNIFICANCES)),
        *(f"{label}: direction {way}" for label, way in product(crossed, DIRECTIONS)),
    ]
    return (*identity, "agreement", "quotes", *overlaps, "numbers in quotes", *sources, *meeting)


def _cues(candidates: Candidates, hypothesis: Hypothesis) -> dict[str, float]:
    """Author, answer, share of other hypotheses with the same answer, number of quotes."""
    others = [other["answer"] for other in candidates.hypotheses if other is not hypothesis]
    return {
        f"author {hypothesis['author']}": 1.0,
        f"answer {hypothesis['answer']}": 1.0,
        "agreement": others.count(hypothesis["answer"]) / max(1, len(others)),
        "quotes": len(hypothesis["evidence"]) / _MOST_QUOTES,
    }


def _overlaps(candidates: Candidates, hypothesis: Hypothesis, goal: set[str], passages: Passages) -> dict[str, float]:
    """Share of one text's words in another. Cues about sources are 0 if the juniors have seen no sources."""
    quotes: list[str] = hypothesis["evidence"]
    quoted, claimed = content_stems(" ".join(quotes)), content_stems(hypothesis["claim"])
    stated = numbers(hypothesis["comparison"])
    cues = {
        "question in quotes": share(quoted, goal),
        "question in claim": share(claimed, goal),
        "claim in quotes": share(quoted, claimed),
        "claim in question": share(goal, claimed),
        "numbers in quotes": share(numbers(" ".join(quotes)), stated),
    }
    if not passages.sentences or not quotes:
        return cues
    origins = [passages.origin(quote) for quote in quotes]
    positions = {at for at, _ in origins}
    texts = [source["text"] for source in candidates.sources]
    relevant = passages.relevant
    return cues | {
        "quotes verbatim": 1.0 - len(missing_quotes(quotes, texts)) / len(quotes),
        "quotes similar": sum(alike for _, alike in origins) / len(origins),
        "relevant quoted": len(positions & relevant) / max(1, len(relevant)),
        "relevant missed": min(1.0, len(relevant - positions) / _MOST_QUOTES),
        "quotes beside the point": sum(at not in relevant for at, _ in origins) / len(origins),
    }


def _meeting(goal: str, hypothesis: Hypothesis, passages: Passages) -> dict[str, float]:
    """The answer crossed with direction and significance: the share of texts that state each combination.

    The texts report the same results, so they share one weight. Where they differ, one of them is wrong.
    """
    quotes: list[str] = hypothesis["evidence"]
    comparison = [hypothesis["comparison"]]
    readings = [
        (significance(comparison), direction(goal, comparison, restated=True)),
        (significance(quotes), direction(goal, quotes)),
    ]
    if passages.sentences and quotes:
        origins = [passages.sentences[passages.origin(quote)[0]] for quote in quotes]
        relevant = [passages.sentences[at] for at in sorted(passages.relevant)]
        readings += [(significance(texts), direction(goal, texts)) for texts in (origins, relevant)]
    label, weight = hypothesis["answer"], 1.0 / len(readings)
    cues: dict[str, float] = {}
    for kind, way in readings:
        for name in (f"{label}: {kind}, {way}", f"{label}: {kind}", f"{label}: direction {way}"):
            cues[name] = cues.get(name, 0.0) + weight
    return cues


def _hashed(candidates: Candidates, columns: int) -> "Rows":
    goal_words = words(candidates.goal)
    by_author = [[f"{word}|{hypothesis['author']}" for word in goal_words] for hypothesis in candidates.hypotheses]
    by_answer = [
        [
            f"{word}|{hypothesis['answer']}"
            for word in words(" ".join([*hypothesis["evidence"], hypothesis["comparison"]]))
        ]
        for hypothesis in candidates.hypotheses
    ]
    return HASHED_LENGTH * (_hash(by_author, columns) + _hash(by_answer, columns))


def _hash(tokens: list[list[str]], columns: int) -> "Rows":
    """Signed counts of `tokens` in `columns`, each row of length 1 (or 0 without tokens)."""
    import numpy as np
    from sklearn.feature_extraction import FeatureHasher

    counts = np.asarray(FeatureHasher(columns, input_type="string").transform(tokens).todense())
    return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-12)


def content_stems(text: str) -> set[str]:
    """Stems of the words that are no stop words."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return stems(text, ENGLISH_STOP_WORDS)
