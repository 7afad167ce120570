"""The README's promises that a machine can check."""

import re
from pathlib import Path

import pytest

from chimera.config.loader import keys
from chimera.config.tree import Config, load_config
from chimera.core.secrets import ENVIRONMENT
from chimera.data.tasks import load
from training.learning.plans import choose_names, make_phases

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


OF_RECIPES = [
    *("models.reader.like=junior", "roles.Neurologist.model=reader", "pipeline.rejection.roles=[HypothesisRefiner]"),
    *("design.algorithm=rejection", "design.right=any", "pipeline.dpo.roles=[HypothesisRefiner]"),
    *("pipeline.star.roles=[HypothesisRefiner]", "pipeline.distil.roles=juniors"),
    *("pipeline.read.algorithm=rejection", "pipeline.read.roles=[Neurologist]"),
    *("pipeline.mine.algorithm=examples.my_algorithm:Mine", "pipeline.mine.roles=juniors"),
    *("tools.mcp.papers.command=[python,papers.py]", "roles.Geneticist.tools=[literature_search,mcp:papers/find]"),
]
"""Settings that make the slots and phases that the README's recipes name."""
NAMED = sorted(set(re.findall(r"[` ]((?:[a-z_]+\.)+[A-Za-z_]+)=", README)))


@pytest.mark.parametrize("key", NAMED)
def test_every_setting_that_the_readme_names_exists(key: str) -> None:
    names = {one.name for one in keys(load_config(None, OF_RECIPES))}
    full = key if key.partition(".")[0] in Config.model_fields else f"pipeline.{key}"
    assert full in names or any(name.startswith(f"{full}.") for name in names)


def test_the_pipeline_of_the_readme_can_run(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(text)
    config = load_config(tmp_path / "mine.yaml")
    phases = make_phases(choose_names(None, config), config, load(config.data))
    slots = {phase.name: phase.plan.slots for phase in phases}
    assert list(slots) == ["gather", "sft", "read", "ppo", "mine"]
    assert (slots["read"], slots["ppo"], slots["mine"]) == (("reader",), ("refiner",), ("senior",))


ABOUT_ROLES = (
    r"another algorithm|weights of its own|another reward for|another estimator|rejection|surer|step DPO|STaR|"
    r"distillation|LoRA"
)
RECIPES = [
    recipe
    for cell in re.findall(rf"^\| (?:{ABOUT_ROLES})[^|]*\| (.*?) \|$", README, re.MULTILINE)
    for recipe in re.findall(r"`([^`]*=[^`]*)`", cell)
]


def test_the_recipes_about_roles_can_run() -> None:
    """Each by itself; those that give a junior weights of its own belong together."""
    own = [recipe for recipe in RECIPES if "read" in recipe]
    assert own
    assert len(RECIPES) >= 7
    for recipe in (" ".join(own), *(recipe for recipe in RECIPES if recipe not in own)):
        settings = re.findall(r"(\S+?=(?:\[[^\]]*\]|\{[^}]*\}|\S+))", recipe)
        config = load_config(None, settings)
        assert make_phases(choose_names(None, config), config, load(config.data)), recipe
