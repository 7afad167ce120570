"""No regular expression of ours takes more than linear time, whatever text it is given.

Models, endpoints and web pages write the texts that we search. A pattern whose time grows with the square of a text's
length takes minutes for a text of a few hundred thousand characters.
"""

import ast
import importlib
import json
import re
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("chimera", "agents", "training", "evaluation")
FLAGS_AT = {"compile": 1, "search": 2, "match": 2, "fullmatch": 2, "findall": 2, "finditer": 2, "split": 3, "sub": 4}
"""Functions of `re` that take a pattern first, and the place of their flags."""
BUILT = {
    "chimera/core/quotes.py:occurs": r"(?<!\w)(?<!\d[.,])the\ rate\ was\ lower(?!\w)(?![.,]\d)",
    "chimera/core/secrets.py:add": "sk\\-topsecret|topsecret",
    "chimera/serving/embedded/chat.py:_any_of": r"<\|im_start\|>|<\|im_end\|>|<tool_call>",
    "chimera/rubric/text.py:focus": r"\bthe\ rate\b",
    "chimera/serving/requests/refusals.py:_is_about": r"(?<![\w-])seed(?![\w-])",
    "chimera/config/roles.py:_are_tools": r"mcp:\w+/.+",
    "agents/tools/leaks.py:_names_id": "(?<![A-Za-z0-9])12345678(?![A-Za-z0-9])",
    "agents/visit/citations.py:fault": r"(?<!\d)12345678(?!\w)",
}
"""Functions that make a pattern of what they are given, with such a pattern."""

GENERAL = (" ", "\n", ".", "a", "A", "1", "-", "<", '"', "(", ")", ". ", "a ", "A ", "1 ", "1.", "a-", "\n ", "é")
TINY, SHORT, LONG = 400, 2_000, 20_000
MOST_TINY_S, SURELY_FAST_S, MOST_SHORT_S, NOT_SLOW_S = 0.02, 0.0003, 0.04, 0.02
"""A linear search takes 0.05 ms for the tiny text and five times as long for the short one."""
LINEAR_RATIO = 25
"""Ten times the text takes ten times as long if the time is linear, and a hundred times if it is quadratic."""
TIMES = 12
SURELY_SLOW = 3
"""A search that is slow this often, or so much too slow, is slow by itself and not because of other work."""
PROCESSOR_S = 300
"""The child is ended after so much processor time, so that a pattern without end ends the test."""
OURS = ("evaluation/report/plots/paper.py",)
"""They search in drawings that this program has just made."""


def sites() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call of `re` with a pattern: the file, the function that it stands in ("" outside), the call."""
    for file in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        yield from _calls(ast.parse(file.read_text()), file.relative_to(ROOT).as_posix(), "")


def _calls(node: ast.AST, file: str, function: str) -> Iterator[tuple[str, str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.Call) and ast.unparse(child.func) in {f"re.{name}" for name in FLAGS_AT}:
            yield file, inner, child
        yield from _calls(child, file, inner)


def literal(call: ast.Call) -> "re.Pattern[Any] | None":
    """The pattern of a call that has it as a literal."""
    if not isinstance(call.args[0], ast.Constant):
        return None
    place = FLAGS_AT[ast.unparse(call.func).removeprefix("re.")]
    flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"] + call.args[place : place + 1]
    return re.compile(cast(str, call.args[0].value), eval(ast.unparse(flags[0])) if flags else 0)


def patterns() -> dict[str, tuple["re.Pattern[Any]", bool]]:
    """Every pattern, by its file and text, and whether it is only matched from the beginning of a text.

    Modules that make theirs of parts outside of functions are imported.
    """
    found = {place: (re.compile(text), False) for place, text in BUILT.items()}
    for file, function, call in sites():
        if file in OURS:
            continue
        if (pattern := literal(call)) is not None:
            found[f"{file}: {pattern.pattern!r}"] = pattern, _is_anchored(call, (ROOT / file).read_text())
        elif f"{file}:{function}" not in BUILT:
            module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
            found |= {f"{file}: {one.pattern!r}": (one, False) for one in _held(vars(module).values())}
    return found


def _is_anchored(call: ast.Call, source: str) -> bool:
    """True if the pattern is used with `match` or `fullmatch` only, in the file that makes it."""
    used = {ast.unparse(call.func).removeprefix("re.")}
    if used == {"compile"}:
        names = re.findall(rf"^(\w+)(?:: .*)? = {re.escape(ast.get_source_segment(source, call) or '-')}", source, re.M)
        used = {function for name in names for function in re.findall(rf"\b{name}\.(\w+)\(", source)}
    return bool(used) and used <= {"match", "fullmatch"}


def _held(values: Iterable[object]) -> Iterator["re.Pattern[Any]"]:
    for value in values:
        if isinstance(value, re.Pattern):
            yield value
        elif isinstance(value, dict):
            yield from _held(value.values())
        elif isinstance(value, tuple | list):
            yield from _held(value)


def example(parsed: Any) -> tuple[str, list[str]]:
    """A text that the parsed pattern more or less matches, and the characters and words in it."""
    text, known, run, end = "", [], "", ("END", cast(Any, None))
    for kind, value in (*parsed, end):
        if str(kind) != "LITERAL" and len(run) > 1:
            known, run = [*known, run], ""
        match str(kind):
            case "LITERAL":
                more, others, run = chr(value), [chr(value)], run + chr(value)
            case "IN":
                others = [one for item in value for one in _member(*item)]
                more = others[0] if others else ""
            case "ANY" | "NOT_LITERAL":
                more, others = "x", ["x"]
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                one, others = example(value[2])
                more = one * max(1, min(value[0], 8))
            case "SUBPATTERN" | "ATOMIC_GROUP":
                more, others = example(value[-1] if str(kind) == "SUBPATTERN" else value)
            case "BRANCH":
                branches = [example(branch) for branch in value[1]]
                more, others = branches[0][0], [one for branch in branches for one in (branch[0], *branch[1][:2])]
            case "ASSERT":
                more, others = "", example(value[1])[1]
            case _:
                more, others = "", []
        text += more
        known += others
    return text, known


def _member(kind: Any, value: Any) -> list[str]:
    match str(kind):
        case "LITERAL":
            return [chr(value)]
        case "RANGE":
            return [chr(value[0])]
        case "CATEGORY":
            return {"CATEGORY_DIGIT": ["1"], "CATEGORY_SPACE": [" ", "\n"], "CATEGORY_WORD": ["a"]}.get(
                str(value), ["."]
            )
        case _:
            return []


def texts(pattern: "re.Pattern[Any]") -> Iterator[tuple[str, str]]:
    """Adversarial texts: a beginning, which may be empty, and what is repeated after it."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    whole, known = example(re._parser.parse(source, pattern.flags & ~re.UNICODE))  # pyright: ignore[reportAttributeAccessIssue]  no public name
    known = sorted(dict.fromkeys((*known, *whole)), key=len)
    runs = [one for one in known if len(one) > 1][-6:]
    known = known[:10]
    starts = list(dict.fromkeys(whole[:end] for end in (*range(1, min(len(whole), 8)), *range(8, 40, 4), len(whole))))
    units = [*known, *runs, *(one + other for one in known[:6] for other in known[:6]), *starts, whole + " ", *GENERAL]
    tried = [("", unit) for unit in units] + [(start, unit) for start in starts for unit in (*known, *runs, " ")]
    return ((start, unit) for start, unit in dict.fromkeys(tried) if unit)


