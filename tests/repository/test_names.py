"""Roles and slots are named in one place each: the code does not know which there are."""

import ast
from pathlib import Path

import pytest

from agents.roles import ROLES
from chimera.config.sections.models import SLOTS

ROOT = Path(__file__).parents[2]
ROLE_NAMES = {"agents/roles.py", "chimera/config/roles.py", "chimera/config/pipeline.py", "chimera/graph.py"}
"""The table of roles, the default configuration, and the captions of the picture."""
SLOT_NAMES = {
    "chimera/config/roles.py",
    "chimera/config/sections/models.py",
    "chimera/config/tree.py",
    "chimera/config/pipeline.py",
}
"""The default configuration."""
ALSO_WORDS = {"judge", "supervisor", "principal", "refiner"}
"""Slots whose names are also words that records and reports use."""


def strings(file):
    tree = ast.parse(file.read_text())
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize(
    ("names", "allowed"), [({*ROLES}, ROLE_NAMES), ({*SLOTS} - ALSO_WORDS, SLOT_NAMES)], ids=["roles", "slots"]
)
def test_no_code_outside_the_tables_names_a_role_or_a_slot(names, allowed):
    files = [
        file for package in ("chimera", "agents", "evaluation", "training") for file in (ROOT / package).rglob("*.py")
    ]
    found = {str(file.relative_to(ROOT)): strings(file) & names for file in files}
    assert {file: sorted(named) for file, named in found.items() if named and file not in allowed} == {}


def test_no_two_classes_have_one_name():
    names: dict[str, list[str]] = {}
    for package in ("chimera", "agents", "evaluation", "training"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    names.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in names.items() if len(files) > 1} == {}
