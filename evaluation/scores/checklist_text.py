"""The checklist's observations of texts, as small pure functions."""

import re
from collections.abc import Iterable

from chimera.core.quotes import normalise

TIME = re.compile(r"\b\d+[ -]?(?:hours?|days?|weeks?|months?|years?)\b", re.IGNORECASE)
MARGIN = re.compile(
    r"\bmargin\b|\bat least\b|\bno more than\b|\bby \d|\b\d+ ?% (?:less|more|lower|higher)", re.IGNORECASE
)
DOSE = re.compile(r"\bdos(?:e|es|age|ing)\b|\b\d+(?:\.\d+)? ?(?:mg|g|ml|µg|mcg|iu|units)\b", re.IGNORECASE)
SUBGROUP = re.compile(
    r"\b(?:sub-?groups?|stratified by|severe|mild|aged \d+|over \d+ years|carriers? of)\b", re.IGNORECASE
)
MECHANISM = re.compile(
    r"\b(?:mechanism|mediat\w+|biomarkers?|pathways?|receptors?|plasma level|dose[- ]response)\b", re.IGNORECASE
)
SITES = re.compile(r"\b(?:multi-?cent\w+|sites|centres|centers|hospitals)\b", re.IGNORECASE)
BLINDING = re.compile(r"\b(?:double|single|triple|assessor|observer)?-?(?:blind\w*|masked)\b", re.IGNORECASE)

_DESIGN = re.compile(
    r"random|cohort|case.control|cross.?over|trial|registry|prospective|time series|observational", re.I
)
_OF_MEANS = re.compile(r"t[- ]test|anova|covariance|linear|mixed|mann|wilcoxon|mean", re.IGNORECASE)
_OF_SHARES = re.compile(r"logistic|chi|fisher|odds|risk|proportion|poisson|binomial", re.IGNORECASE)
_OF_TIMES = re.compile(r"cox|log.?rank|kaplan|hazard|survival", re.IGNORECASE)
_OTHER = re.compile(r"regression|bayes|gee\b|permutation|kappa|meta.analysis", re.IGNORECASE)
_IS_SHARE = re.compile(
    r"\brate\b(?<!heart rate)|risk|incidence|proportion|frequency of|mortality|deaths|\bshare\b", re.I
)
_IS_TIME = re.compile(r"surviv|death|mortality|relapse|time (?:to|until)", re.IGNORECASE)

_TO_THE_READER = re.compile(
    r"<[a-z/|!]|\byou(?:r|rs)?\b|\bplease\b|\bignore\b|\b10/10\b|\"\w+\" ?:|\bfull marks\b|\bbest possible\b"
    r"|\b(?:give|award|assign|grant|score|rate|mark|grade) (?:this|it|me|us|every|each|all|full|top|the best)\b"
    r"|\b(?:judge|examiner|evaluator|grader)s?\b|\ball (?:six )?scores\b",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"\W*(?:n/?a|none|nil|tb[ad]|todo|unknown|various|standard|same|\.+|-+|x+|placeholder)?\W*", re.I)
_FUNCTION_WORDS = """
a an and are as at be been but by can could did do does for from had has have if in into is it its may might not of
on or such so than that the their then there these they this those to was were will with without would
"""
_ANY_STUDY_WORDS = """
study studies trial patients patient people participants subjects group groups outcome outcomes improvement improve
improved compare compared comparison measure measured test tests effect effects result results intervention treatment
treated higher lower raise lowers raises reduce reduces increase increases decrease more less better worse elevate
associated level rate score significant significantly difference good careful carefully
"""
_FUNCTION, _ANY_STUDY = frozenset(_FUNCTION_WORDS.split()), frozenset(_ANY_STUDY_WORDS.split())
_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?|(?<![\w.])\.\d+")
_P_VALUE = re.compile(r"\bp\s?([=<≤])\s?(\d?\.\d+)", re.IGNORECASE)
_RESULT = re.compile(r"\bp\s?[=<>≤]|\bCI\b|\d ?%|\bvs\b|\d\.\d", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.;])\s+(?=[A-Z])")
LONG_PHRASE = 20
"""Number of words. The prompt asks for one phrase a field."""
COPIED_WORDS = 8
"""Number of words from which a field that occurs whole in the sources counts as a copy, not as a name."""


def topic(text: str) -> frozenset[str]:
    """The content words of a text, without plural endings."""
    words = re.findall(r"[a-z0-9]+", TIME.sub(" ", text.lower()))
    topic_words = (word for word in words if not word.isdigit() and word not in _FUNCTION and word not in _ANY_STUDY)
    return frozenset(word.removesuffix("s") if len(word) > 3 else word for word in topic_words)


def overlap(part: frozenset[str], whole: frozenset[str]) -> float:
    """The share of `part` that is in `whole`; 0 when `part` is empty."""
    return len(part & whole) / len(part) if part else 0.0


def figures(text: str) -> frozenset[str]:
    """The numbers in a text, as written but without zeros at either end."""
    return frozenset(f"{float(number):g}" for number in _FIGURE.findall(text))


def p_values(text: str) -> list[float]:
    """The p-values of a text. A p-value below a bound counts as half the bound."""
    return [float(value) / (1 if sign == "=" else 2) for sign, value in _P_VALUE.findall(text)]


def sure_words(text: str) -> bool:
    """True if a text calls its finding significant."""
    return "significant" in text and not re.search(r"\b(?:not|non|no)[ -](?:\w+ )?significant", text)


def sentences(text: str) -> list[str]:
    """Split a text into sentences, approximately."""
    return _SENTENCE.split(text)


def is_result(sentence: str) -> bool:
    """True if a sentence reports figures, as results do."""
    return bool(_RESULT.search(sentence))


def concrete(text: str, name: str, sources: Iterable[str]) -> float:
    """0 if empty, a copy, or addressed to the reader; 0.5 if it fits any study or is not a phrase; else 1."""
    bare = normalise(text).lower()
    if _NOTHING.fullmatch(bare) or bare == name or _TO_THE_READER.search(text):
        return 0.0
    count = len(bare.split())
    if count >= COPIED_WORDS and any(bare in normalise(source).lower() for source in sources):
        return 0.0
    if count > 2 * LONG_PHRASE:
        return 0.0
    about = bool(topic(bare))
    if count > LONG_PHRASE:
        return 0.5 if about else 0.0
    return 1.0 if about else 0.5


def names_design(text: str) -> bool:
    return bool(_DESIGN.search(text))


def names_analysis(text: str) -> bool:
    """True if a statistical method is named."""
    return any(kind.search(text) for kind in (_OF_MEANS, _OF_SHARES, _OF_TIMES, _OTHER))


def fits_outcome(analysis: str, outcome: str) -> float:
    """1 if the named method suits the outcome or any outcome, 0.5 if it suits only other outcomes."""
    named = {kind for kind in (_OF_MEANS, _OF_SHARES, _OF_TIMES) if kind.search(analysis)}
    kinds = {_OF_SHARES if _IS_SHARE.search(outcome) else _OF_MEANS}
    if _IS_TIME.search(outcome):
        kinds.add(_OF_TIMES)
    return 1.0 if not named or named & kinds else 0.5
