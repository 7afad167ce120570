"""The promises of the README and of docs/ that a machine can check."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from chimera.config.loader import keys
from chimera.config.tree import Config
from chimera.core.secrets import ENVIRONMENT
from chimera.data.tasks import load
from training.configuration import load_config
from training.phases import choose_names, make_phases
from training.ppo.verl.configuration import PASSED

ROOT = Path(__file__).parents[2]
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README, DOCS = PAGES[ROOT / "README.md"], "\n".join(PAGES.values())


def test_the_table_of_environment_variables_agrees_with_the_code() -> None:
    section = PAGES[ROOT / "docs/environment.md"].split("## Environment variables")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(ENVIRONMENT)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    linked = [page.parent / path for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[page])]
    folders = "chimera|agents|training|evaluation|configs|benchmarks|recipes|examples|tests"
    named = re.findall(rf"`((?:{folders})/[\w./]+)`", PAGES[page])
    missing = [path for path in (*linked, *(ROOT / name for name in named)) if not path.exists()]
    assert not missing


def test_the_documentation_builds_without_a_broken_link_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for page in tmp_path.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:[^\"]+)", text), page.name


def test_every_page_is_in_the_overview() -> None:
    overview = PAGES[ROOT / "docs/index.md"]
    pages = {path.name for path in PAGES} - {"README.md", "index.md"}
    assert set(re.findall(r"\]\((\S+\.md)\)", overview)) == pages


def test_the_file_tree_names_real_files() -> None:
    tree = README.split("## How it is built")[1].split("```text\n")[1].split("```")[0]
    folder, missing = ROOT, []
    for line in tree.strip().splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split()
        if not line.startswith(" "):
            folder = ROOT / names[0]
            names = [] if len(line.split()) > 1 and not line.rstrip().endswith("/") else names
        root = ROOT if not line.startswith(" ") else folder
        missing += [name for name in names if not list(root.glob(name.rstrip("/")))]
    assert not missing


CONCEPTS = PAGES[ROOT / "docs/concepts.md"]
NOUNS = (
    *("task", "role", "visit", "slot", "rollout", "episode", "call", "finding", "policy", "phase", "bench", "stage"),
    *("branch", "state", "guidance", "graph", "candidate", "gate", "score", "reward", "credit", "advantage"),
    *("label", "answer", "decision"),
)


@cache
def defined_in(path: str) -> frozenset[str]:
    """The classes, functions and variables of a module, and the methods of its classes as Class.method."""
    names: list[str] = []
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            names += [f"{node.name}.{method.name}" for method in methods]
    return frozenset(names)


def test_every_noun_of_the_concepts_is_defined_where_they_say() -> None:
    rows = dict(re.findall(r"^\| (\w+) \|.*\| (.*) \|$", CONCEPTS, re.MULTILINE))
    assert tuple(noun for noun in rows if noun != "noun") == NOUNS
    named = r"`([\w.]+)` in\s+`([\w/]+\.py)`"
    assert all(re.search(named, rows[noun]) for noun in NOUNS)
    steps = re.findall(r"^\d\. `([\w/]+\.py)`: (.*)$", CONCEPTS, re.MULTILINE)
    assert len(steps) == 5
    pairs = re.findall(named, CONCEPTS) + [(name, path) for path, text in steps for name in re.findall("`(.+?)`", text)]
    assert [pair for pair in pairs if pair[0] not in defined_in(pair[1])] == []


OF_RECIPES = [
    *("models.reader.like=junior", "roles.Neurologist.model=reader", "pipeline.rejection.roles=[HypothesisRefiner]"),
    *("design.algorithm=rejection", "design.right=any", "pipeline.dpo.roles=[HypothesisRefiner]"),
    *("pipeline.star.roles=[HypothesisRefiner]", "pipeline.distil.roles=juniors"),
    *("pipeline.read.algorithm=rejection", "pipeline.read.roles=[Neurologist]"),
    *("pipeline.mine.algorithm=examples.my_algorithm:Mine", "pipeline.mine.roles=juniors"),
    "pipeline.aflow.algorithm=aflow",
    *("pipeline.teach.algorithm=sft", "pipeline.teach.roles=[PeerReviewer]"),
    *("tools.mcp.papers.command=[python,papers.py]", "roles.Geneticist.tools=[literature_search,mcp:papers/find]"),
]
"""Settings that make the slots and phases that the recipes name."""
NAMED = sorted(set(re.findall(r"[` ]((?:[a-z_]+\.)+[A-Za-z_]+)=", DOCS)))


@pytest.mark.parametrize("key", NAMED)
def test_every_setting_that_the_documentation_names_exists(key: str) -> None:
    names = {one.name for one in keys(load_config(None, OF_RECIPES))}
    full = key if key.partition(".")[0] in Config.model_fields else f"pipeline.{key}"
    part, _, of_verl = full.partition(".verl.")[2].partition(".")
    assert full in names or any(name.startswith(f"{full}.") for name in names) or of_verl in PASSED.get(part, ())


def test_the_pipeline_of_the_documentation_can_run(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml title=\"readers.yaml\"\n(.*?)```", DOCS, re.DOTALL)
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
    for cell in re.findall(rf"^\| (?:{ABOUT_ROLES})[^|]*\| (.*?) \|$", DOCS, re.MULTILINE)
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
