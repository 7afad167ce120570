"""The temporary folder of a command and its children."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import subprocess, sys, tempfile
from pathlib import Path
from chimera.core.cli import run_command
from chimera.core.errors import RunError
from chimera.processes.child_environment import child_environment

def main(argv):
    from multiprocessing import util

    util.get_temp_dir()  # Removed by multiprocessing itself at the interpreter's exit.
    print(tempfile.gettempdir(), flush=True)
    if argv == ["parent"]:
        child = [sys.executable, __file__, "child"]
        subprocess.run(child, env=child_environment(), check=True)
        assert len(list(Path(tempfile.gettempdir()).iterdir())) == 1, "the child removes its own part only"
        return
    {end}

run_command(main)
"""


def folders_of(tmp_path: Path, end: str, *argv: str) -> tuple[int, list[str]]:
    """The exit code of a command that ends with `end`, and the temporary folders that its processes had."""
    system, script = tmp_path / "system", tmp_path / "command.py"
    system.mkdir()
    script.write_text(SCRIPT.replace("{end}", end))
    ended = subprocess.run(
        [sys.executable, script, *argv],
        env={**os.environ, "TMPDIR": str(system), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert list(system.iterdir()) == [], ended.stderr
    assert "Traceback" not in ended.stderr
    folders = ended.stdout.split()
    assert [Path(folder).parent for folder in folders] == [system] * len(folders)
    return ended.returncode, folders


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("return 0", 0),
        ("raise RunError('broken')", 6),
        ("raise KeyboardInterrupt", 130),
        ("sys.modules['torch'] = sys; return 0", 0),
    ],
)
def test_it_is_removed_however_a_command_ends(tmp_path: Path, end: str, code: int):
    assert folders_of(tmp_path, end)[0] == code


def test_children_use_their_parents(tmp_path: Path):
    code, (own, of_child) = folders_of(tmp_path, "return 0", "parent")
    assert (code, own) == (0, of_child)
