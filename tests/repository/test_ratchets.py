"""Numbers that may fall and never rise, with their ceilings in ratchets.toml.

`python tests/repository/test_ratchets.py --write` lowers every ceiling to what is measured, and raises none.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from chimera.config.command import key_table

ROOT = Path(__file__).parents[2]
CEILINGS = Path(__file__).with_name("ratchets.toml")
LOWER = "python tests/repository/test_ratchets.py --write"
PACKAGES = ("chimera", "agents", "evaluation", "training", "benchmarks")
RIDDLES = (*("found", "one", "told", "said", "made", "given"), *("kept", "beside", "asked", "known", "wanted", "own"))
"""Names that do not say what a variable holds."""

Numbers = dict[str, dict[str, int]]


def measured() -> Numbers:
    """Every number, by table and name, as in ratchets.toml."""
    sources = {name: sources_in(ROOT / name) for name in (*PACKAGES, "tests")}
    trees = {name: {file: ast.parse(text) for file, text in sources[name].items()} for name in PACKAGES}
    uses = Counter(name for files in trees.values() for tree in files.values() for name in variables(tree))
    return {
        "lines": {name: sum(lines(file) for file in (ROOT / name).rglob("*")) for name in sources},
        "files": {name: len(files) for name, files in sources.items()},
        "modules_in_one_folder": {
            name: max(Counter(file.parent for file in trees[name]).values()) for name in PACKAGES
        },
        "folders_in_one_cycle": {name: largest_cycle(imports(trees[name])) for name in PACKAGES},
        "configuration": {"keys": len(key_table())},
        "tests": {"match": sum(text.count("match=") for text in sources["tests"].values())},
        "uses_of_names": {name: uses[name] for name in RIDDLES},
    }


def lines(file: Path) -> int:
    """Lines of code, or of a page's template, style or script; 0 of anything else."""
    return file.read_text(encoding="utf-8").count("\n") if file.suffix in (".py", ".j2", ".css", ".js") else 0


def sources_in(folder: Path) -> dict[Path, str]:
    return {file: file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py"))}


def variables(tree: ast.AST) -> Iterator[str]:
    """The name of each argument, and of each variable wherever it is set or read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def imports(trees: dict[Path, ast.Module]) -> dict[Path, set[Path]]:
    """The folders that each folder imports from, whether at the top of a module or inside a function."""
    folders: dict[Path, set[Path]] = {file.parent: set() for file in trees}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            folders[file.parent].update(folder for name in names if (folder := folder_of(name)) in folders)
    return folders


def folder_of(name: str) -> Path:
    """The folder of the module that `name` is, or is in."""
    path = ROOT / name.replace(".", "/")
    while path != ROOT and not path.is_dir() and not path.with_suffix(".py").is_file():
        path = path.parent
    return path if path.is_dir() else path.parent


def largest_cycle(folders: dict[Path, set[Path]]) -> int:
    """The most folders of which each can be reached from each other one; 1 without a cycle."""
    reach = {folder: {folder, *imported} for folder, imported in folders.items()}
    for between in reach:  # Warshall's algorithm.
        for reached in reach.values():
            if between in reached:
                reached |= reach[between]
    return max(sum(start in reach[end] for end in reach[start]) for start in reach)


def complaints(numbers: Numbers, ceilings: Numbers) -> list[str]:
    """A sentence for each number that is above its ceiling, or so far below that the ceiling holds nothing."""
    pairs = {
        f"{table}.{name}": (number, ceilings.get(table, {}).get(name, 0))
        for table, row in numbers.items()
        for name, number in row.items()
    }
    above = [
        f"{key} is {number}, and at most {most} are allowed" for key, (number, most) in pairs.items() if number > most
    ]
    below = [
        f"{key} is {number}: lower its ceiling of {most} with {LOWER}"
        for key, (number, most) in pairs.items()
        if number < most - slack(most)
    ]
    return above + below


def slack(ceiling: int) -> int:
    """How far a number may be below its ceiling: two per cent, at least 5, and nothing for a small number."""
    return max(ceiling // 50, 5) if ceiling >= 20 else 0


def lowered(numbers: Numbers, ceilings: Numbers) -> Numbers:
    return {
        table: {name: min(number, ceilings.get(table, {}).get(name, number)) for name, number in row.items()}
        for table, row in numbers.items()
    }


def test_no_number_rises_and_each_ceiling_is_close():
    assert complaints(measured(), tomllib.loads(CEILINGS.read_text())) == []


def test_a_ceiling_holds_falls_and_never_rises():
    ceilings = {"lines": {"a": 1000, "b": 1000, "c": 1000}}
    numbers = {"lines": {"a": 1001, "b": 980, "c": 979}}
    assert [sentence.split()[0] for sentence in complaints(numbers, ceilings)] == ["lines.a", "lines.c"]
    assert lowered(numbers, ceilings) == {"lines": {"a": 1000, "b": 980, "c": 979}}


def test_a_cycle_over_several_folders_is_seen():
    a, b, c, d = map(Path, "abcd")
    assert largest_cycle({a: {b}, b: {c}, c: {a}, d: {a}}) == 3
    assert largest_cycle({a: {b}, b: {c}, c: set(), d: {a}}) == 1


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    before = tomllib.loads(CEILINGS.read_text())
    CEILINGS.write_text(
        "# Ceilings: a number may fall, never rise (test_ratchets.py).\n"
        + "".join(
            f"\n[{table}]\n" + "".join(f"{name} = {number}\n" for name, number in row.items())
            for table, row in lowered(measured(), before).items()
        )
    )
