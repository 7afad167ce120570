"""What every command says before it does anything: an unfit system or Python, and packages that are not Chimera's."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from chimera.__main__ import COMMANDS

ROOT = Path(__file__).parents[3]
RUNS = """
import os, sys
from chimera.core.cli import run_command
from chimera.core.secrets import redact
redact("")  # It reads .env, which Python cannot do once it believes that this is Windows.
{change}
run_command(lambda argv: print("ran"))
"""


def python(*arguments, path=ROOT, cwd=ROOT):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path if isinstance(path, list) else [path]))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("os.name = 'nt'", "error: Chimera does not run on Windows, because"),
        ("sys.version_info = (3, 10, 4, 'final', 0)", "error: Chimera needs Python 3.11 or 3.12, and this is 3.10 ("),
        ("sys.version_info = (3, 13, 0, 'final', 0)", "error: Chimera needs Python 3.11 or 3.12, and this is 3.13 ("),
    ],
)
def test_an_unfit_machine_is_one_sentence(change, sentence):
    ended = python("-c", RUNS.format(change=change))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith(sentence)


def test_a_mac_is_told_that_it_is_untested():
    ended = python("-c", RUNS.format(change="sys.platform = 'darwin'"))
    assert (ended.returncode, ended.stdout) == (0, "ran\n")
    assert ended.stderr == "note: Chimera is tested on Linux; on macOS nobody has tried it\n"


def test_every_command_begins_without_what_only_unix_has():
    """Else it would end in a traceback on Windows, before it could say the sentence."""
    hidden = "import sys; sys.modules.update(dict.fromkeys(('fcntl', 'resource', 'termios', 'pwd', 'grp', 'tty')))"
    modules = sorted({"chimera.__main__", *(module for module, _ in COMMANDS.values())})
    ended = python("-c", f"{hidden}; import {', '.join(modules)}")
    assert ended.returncode == 0, ended.stderr


IMPORTS = """
from chimera.core.cli import run_command
def main(argv):
    from chimera.core.imports import load_named
    load_named("mine:main", "x")(argv)
    load_named(argv[0], "tool 'x'")
run_command(main)
"""
MINE = """
def main(argv):
    import agents.roles, evaluation.report, training.learning
    print(argv[0])
"""


def plant(folder: Path, form: str) -> None:
    """Put others' things with the names of Chimera's packages into a folder, and a user's own module."""
    (folder / "mine.py").write_text(MINE)
    for name in ("agents", "evaluation", "training"):
        if form == "file":
            (folder / f"{name}.py").write_text('"""Of somebody else."""\n')
            continue
        (folder / name).mkdir()
        if form == "package":
            (folder / name / "__init__.py").write_text('"""Of somebody else."""\n')


@pytest.mark.parametrize("form", ["folder", "package", "file"])
def test_chimeras_own_packages_come_before_others_of_their_names(tmp_path, form):
    plant(tmp_path, form)
    ended = python("-c", IMPORTS, "agents.mine:Tool", path=[tmp_path, ROOT], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "agents.mine:Tool\n")
    assert all(part in ended.stderr for part in ("agents.mine", "Chimera's own", str(tmp_path), "another name"))
    child = ("chimera.processes.child", str(os.getpid()), "mine", "told")
    ended = python("-m", *child, path=[tmp_path, ROOT], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "told\n"), ended.stderr


def test_a_package_of_the_same_name_that_is_imported_already_is_named(tmp_path):
    plant(tmp_path, "package")
    code = "import agents\nfrom chimera.core.cli import run_command\nrun_command(lambda argv: None)"
    ended = python("-c", code, path=[tmp_path, ROOT], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: the package 'agents' in {tmp_path / 'agents'} belongs to another program")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_a_terminal_cannot_show_is_replaced(encoding, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    code = (
        "from chimera.core.cli import run_command\nrun_command(lambda argv: print('caf\\xe9 \\u201cso\\u201d \\u4e2d'))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout == "café “so” 中\n".encode(encoding, "replace")


def test_a_package_that_another_distribution_has_overwritten_is_noticed(tmp_path):
    """Installed into the same folder: its files lie among Chimera's. Its distribution is named."""
    shutil.copytree(ROOT / "chimera", tmp_path / "chimera", ignore=shutil.ignore_patterns("assets", "__pycache__"))
    for name in ("agents", "evaluation", "training"):
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / name / "__init__.py", tmp_path / name)
    assert python("-m", "chimera", "--help", path=tmp_path, cwd=tmp_path).returncode == 0
    (tmp_path / "agents" / "__init__.py").write_text('"""Agents of somebody else."""\n')
    info = tmp_path / "openai_agents-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: openai-agents\nVersion: 0.1.0\n")
    (info / "top_level.txt").write_text("agents\n")
    ended = python("-m", "chimera", "--help", path=tmp_path, cwd=tmp_path)
    assert ended.returncode == 2
    assert "belongs to the distribution openai-agents and not to Chimera" in ended.stderr
    assert "pip uninstall openai-agents and install Chimera again" in ended.stderr


def test_the_console_script_does_what_the_module_does():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts["chimera"].split(":")
    through = python("-c", f"import sys; from {module} import {function}; sys.exit({function}())", "trace", "--help")
    direct = python("-m", "chimera", "trace", "--help")
    assert (through.returncode, through.stdout) == (0, direct.stdout)
