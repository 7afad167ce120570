"""`python -m chimera view`: its first line, its server, its end, and who writes a run."""

import signal
import socket
import subprocess
import sys

import httpx
import pytest
from message_kit import refused
from view_kit import make_runs, rollout

from chimera import view
from chimera.core.errors import ConfigError
from chimera.run.directory import Run
from chimera.run.owner import Owner, owner

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return make_runs(tmp_path_factory.mktemp("runs"))


def test_the_command_serves_tells_changes_and_ends_at_once_when_it_is_interrupted(runs):
    command = [sys.executable, "-m", "chimera", "view", f"runs_dir={runs}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address, hint = server.stdout.readline().strip(), server.stdout.readline().strip()
        base, _, key = address.partition("/?key=")
        assert len(key) >= 32
        assert base.startswith("http://127.0.0.1:")
        assert str(runs) in hint
        with httpx.Client(base_url=base, timeout=3600) as client:
            assert client.get("/").status_code == 401
            assert client.get(address, follow_redirects=True).status_code == 200
            assert "key" not in str(client.get("/").url)
            with client.stream("GET", "/events?run=second") as events:
                lines = (line for line in events.iter_lines() if line.startswith("data:"))
                first = next(lines)
                assert first.removeprefix("data:").strip() in client.get("/runs/second").text
                with Run(runs / "second").own() as run:
                    run.append_rollout(rollout(99, "gather", "t-99").dump(), phase="gather")
                assert next(lines) != first
                server.send_signal(signal.SIGINT)
                _, errors = server.communicate()
        assert (server.returncode, errors) == (0, "")


def test_a_port_that_is_taken_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with refused(ConfigError, f"--port {taken.getsockname()[1]}", "name another"):
            view.main(["--port", str(taken.getsockname()[1])])
    with refused(ConfigError, "--port 99999"):
        view.main(["--port", "99999"])
    with refused(ConfigError, "seed", "no effect"):
        view.main(["seed=3"])


def test_the_process_that_writes_a_run_is_known_while_it_writes(tmp_path):
    run = tmp_path / "mine"
    code = (
        "import sys\nfrom pathlib import Path\nfrom chimera.config.tree import Config\n"
        "from chimera.run.directory import Run\n"
        "with Run.create('mine', Config(runs_dir=Path(sys.argv[1]))):\n    print('owned', flush=True)\n    input()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert owner(run) is None
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "owned\n"
        assert owner(run) == Owner(writer.pid)
        assert owner(run) == Owner(writer.pid), "looking does not take the lock"
        writer.kill()
        writer.wait()
    assert owner(run) is None
