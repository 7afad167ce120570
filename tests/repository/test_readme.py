"""The README's promises that a machine can check."""

import re
from pathlib import Path

import pytest

from chimera.config.tree import Config
from chimera.core.secrets import ENVIRONMENT

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_environment_variables_agrees_with_the_code() -> None:
    section = README.split("## Environment variables")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(ENVIRONMENT)


def test_every_path_that_the_readme_names_exists() -> None:
    linked = re.findall(r"\]\(([^)#]+)\)", README)
    named = re.findall(r"`((?:chimera|agents|training|evaluation|configs|benchmarks|tests)/[\w./]+)`", README)
    assert linked
    assert named
    missing = [path for path in (*linked, *named) if not (ROOT / path).exists()]
    assert not missing


def test_the_file_tree_names_real_files() -> None:
    tree = README.split("## How it is built")[1].split("```text")[1].split("```")[0]
    folder, missing = ROOT, []
    for line in tree.strip().splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split()
        if not line.startswith(" "):
            folder = ROOT / names[0]
            names = [] if len(line.split()) > 1 and not line.rstrip().endswith("/") else names
        root = ROOT if not line.startswith(" ") else folder
        missing += [name for name in names if not list(root.glob(name.rstrip("/")))]
    assert not missing


@pytest.mark.parametrize(
    "key", sorted(set(re.findall(r"`((?:models|data|tools|society|gather|reward)\.[\w.]+)=", README)))
)
def test_every_setting_that_the_readme_names_exists(key: str) -> None:
    section: object = Config()
    for part in key.split("."):
        assert part in type(section).model_fields  # pyright: ignore[reportAttributeAccessIssue] - sections are pydantic models
        section = getattr(section, part)
