"""Recipes of the documentation, executed from its text in a copy of the checkout.

A fenced block with `title="FILE"` is that file. If it is a `diff`, it is a change of it: lines with a space or a minus
must stand there once, one after another; `@@` separates changes. The commands of a `bash` block are run as they are,
with this Python.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("agents", "chimera", "configs", "evaluation", "examples", "training", "pyproject.toml")
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    file: str | None
    text: str


def section(page, title):
    """The text below a heading of a page, up to the next heading of the same level or a higher one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (heading,) = re.findall(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    below = text.split(f"\n{heading} {title}\n")[1]
    return re.split(rf"^#{{1,{len(heading)}}} ", re.sub(r"(?ms)^```.*?^```$", _masked, below), flags=re.MULTILINE)[
        0
    ].replace("\0", "#")


def _masked(fence):
    return fence.group().replace("#", "\0")


def blocks(text):
    return [Block(language, file or None, body) for language, file, body in FENCE.findall(text)]


def commands(text):
    """The commands of a recipe's `bash` blocks, without comments."""
    lines = (line for block in blocks(text) if block.language == "bash" for line in block.text.splitlines())
    return [line for line in (line.partition("  #")[0].strip() for line in lines) if line and line[0] != "#"]


def copy_checkout(folder):
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def apply(text, folder):
    """Write the files of a recipe into `folder`, and change those that it changes."""
    for block in blocks(text):
        if block.file is None:
            continue
        file = folder / block.file
        if block.language == "diff":
            found = file.read_text(encoding="utf-8")
            for change in re.split(r"(?m)^@@\n", block.text):
                lines = change.splitlines(keepends=True)
                old = "".join(line[1:] for line in lines if line[0] != "+")
                assert found.count(old) == 1, f"{block.file} holds this {found.count(old)} times:\n{old}"
                found = found.replace(old, "".join(line[1:] for line in lines if line[0] != "-"))
            file.write_text(found, encoding="utf-8")
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")


def run(command, folder, *more):
    """Run one command of a recipe in `folder`; returns what it printed. `more` are settings that make it smaller."""
    words = shlex.split(command)
    assert words[0] == "python", command
    done = subprocess.run(
        [sys.executable, *words[1:], *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200", "WANDB_MODE": "disabled"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
