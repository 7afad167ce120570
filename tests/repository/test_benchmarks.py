"""Every benchmark runs as README says, with its tiny size, and prints figures with their units."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
ROWS = {
    "coverage": [
        r"intervals that cover, %",
        rf"│ +5 │ +0\.04, 0\.3, 0\.4 │ +{NUMBER} │ +{NUMBER} │ +{NUMBER} │ +{NUMBER} │",
    ],
    "orchestration": [r"wall ms each ┃ CPU ms each", rf"overhead of worker in Agent Lightning │ +│ +│ +{NUMBER} │"],
    "own_decision": [
        rf"HypothesisRefiner itself │ +4 │ +{NUMBER} │ +{NUMBER} │ +\+0\.0 │ +\+0\.0 │",
        rf"the society +│ +4 │ +{NUMBER} │ +{NUMBER} │",
    ],
    "ppo_update": [
        rf"VeRL +│ whole, CPU │ +{NUMBER} │ +{NUMBER} │ +{NUMBER} x │",
        rf"weight after 2 updates: {NUMBER} ",
    ],
    "real_size": [rf"serve-bfloat16: {NUMBER} s, {NUMBER} GiB; .*eight {NUMBER}; "],
    "shortcuts": [r"accuracy %", rf"│ reads everything +│ {NUMBER} "],
}
"""What each benchmark must print with --tiny: patterns with its figures and their units."""
ELSEWHERE: dict[str, str] = {}
"""Benchmarks without a tiny size, and why."""
SHARED = {"random_model"}
"""Modules that benchmarks use, which are no commands."""

ALL = """
import importlib, sys, traceback
for name in list(sys.argv[1:]):
    print("===", name, flush=True)
    sys.argv = [name, "--tiny"]
    try:
        importlib.import_module("benchmarks." + name).main()
        print("\\nended well", flush=True)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
"""
"""Runs the benchmarks that it is told."""
VERL = "ppo_update"
"""It comes last, because VeRL changes parts of transformers."""


def commands() -> dict[str, Path]:
    """The benchmarks' files by their module's name below `benchmarks`."""
    folder = ROOT / "benchmarks"
    found = {".".join(file.relative_to(folder).with_suffix("").parts): file for file in folder.rglob("*.py")}
    return {name: file for name, file in found.items() if name not in SHARED}


def test_every_benchmark_has_a_row_here():
    there = set(commands())
    unknown = sorted(there - ROWS.keys() - ELSEWHERE.keys())
    assert unknown == [], (
        f"no test runs benchmarks.{unknown[0]}: give it an argument --tiny with which it ends within ten seconds, "
        f"and add a row {unknown[0]!r} to ROWS in test_benchmarks.py: patterns of the figures and units it prints"
    )
    assert sorted(ROWS.keys() - there) == []


def test_every_benchmark_is_a_command():
    for file in commands().values():
        assert file.read_text().endswith('\n\nif __name__ == "__main__":\n    main()\n'), file


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each benchmark printed with --tiny. One process runs them all, so that they share their imports.

    It is started in an empty folder, where there is no run yet: a benchmark that needs a run makes it.
    """
    done = subprocess.run(
        [sys.executable, "-c", ALL, *sorted(ROWS, key=VERL.__eq__)],
        cwd=tmp_path_factory.mktemp("empty"),
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    parts = re.split(r"^=== ([\w.]+)$", done.stdout, flags=re.MULTILINE)
    assert done.returncode == 0, done.stdout
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", ROWS)
def test_a_benchmark_runs_and_prints_figures_with_their_units(name, printed):
    for pattern in ROWS[name]:
        assert re.search(pattern, printed[name]), f"{pattern!r} is not in:\n{printed[name]}"
    assert "\nended well" in printed[name], printed[name]
