"""The processes of vLLM slots: servers that a run starts, or that run already; their ends, logs and keys."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import httpx
import psutil
import pytest
from message_kit import refused
from vllm_kit import TABLE, add_adapter, write_python

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ModelError, RunError
from chimera.processes.programs import Program
from chimera.serving.process import serve
from chimera.serving.vllm.probe import learner_log_probs, probe_tokens
from chimera.serving.vllm.replicas import Replica, wait_for

pytestmark = pytest.mark.whole


def vllm(folder, **settings):
    return ModelConfig.model_validate({"kind": "vllm", "path": str(folder), "max_tokens": 30, **settings})


@pytest.fixture(scope="module")
def folders(serving_model, tmp_path_factory):
    """Two models with what a scripted server computes with them: the learner's own numbers."""
    found = []
    for number in range(2):
        folder = shutil.copytree(serving_model(seed=number), tmp_path_factory.mktemp("model") / f"model-{number}")
        (folder / TABLE).write_text(json.dumps(learner_log_probs(folder, probe_tokens(folder), "float32")))
        found.append(folder)
    return found


@pytest.fixture(scope="module")
def running(folders, tmp_path_factory):
    """Two slots that share a server, and one that learns and has two."""
    folder = tmp_path_factory.mktemp("vllm")
    own = vllm(folders[0], python=write_python(folder))
    models = {
        "junior": own,
        "supervisor": own,
        "senior": own.model_copy(update={"replicas": 2, "adapter_rank": 4}),
        "judge": ModelConfig(kind="rubric"),
    }
    logs, warnings = folder / "logs", SimpleQueue()
    with serve(
        models, ServingConfig(), {}, log_file=logs / "models.log", learning={"senior"}, on_warning=warnings.put
    ) as servers:
        yield SimpleNamespace(servers=servers, logs=logs, folders=folders, warnings=warnings)


def ask(running, slot, **fields):
    endpoint = running.servers.endpoints[slot]
    body = {"model": slot, "messages": [{"role": "user", "content": "q"}], "return_token_ids": True, **fields}
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.post(f"{endpoint.base_url}/chat/completions", json=body, headers=headers, timeout=None)


def wait_until_gone(process):
    """One that nobody reaps counts as ended."""
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            threading.Event().wait(0.05)


def check_until_it_raises(servers):
    while True:  # The system tells the end of a process when its last thread has ended.
        servers.check()
        threading.Event().wait(0.05)


def engines(pid):
    return [
        one for one in psutil.Process(pid).children(recursive=True) if "vllm.entrypoints" in " ".join(one.cmdline())
    ]


def socket_of(engine):
    command = engine.cmdline()
    return Path(command[command.index("--uds") + 1])


def front_of(running):
    return next(one.pid for key, one in running.servers._servers.items() if key == "senior")


def test_each_answer_names_its_weights_and_has_its_token_ids_also_after_a_publish(running):
    assert running.servers.versions() == {
        "junior": "model-0@0",
        "supervisor": "model-0@0",
        "senior": "model-0@0",
        "judge": "rubric",
    }
    running.servers.load_weights("senior", running.folders[1], version="senior@1")
    answer = ask(running, "senior").json()
    assert (answer["model"], answer["weights_version"]) == ("senior", "senior@1")
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == ([1], [7, 8])
    assert ask(running, "junior").json()["weights_version"] == "model-0@0"
    (line,) = (running.logs / "vllm-publishes.jsonl").read_text().splitlines()
    noted = json.loads(line)
    assert (noted["slot"], noted["version"]) == ("senior", "senior@1")
    assert max(noted["apart"]) < 1e-6
    running.servers.load_weights("senior", running.folders[0], version="model-0@0")
    assert running.servers.versions()["senior"] == "model-0@0"


def test_what_cannot_be_published_is_refused_and_the_weights_stay(running, tmp_path):
    with refused(ModelError, "junior", "supervisor", lines=None):
        running.servers.load_weights("junior", running.folders[1], version="junior@1")
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        running.servers.load_weights("senior", tmp_path, version="senior@2")
    with refused(ModelError, "no candidate", lines=None):
        running.servers.add_candidate("senior", running.folders[1], "senior@2")
    assert running.servers.versions()["senior"] == "model-0@0"


def test_only_this_user_reaches_the_servers_and_only_by_their_sockets(running):
    started = engines(front_of(running))
    assert len(started) == 3
    for engine in started:
        assert engine.net_connections(kind="tcp") == []
        assert socket_of(engine).parent.stat().st_mode & 0o777 == 0o700
    endpoint = running.servers.endpoints["senior"]
    assert httpx.post(f"{endpoint.base_url}/chat/completions", json={}).status_code == 401


