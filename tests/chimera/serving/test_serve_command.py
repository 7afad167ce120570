"""`python -m chimera serve`: what it serves, who may ask, how it ends, and what it refuses."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import openai
import pytest
import yaml
from message_kit import refused

from chimera.core.errors import ChimeraError, ConfigError, RunError
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE, Policy
from chimera.run.seals import seal
from chimera.serving.command import main
from training.configuration import load_config
from training.model.weights import copy_model

QUESTION = [{"role": "user", "content": "the rate?"}]
KEY = "a-key-of-this-test"


@pytest.fixture
def trained(tmp_path, serving_model):
    """A run whose juniors have learned."""
    settings = [f"models.junior.path={serving_model(seed=0)}", f"runs_dir={tmp_path}", "serving.context_length=300"]
    with Run.create("mine", load_config(None, settings)) as run:
        policy = Policy.made("weights", "junior", "sft")
        copy_model(serving_model(seed=1), run.path / policy.folder)
        run.ledger(WENT_LIVE, phase="sft", policy=policy.dump(), artifacts=[policy.folder])
        seal(run)
    return run


@contextmanager
def serving(*arguments, key=None):
    """The command's address, its key and its output up to the examples; it is interrupted at the end."""
    environment = {name: value for name, value in os.environ.items() if name != "CHIMERA_API_KEY"}
    environment |= {"CHIMERA_API_KEY": key} if key else {}
    command = [sys.executable, "-m", "chimera", "serve", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as server:
        lines = []
        while not lines or not lines[-1].startswith("print(ChatOpenAI("):
            lines.append(server.stdout.readline())
            assert lines[-1], server.stderr.read()
        shown = "".join(lines)
        url = re.match(r"http://127\.0\.0\.1:\d+/v1", shown)[0]
        yield openai.OpenAI(base_url=url, api_key=key or re.search(r"^key: (\S+)$", shown, re.M)[1]), shown
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate()
    assert (server.returncode, errors) == (0, "")


def answer(client, model, **fields):
    return client.chat.completions.create(model=model, messages=QUESTION, max_tokens=8, seed=1, **fields)


@pytest.mark.whole
def test_a_run_is_served_with_what_it_has_learned_until_ctrl_c(trained):
    with serving(trained.path, "serving.processes=1") as (client, _):
        names = [model.id for model in client.models.list()]
        assert names[0] == "junior"
        assert {"supervisor", "refiner"} <= set(names)
        learned, base = answer(client, "junior"), answer(client, "refiner")
        assert learned.choices[0].message.content != base.choices[0].message.content
        assert client.models.retrieve("junior").max_model_len == 300
        stream = answer(client, "junior", stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == learned.choices[0].message.content
        with pytest.raises(openai.AuthenticationError):
            answer(client.with_options(api_key="another"), "junior")


@pytest.mark.whole
def test_a_folder_is_served_under_its_name_and_the_example_works_as_pasted(serving_model):
    folder = serving_model(seed=0)
    with serving("--model", folder, key=KEY) as (client, shown):
        assert [model.id for model in client.models.list()] == [folder.name]
        assert KEY not in shown
        example = shown[shown.index("import os") : shown.index("# LangChain")]
        pasted = subprocess.run(
            [sys.executable, "-c", example],
            env={**os.environ, "CHIMERA_API_KEY": KEY},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (pasted.returncode, pasted.stderr) == (0, "")


def test_wrong_arguments_are_told_with_what_is_right(trained, monkeypatch):
    run = str(trained.path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases: dict[tuple[str, ...], tuple[type[ChimeraError], tuple[str, ...]]] = {
            (run, "--slot", "juniro"): (ConfigError, ("--slot juniro", "'mine'", "'junior'")),
            (run, "--slot", "board"): (ConfigError, ("--slot board", "junior, ")),
            (run, "--model", "nano"): (ConfigError, ("--model", "leave")),
            ("--slot", "junior"): (ConfigError, ("--slot junior", "name the run")),
            ("nobody", f"runs_dir={trained.path.parent}"): (RunError, ("'nobody'", "mine")),
            (run, "models.junior.path=nano"): (ConfigError, ("models.junior.path", "no effect")),
            ("--model", "/nowhere"): (ConfigError, ("/nowhere", "config.json")),
            ("gather.tasks=3",): (ConfigError, ("gather.tasks", "no effect")),
            (
                "models.junior.kind=endpoint",
                f"models.junior.base_url=http://127.0.0.1:{port}",
                "models.junior.model=m",
            ): (ConfigError, ("models.junior", "endpoint", "--model")),
            ("--port", port): (ConfigError, (f"--port {port}", "name another")),
            ("--port", "99999"): (ConfigError, ("--port 99999",)),
        }
        for arguments, (error, words) in cases.items():
            with refused(error, *words):
                main(list(arguments))
    monkeypatch.setenv("CHIMERA_API_KEY", "with a blank")
    with refused(ConfigError, "CHIMERA_API_KEY", "blanks"):
        main([])


def test_weights_that_are_not_the_runs_own_are_refused(trained):
    file = trained.path / "models" / "junior" / "sft" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with refused(RunError, str(file), "hash"):
        main([str(trained.path)])


def test_nothing_that_a_run_names_is_imported_or_started(trained, tmp_path, monkeypatch):
    """Slots of vLLM are served by the embedded server, so their program is not needed either."""
    (tmp_path / "payload.py").write_text("open('executed', 'w')")
    (tmp_path / "payload.sh").write_text("#!/bin/sh\ntouch executed")
    (tmp_path / "payload.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    settings = yaml.safe_load(trained.config_file.read_text())
    settings["models"]["senior"] = {"kind": "vllm", "path": "nano", "python": str(tmp_path / "payload.sh")}
    settings["roles"]["Geneticist"]["tools"] = ["payload:evil"]
    settings["pipeline"]["mine"] = {"algorithm": "payload:Evil"}
    trained.config_file.write_text(yaml.safe_dump(settings, sort_keys=False))
    with socket.create_server(("127.0.0.1", 0)) as taken, refused(ConfigError, "--port"):
        main([str(trained.path), "--slot", "senior", "--port", str(taken.getsockname()[1])])
    assert not (tmp_path / "executed").exists()


def test_the_servers_own_module_names_the_command():
    ended = subprocess.run(
        [sys.executable, "-m", "chimera.serving.embedded"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "python -m chimera serve" in ended.stderr
