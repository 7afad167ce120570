"""The project around the code: commands, exit codes, set-up files and the import rule."""

import ast
import importlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from chimera.__main__ import COMMANDS
from chimera.core.secrets import ENVIRONMENT, SECRETS

ROOT = Path(__file__).parents[2]
PACKAGES = ("chimera", "agents", "evaluation", "training")
HEAVY = (
    "torch",
    "transformers",
    "agentlightning",
    "litellm",
    "verl",
    "trl",
    "datasets",
    "langgraph",
    "pydantic",
    "rich",
)
MAKE = shutil.which("make")


def python(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_list_of_commands_has_a_line_for_each_and_imports_nothing_heavy():
    for arguments in ((), ("--help",)):
        answer = python("-X", "importtime", "-m", "chimera", *arguments)
        assert answer.returncode == 0
        assert [name for name in COMMANDS if not re.search(rf"^  {name} +\w.{{15,}}$", answer.stdout, re.M)] == []
        imported = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines()}
        assert "chimera.core.cli" in imported
        assert imported & set(HEAVY) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_without_loading_models_or_the_training_stack(name: str):
    code = (
        f"import sys, {COMMANDS[name][0]} as command\n"
        "try: command.main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        f"print('loaded:', sorted(set(sys.modules) & {set(HEAVY) - {'pydantic', 'rich'}}))"
    )
    answer = python("-c", code)
    assert answer.returncode == 0, answer.stderr
    assert re.search(rf"^usage: python -m chimera[ .]{name}\b", answer.stdout)
    assert answer.stdout.splitlines()[-1] == "loaded: []"


def test_python_m_chimera_runs_a_command_as_its_module_does():
    override = "gather.tasks=3"
    through, direct = (
        python("-m", *how, "--yaml", override) for how in (("chimera", "config"), ("chimera.config.command",))
    )
    assert through.stdout == direct.stdout
    assert "tasks: 3" in through.stdout


def test_an_unknown_command_names_the_nearest():
    answer = python("-m", "chimera", "trian")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error: there is no command 'trian': did you mean 'train'?")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "code", "shown"),
    [
        ("return None", 0, ""),
        ("return 7", 7, ""),
        ("raise ConfigError('unknown key x')", 2, "error: unknown key x\n"),
        ("raise DataError('broken record 3')", 3, "error: broken record 3\n"),
        ("raise RoleError('Supervisor', 'no choice')", 5, "error: Supervisor: no choice\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        ("import os; os.kill(os.getpid(), 15)", 130, "interrupted\n"),
        (
            "raise ValueError('a plan') from MemoryError()",
            6,
            "error: the system gives no more memory or threads (MemoryError): raise the limits (ulimit -v, "
            "ulimit -u), or lower rollouts.concurrency and serving.slots\n",
        ),
        ("raise DataError('key sk-topsecret1')", 3, "error: key [OPENAI_API_KEY]\n"),
        # What the hub's client repeats without network is said once.
        (
            "import logging; said = logging.getLogger('huggingface_hub.utils._http').warning; "
            "said('no net'); said('Retrying in 1s [Retry 1/5].'); said('no net')",
            0,
            "no net\n",
        ),
    ],
)
def test_how_a_command_ends(body: str, code: int, shown: str, tmp_path: Path):
    imports = "from chimera.core.cli import run_command\nfrom chimera.core.errors import *"
    script = f"{imports}\ndef main(argv): {body}\nrun_command(main)"
    answer = python("-c", script, OPENAI_API_KEY="sk-topsecret1", TMPDIR=str(tmp_path))
    assert (answer.returncode, answer.stderr, list(tmp_path.iterdir())) == (code, shown, [])


def test_a_bug_shows_its_traceback_without_secrets():
    script = "from chimera.core.cli import run_command\ndef main(argv):\n    {}['sk-topsecret1']\nrun_command(main)"
    answer = python("-c", script, OPENAI_API_KEY="sk-topsecret1")
    assert answer.returncode == 70
    assert "Traceback" in answer.stderr
    assert "KeyError: '[OPENAI_API_KEY]'" in answer.stderr
    assert "sk-topsecret1" not in answer.stderr


def test_a_reader_that_goes_away_is_no_error():
    script = "from chimera.core.cli import run_command\nrun_command(lambda argv: print('x' * 10**7))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait()) == (b"", 0)
    process.stderr.close()


def test_calls_to_this_machine_go_past_any_proxy(loopback_server: str):
    """With a dead proxy in the environment, a command still reaches its own servers, and so do its children."""
    call = f"import httpx; print(httpx.get({loopback_server!r}).status_code)"
    script = (
        "import subprocess, sys\nfrom chimera.core.cli import run_command\n"
        f"def main(argv):\n    {call}\n    sys.stdout.flush()\n"
        f"    subprocess.run([sys.executable, '-c', {call!r}], check=True)\n"
        "run_command(main)"
    )
    dead = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    ended = python("-c", script, **dead, NO_PROXY="example.org", no_proxy="example.org")
    assert (ended.returncode, ended.stdout.split()) == (0, ["200", "200"]), ended.stderr


