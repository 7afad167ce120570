"""The sentences that switch planted habits off: several ways to say each, so that no single one is learned by heart."""

from itertools import product

BELIEF, VAGUE, UNSAFE = "belief", "vague", "unsafe"
WORDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "outcome": (
        ("Quote", "Use", "Copy", "Take"),
        (
            "only sentences about the outcome that the goal asks about",
            "the result for the asked outcome",
            "what was found for the outcome in the question",
            "no sentence about another outcome",
        ),
        ("", ", not the one that stands first", ", even if another result is clearer"),
    ),
    "direction": (
        ("Compare", "Check", "Look at", "Mind"),
        (
            "the direction of the result against the direction asked",
            "whether the result goes in the direction that is asked",
            "the direction of the change, lower or higher, against the one asked",
            "the direction found before you answer",
        ),
        ("", ": the opposite direction means no", ", because a change the other way is no support"),
    ),
    "significance": (
        ("Check", "Look at", "Read", "Mind"),
        (
            "whether the result is significant",
            "the significance of the result, by its p-value",
            "whether the difference is significant or chance",
            "the significance before you answer",
        ),
        ("", ": without significance the answer is not yes", ", because chance is no evidence"),
    ),
    BELIEF: (
        ("Read", "Check", "Go through"),
        (
            "the quoted evidence again before you keep the answer",
            "the hypothesis against its own quotes",
            "each quote anew instead of trusting the author",
        ),
        ("", ", and correct what does not follow", ": authors make mistakes"),
    ),
    VAGUE: (
        ("Write", "Give", "Name"),
        (
            "a concrete design, population, outcome with its time, sample size and analysis",
            "every field of the protocol in concrete terms",
            "numbers, a time point and a statistical test in the protocol",
        ),
        ("", ", never a vague phrase", ": a vague protocol cannot be run"),
    ),
    UNSAFE: (
        ("Protect", "Think of", "Care for"),
        (
            "the participants with consent, monitoring and stopping rules",
            "the safety of participants in the safeguards",
            "harm to participants: name the safeguards",
        ),
        ("", " every time", ", also where the risk is small"),
    ),
}
"""Three parts of sentences against each fault, any of which go together."""
OTHER_WORDS: tuple[tuple[str, ...], ...] = (
    ("Keep", "Write", "Make", "Mind"),
    ("the claim short", "the sentences plain", "the JSON on one line", "the names of drugs in small letters"),
    ("", " and clear", ", as in a good paper"),
)
"""The same for sentences that are against no fault."""
HELD_BACK: dict[str, tuple[str, ...]] = {
    "outcome": ("Leave out results about other outcomes than the goal's.", "Stay with the outcome of the goal."),
    "direction": ("A change in the other direction is a no.", "Ask first which direction the goal means."),
    "significance": ("A difference that is not significant shows nothing.", "Significance comes before the answer."),
}
"""Sentences in words of their own, which no conversation has: the exam asks them."""


def sentences(fault: str | None) -> list[str]:
    """All sentences against `fault`, or with None those against no fault."""
    parts = OTHER_WORDS if fault is None else WORDS[fault]
    return [f"{start} {middle}{end}." for start, middle, end in product(*parts)]


SENTENCES: dict[str | None, list[str]] = {fault: sentences(fault) for fault in (*WORDS, None)}


def against(sentence: str) -> list[str]:
    """The fault that a sentence is against, as a list of one; empty for other sentences."""
    return [fault for fault in WORDS if sentence in SENTENCES[fault] or sentence in HELD_BACK.get(fault, ())]