def test_each_server_has_a_log_and_no_key_is_in_one(running):
    logs = sorted(file.name for file in running.logs.glob("*.log"))
    assert logs == ["models.log", "vllm-junior-1.log", "vllm-senior-1.log", "vllm-senior-2.log", "vllm.log"]
    told = "".join(file.read_text() for file in running.logs.glob("*.log"))
    assert told.count("serving ") == 3
    engine = engines(front_of(running))[0]
    for key in (engine.environ()["VLLM_API_KEY"], running.servers.endpoints["senior"].api_key):
        assert key not in told
        assert key not in " ".join(engine.cmdline())


def test_servers_that_end_are_started_again_and_have_the_live_weights_before_they_answer(running, tmp_path):
    """One is killed before an answer of an adapter, and one ends in a publish, which is then made again."""
    adapted = shutil.copytree(running.folders[0], tmp_path / "adapted")
    add_adapter(adapted, running.folders[0], 0.0)

    def said(number):
        answers = [ask(running, "senior").json() for _ in range(3)]
        table = json.loads((running.folders[number] / TABLE).read_text())
        assert {answer["choices"][0]["message"]["content"] for answer in answers} == {str(table[0])}
        return {answer["weights_version"] for answer in answers}

    running.servers.load_weights("senior", adapted, version="senior@1")
    first, _ = (one for one in engines(front_of(running)) if "senior-" in socket_of(one).name)
    first.kill()
    assert said(0) == {"senior@1"}
    socket_of(engines(front_of(running))[0]).with_name("end").touch()
    running.servers.load_weights("senior", running.folders[1], version="senior@2")
    assert said(1) == {"senior@2"}
    noted = [json.loads(line) for line in (running.logs / "vllm-publishes.jsonl").read_text().splitlines()]
    assert [one["version"] for one in noted if "load" in one["seconds"]] == ["senior@1"]
    restarts = [one for one in noted if "restarted" in one]
    assert [one["version"] for one in restarts] == ["senior@1", "senior@1"]
    assert "was killed by SIGKILL" in restarts[0]["restarted"]
    assert "ended with exit code 3" in restarts[1]["restarted"]
    assert max(max(one["apart"]) for one in noted) < 1e-6
    told = [running.warnings.get(), running.warnings.get()]
    ended = [r"was killed by SIGKILL", r"ended with exit code 3: .*"]
    for number, (sentence, how) in enumerate(zip(told, ended, strict=True), 1):
        log = rf"{re.escape(str(running.logs))}/vllm-senior-[12]\.log"
        pattern = rf"vLLM server [12] of senior \(process \d+\) {how}; restart {number} of 3 \(see {log}\)"
        assert re.fullmatch(pattern, sentence), sentence
    assert running.warnings.empty()


def test_a_server_that_does_not_start_is_an_error_with_its_own_words(tmp_path):
    program = Program("vLLM server 1 of senior", [write_python(tmp_path, "broken")], tmp_path / "log", dict(os.environ))
    server = Replica(program.name, "http://x", "", tmp_path / "socket", program)
    with refused(ModelError, "server 1", "senior", "exit code 1", "no CPU", lines=None):
        asyncio.run(wait_for(server, time.monotonic() + 3600))


def test_a_server_that_does_not_answer_in_time_is_an_error_that_names_the_limit():
    server = Replica("the vLLM server of senior at http://127.0.0.1:9", "http://127.0.0.1:9", "")
    with refused(ModelError, "127.0.0.1:9", "models.*.start_timeout_s", lines=None):
        asyncio.run(wait_for(server, time.monotonic()))


STARTS = """
    import os, sys, time
    from pathlib import Path
    from chimera.processes.programs import Program

    print(Program("sleep", ["/bin/sleep", "3600"], Path(sys.argv[1]), dict(os.environ)).pid, flush=True)
    time.sleep(3600)
"""


def test_a_program_ends_when_its_parent_is_killed(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(STARTS), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        program = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until_gone(program)


def test_when_servers_have_ended_too_often_all_end_and_the_run_says_which(running):
    """Two have ended before; this is the last that is started again, and one more."""
    front = psutil.Process(front_of(running))
    first, second, other = engines(front.pid)
    for process in (first, second):
        process.kill()
    for process in (other, front):
        wait_until_gone(process)
    with refused(RunError, "vLLM server", "SIGKILL", "3 restarts", lines=None):
        check_until_it_raises(running.servers)