@pytest.fixture
def loopback_server() -> Iterator[str]:
    """An HTTP server on loopback that answers 200; its address."""

    class Fine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Fine) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("command", "override"),
    [
        ("ask", "gather.tasks=7"),
        ("ask", "reward.alignment=2"),
        ("data", "society.max_tool_calls=1"),
        ("data", "seed=3"),
    ],
)
def test_an_override_that_a_command_does_not_read_is_refused(command: str, override: str):
    question = ["Does it help?"] if command == "ask" else []
    ended = python("-m", "chimera", command, *question, override)
    assert ended.returncode == 2
    assert f"{override.partition('=')[0]} has no effect on this command" in ended.stderr


def test_overrides_may_stand_before_between_and_after_options():
    answer = python(
        "-m", "chimera", "config", "seed=1", "--yaml", "gather.tasks=2", "--config", "configs/local.yaml", "data.seed=3"
    )
    assert answer.stderr == ""
    found = yaml.safe_load(answer.stdout)
    assert (found["seed"], found["data"]["seed"], found["pipeline"]["gather"]["tasks"]) == (1, 3, 2)


def test_the_example_environment_names_every_secret_and_holds_none():
    from dotenv import dotenv_values

    assert dotenv_values(ROOT / ".env.example") == dict.fromkeys(SECRETS, "")
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert ".env" in ignored


def environment_reads(tree: ast.AST) -> set[str]:
    """Names of environment variables that code reads by a constant name."""
    found: set[str] = set()
    for node in ast.walk(tree):
        owner = name = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            owner, name = ast.unparse(node.value), node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            reads = {"get": "os.environ", "pop": "os.environ", "setdefault": "os.environ", "getenv": "os"}
            if reads.get(node.func.attr) == ast.unparse(node.func.value):
                owner, name = "os.environ", node.args[0]
        if owner == "os.environ" and isinstance(name, ast.Constant):
            found.add(str(name.value))
    return found


def test_every_environment_variable_that_is_read_is_listed_with_its_purpose():
    sources = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    read = {name: file for file in sources for name in environment_reads(ast.parse(file.read_text()))}
    assert {name: file for name, file in read.items() if name not in ENVIRONMENT} == {}
    assert [name for name, purpose in ENVIRONMENT.items() if len(purpose) < 10] == []


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    names = [canonicalize_name(name) for name, _ in pairs]
    assert names == sorted(set(names)), f"{file} is sorted and names each package once"
    return {canonicalize_name(name): version for name, version in pairs}


def installed_version(name: str) -> str:
    """The version in the environment's own folder: Ray, once imported, puts a psutil of its own before it."""
    (found,) = metadata.distributions(name=name, path=[sysconfig.get_path("purelib")])
    return found.version


def test_every_package_that_set_up_installs_is_pinned_at_the_installed_version():
    wanted, seen = [("chimera-lab", ("dev",))], set()
    while wanted:
        name, extras = wanted.pop()
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            marker = requirement.marker
            entry = (canonicalize_name(requirement.name), tuple(sorted(requirement.extras)))
            # Which build of torch is installed is the user's choice; a CUDA build pins its own libraries.
            if name == "torch" and entry[0].startswith(("nvidia-", "cuda-", "triton")):
                continue
            if entry not in seen and (marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras))):
                seen.add(entry)
                wanted.append(entry)
    installed = {name: installed_version(name).partition("+")[0] for name, _ in seen}
    assert {name: version for name, version in installed.items() if pins().get(name) != version} == {}


@pytest.mark.parametrize(("file", "extras"), [("constraints.txt", ["dev"]), ("constraints-gpu.txt", ["dev", "gpu"])])
def test_the_constraints_satisfy_the_declared_ranges(file: str, extras: list[str]):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(text for extra in extras for text in project["optional-dependencies"][extra]),
    ]
    pinned = pins(file)
    wanted = [Requirement(text) for text in declared]
    assert [str(item) for item in wanted if pinned[canonicalize_name(item.name)] not in item.specifier] == []