@dataclass(frozen=True)
class Search:
    """A search for all matches of a pattern, or for a match of the whole, in texts of one kind."""

    pattern: "re.Pattern[Any]"
    whole: bool
    start: str
    unit: str

    def __str__(self) -> str:
        return f"{self.start!r} + {self.unit!r} * n"

    def seconds(self, size: int) -> float:
        """Processor time for a text of about `size` characters."""
        text: Any = f"{self.start}{self.unit * (size // len(self.unit))}\0"
        text = text if isinstance(self.pattern.pattern, str) else text.encode("utf-8")
        began = time.process_time()
        if self.whole:
            self.pattern.fullmatch(text)
        else:
            deque(self.pattern.finditer(text), maxlen=0)
        return time.process_time() - began

    def least(self, size: int, enough: float) -> float:
        """The least of several times, until one is at most `enough` or far above it: other work slows searches down."""
        least = self.seconds(size)
        for _ in range(TIMES - 1):
            if least <= enough or least > SURELY_SLOW * enough:
                break
            least = min(least, self.seconds(size))
        return least

    def fault(self) -> str | None:
        """How the time grows faster than the length; None if it does not."""
        if (tiny := self.least(TINY, MOST_TINY_S)) > MOST_TINY_S:
            return f"{self}: {tiny:.3f} s for {TINY} characters"
        enough = max(SURELY_FAST_S, 10 * tiny)
        if (short := self.least(SHORT, enough)) <= enough:
            return None
        if short > MOST_SHORT_S:
            return f"{self}: {short:.3f} s for {SHORT} characters"
        enough = max(LINEAR_RATIO * short, NOT_SLOW_S)
        long = self.least(LONG, enough)
        return f"{self}: {short:.4f} s for {SHORT} characters, {long:.3f} s for {LONG}" if long > enough else None


def slow(pattern: "re.Pattern[Any]", *, whole: bool = False) -> str | None:
    """The first text on which the pattern's time grows faster than its length, with the times."""
    searches = (Search(pattern, whole, start, unit) for start, unit in texts(pattern))
    return next((fault for search in searches if (fault := search.fault())), None)


def test_every_function_that_makes_a_pattern_is_known():
    made = {f"{file}:{function}" for file, function, call in sites() if function and literal(call) is None}
    made -= {"chimera/rubric/words.py:_any"}  # It makes what the module holds, which is found there.
    assert made == set(BUILT)


@pytest.mark.parametrize("pattern", [r"\s+$", r"x\s*\s*y", r"<p[^>]*>", r"\w+@\w+", r"^(?:a|b)*?\s*\s*\s*c"])
def test_a_pattern_that_is_not_linear_is_found(pattern):
    assert slow(re.compile(pattern))


@pytest.mark.parametrize("pattern", [r"\d+", r"<p[^<>]{0,50}>", r"(?<!\w)\w+@", r"\bp\s?[<=>]\s?0?\.\d+"])
def test_a_linear_pattern_is_not(pattern):
    assert slow(re.compile(pattern)) is None


def test_every_pattern_is_linear():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, cwd=ROOT, check=False)
    tried = done.stderr.splitlines()
    assert done.returncode == 0, f"ended in {tried[-1:]}"
    assert len(tried) > 90
    assert json.loads(done.stdout) == {}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    sys.path.insert(0, str(ROOT))
    faults: dict[str, str] = {}
    for name, (pattern, whole) in patterns().items():
        print(name, file=sys.stderr, flush=True)
        if found := slow(pattern, whole=whole):
            faults[name] = found
    print(json.dumps(faults))
