"""Every command of docs/transcripts.md, played in one folder: its exit code, and what it prints.

The bundled model is sampled, so words and numbers may differ. Compared are the labels of lines, and whole lines
that hold nothing sampled.
"""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp_kit import PROGRAM
from provider_kit import serve

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "transcripts.md").read_text()
GAP = "[...]"
CODES = {"--context abstract.txt": {7}, "society.confirm=": {8}, "--config ep.yaml": {1}}
"""Exit codes other than 0, by a part of the command."""
WIDE = ["gate.margin=9", "gate.margin_alignment=0.99"]
"""The page exports what a gate of 12 tasks kept, which depends on what a server answers together."""
SETTINGS = {"ask": ["rollouts.timeout_s=1000"], "chimera.train": ["rollouts.concurrency=2", *WIDE]}
"""What a busy machine needs, by the command's word."""
DEAD = "models: {junior: {kind: endpoint, model: x, base_url: 'http://127.0.0.1:9/v1', api_key_env: null}}\n"
CALLS = {
    "risk_difference": {"treated": 18, "control": 27, "participants": 400},
    "dose": {"drug": "zinc", "milligrams": 12.5, "days": 4},
}


@dataclass(frozen=True)
class Shown:
    """A command and the lines that the page shows below it."""

    command: str
    lines: tuple[str, ...]


def shown() -> list[Shown]:
    found: list[Shown] = []
    for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append(Shown(command, tuple(line for line in printed.splitlines() if line.strip())))
    return found


def label(line: str) -> str:
    """What must be equal in a line: its label if it has one, or else the line without what is sampled."""
    text = line.strip()
    if set(text) <= set("─━┏┳┓┡╇┩│ "):
        return "a rule"
    if text.startswith("│"):  # Of a table only the first column: how the others are wrapped depends on the width.
        return text.split("│")[1].strip()
    if "  " in text:
        return re.sub(r"[\d.]+", "N", re.split(r"\s{2,}", text)[0])
    text = re.sub(r"\b(yes|no|maybe|none|[A-E]|GO|NO-GO|UNDECIDED)\b", "ANSWER", text)
    return re.sub(r"\d{8}-\d{6}|\d[\d.,]*", "N", text)


def missing(wanted: tuple[str, ...], printed: str) -> str | None:
    """The first line of `wanted` that `printed` lacks; in any order, because roles work together."""
    labels = {label(line) for line in printed.splitlines() if line.strip()}
    return next((line for line in wanted if line != GAP and label(line) not in labels), None)


@pytest.fixture
def folder(tmp_path: Path, scripted_openai: Any):
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "abstract.txt").write_text(
        "RESULTS: Systolic pressure fell by 6 mmHg with the walk and by 1 mmHg without (p=0.01).\n"
    )
    (tmp_path / "lab.py").write_text(PROGRAM)
    (tmp_path / "ep.yaml").write_text(DEAD)
    with serve(lambda request: play(scripted_openai, request)) as provider:
        (config,) = re.findall(r"```yaml\n(models:\n.*?)```", PAGE, re.DOTALL)
        config = config.replace("http://127.0.0.1:PORT", provider.url).replace("[python,", f"[{sys.executable},")
        (tmp_path / "provider.yaml").write_text(config)
        yield tmp_path


def play(scripted: Any, request: dict[str, Any]) -> Any:
    """A provider whose juniors call their own tool once, and quote what it returned."""
    tools = [tool.get("name") or tool["function"]["name"] for tool in request.get("tools") or ()]
    results = [message for message in request["messages"] if message["role"] == "tool"]
    if tools and not results:
        name = next((name for name in CALLS if name in tools), "literature_search")
        return [(name, CALLS.get(name, {"query": scripted.goal(request)}))]
    answer = scripted.standard(request)
    if results and "evidence" in answer:
        (text, *_) = [one["text"] for one in json.loads(results[-1]["content"])["results"]]
        answer = {**answer, "evidence": [text.partition(". ")[0]], "comparison": "as asked", "claim": "it helps"}
    return json.dumps(answer)


def test_the_page_shows_what_its_commands_print(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-a-test")
    asked = ""
    for one in shown():
        command = re.sub(r"--continue \S+", f"--continue {asked}", one.command).partition(" 2>")[0]
        words = shlex.split(command)
        if words[0] == "python":
            words[0] = sys.executable
            words += next((more for name, more in SETTINGS.items() if name in words and "--continue" not in words), [])
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
        printed = done.stdout + done.stderr
        code = next((codes for part, codes in CODES.items() if part in command), {0})
        assert done.returncode in code, (one.command, done.returncode, printed[-3000:])
        assert (line := missing(one.lines, printed)) is None, (one.command, line, printed[-6000:])
        asked = "".join(re.findall(r"--continue (\S+) --verdict approve", printed)) or asked