def test_the_gpu_set_differs_from_the_tested_one_only_where_vllm_demands_it():
    tested, gpu = pins(), pins("constraints-gpu.txt")
    changed = {name for name, version in tested.items() if gpu.get(name) != version}
    assert changed <= {"torch", "numpy", "llguidance", "setuptools"}


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("goal", "command"),
    [("train", "configs/review.yaml seed=1"), ("test", 'whole" seed=1'), ("test-all", "-m pytest seed=1")],
)
def test_train_and_test_set_up_first_and_pass_arguments_on(tmp_path: Path, goal: str, command: str):
    arguments = ["make", "-n", goal, "ARGS=seed=1", f"VENV={tmp_path}/venv"]
    plan = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    steps = [
        "-m venv",
        "install --quiet torch -c constraints.txt",
        "install --quiet -e '.[dev]' -c constraints.txt",
        command,
    ]
    positions = [plan.find(step) for step in steps]
    assert positions == sorted(positions)
    assert positions[0] >= 0


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
@pytest.mark.parametrize("plots", [{"tokens": "pays"}, {"tokens": "pays", "studies": "studies"}])
def test_a_report_s_pictures_of_whether_a_team_pays_become_those_of_the_docs(tmp_path: Path, plots: dict[str, str]):
    images, drawn = tmp_path / "images", tmp_path / "report" / "plots"
    drawn.mkdir(parents=True)
    images.mkdir()
    for name in plots:
        (drawn / f"{name}.png").write_text(name)
    arguments = ["make", "picture", f"REPORT={tmp_path}/report", f"IMAGES={images}"]
    subprocess.run(arguments, capture_output=True, cwd=ROOT, check=True)
    assert {file.stem: file.read_text() for file in images.iterdir()} == {new: name for name, new in plots.items()}


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
@pytest.mark.parametrize("version", [(3, 10), (3, 13)])
def test_an_unfit_python_is_refused_before_anything_is_made(tmp_path: Path, version: tuple[int, int]):
    fake = tmp_path / "python"
    code = f'import sys; sys.version_info = (*{version}, 0, "final", 0); exec(sys.argv[1])'
    fake.write_text(f"#!/bin/sh\nshift\nexec {sys.executable} -c '{code}' \"$@\"\n")
    fake.chmod(0o755)
    arguments = ["make", "setup", f"PYTHON={fake}", f"VENV={tmp_path}/venv"]
    answer = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=False)
    assert answer.returncode != 0
    assert f"needs Python 3.11 or 3.12, and {fake} is {version[0]}.{version[1]}" in answer.stderr
    assert not (tmp_path / "venv").exists()


def test_the_check_script_is_strict_and_executable():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail" in script.read_text()


def test_the_check_script_runs_every_check_of_the_makefile():
    run = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.M)
    assert run == ["setup", "lint", "types", "imports", "docs", "test-all"]


def test_hooks_before_a_commit_run_programs_of_the_environment_and_fetch_nothing():
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [one["repo"] for one in repos] == ["local"]
    programs = {hook["entry"].split()[0] for hook in repos[0]["hooks"]}
    assert {hook["language"] for hook in repos[0]["hooks"]} == {"system"}
    assert programs == {".venv/bin/ruff", ".venv/bin/pyright"}
    assert [name for name in programs if not Path(sys.executable).with_name(Path(name).name).exists()] == []


def test_the_licence_that_is_declared_is_the_one_that_lies_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "MIT"
    assert (ROOT / project["license-files"][0]).read_text().startswith("MIT License\n\nCopyright (c)")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def broken_contracts(folder: Path) -> list[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", answer.stdout)
    assert "Contracts:" in shown, shown + answer.stderr
    broken = re.findall(r"^(.*\S) BROKEN$", shown, re.M)
    assert bool(broken) == bool(answer.returncode)
    return broken


def test_the_import_rule_holds(copy: Path):
    assert broken_contracts(copy) == []


PLANTED = {
    "agents/planted.py": "import evaluation",
    "chimera/planted.py": "import agents.roles",
    "training/planted.py": "import chimera.config.command",
    "training/ppo/planted.py": "import training.ppo.loop",
    "evaluation/planted.py": "import agentlightning",
    "agents/tools/planted.py": "import torch.nn",
    "training/bench/planted.py": "from langgraph.graph import x",
    "evaluation/records/planted.py": "import evaluation.report",
    "chimera/core/planted.py": "import chimera.show",
}
"""For each contract, in their order, an import that breaks it."""


def test_a_planted_import_in_a_function_breaks_its_contract(copy: Path):
    for module, line in PLANTED.items():
        (copy / module).write_text(f"def late():\n    {line}\n")
    try:
        assert broken_contracts(copy) == [contract["name"] for contract in contracts()]
    finally:
        for module in PLANTED:
            (copy / module).unlink()


def contracts() -> list[dict[str, Any]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_every_command_that_imports_upwards_is_known_to_the_import_rule():
    protected = {name for contract in contracts() for name in contract.get("protected_modules", ())}
    entry_points = {module for module, _ in COMMANDS.values()} - {"chimera.data.tasks"}
    assert entry_points - protected == set()
    assert [module for module in protected if importlib.util.find_spec(module) is None] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_module_with_main(name: str):
    assert callable(importlib.import_module(COMMANDS[name][0]).main)
