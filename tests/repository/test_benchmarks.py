"""Every benchmark runs as README says, with its tiny size, and prints figures with their units."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
ROWS = {
    "adapter": [rf"ms per 1,000 spans, processor time(?s:.)*\n +\d+ +{NUMBER} +{NUMBER} +{NUMBER}"],
    "coverage": [
        r"intervals that cover, %",
        rf"│ +5 │ +0\.04, 0\.3, 0\.4 │ +{NUMBER} │ +{NUMBER} │ +{NUMBER} │ +{NUMBER} │",
    ],
    "gateway": [rf"every exchange is in the store(?s:.)*│ thin +│ +{NUMBER} │ +{NUMBER} │ +{NUMBER} │ +{NUMBER} │"],
    "orchestration": [r"wall ms each ┃ CPU ms each", rf"overhead per rollout +│ +│ +{NUMBER} │ +{NUMBER} │"],
    "ppo_update": [
        rf"VeRL +│ whole, CPU │ +{NUMBER} │ +{NUMBER} │ +{NUMBER} x │",
        rf"weight after 2 updates: {NUMBER} ",
    ],
    "quotes": [rf"read quotes, the refiner reads +│ +{NUMBER} │ +{NUMBER} │ +0 │ +0 │ +0 │ +{NUMBER} │"],
    "retrieval": [rf"recall@5 {NUMBER}%", rf"indexed in {NUMBER} s, {NUMBER} ms per search"],
    "serving": [rf"server:\s+{NUMBER}\s+tokens/s", rf"generate, batched:\s+{NUMBER}\s+tokens/s", rf"│ +{NUMBER} x │"],
    "shortcuts": [r"accuracy %", rf"│ reads everything +│ {NUMBER} "],
}
"""What each benchmark must print with --tiny: patterns with its figures and their units."""
ELSEWHERE: dict[str, str] = {}
"""Benchmarks without a tiny size, and why."""


def test_every_benchmark_has_a_row_here():
    there = {file.stem for file in (ROOT / "benchmarks").glob("*.py")}
    unknown = sorted(there - ROWS.keys() - ELSEWHERE.keys())
    assert unknown == [], (
        f"no test runs benchmarks/{unknown[0]}.py: give it an argument --tiny with which it ends within ten seconds, "
        f"and add a row {unknown[0]!r} to ROWS in test_benchmarks.py: patterns of the figures and units it prints"
    )
    assert sorted(ROWS.keys() - there) == []


@pytest.mark.parametrize("name", ROWS)
def test_a_benchmark_runs_and_prints_figures_with_their_units(name, tmp_path):
    """In an empty folder, where there is no run yet: one that needs a run makes it."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--tiny"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for pattern in ROWS[name]:
        assert re.search(pattern, done.stdout), f"{pattern!r} is not in:\n{done.stdout}"
