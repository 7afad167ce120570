"""Servers that a run starts and sends weights to: they load the receiver by its name; one dies while it receives."""

import json
import shutil
from pathlib import Path
from queue import SimpleQueue

import httpx
import psutil
import pytest
import transfer_kit
from vllm_kit import write_python

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.serving.process import serve
from chimera.serving.vllm.probe import learner_log_probs, probe_tokens

pytestmark = pytest.mark.whole


def said(servers):
    """What several answers say, which both servers give, with their versions."""
    endpoint = servers.endpoints["senior"]
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    body = {"model": "senior", "messages": [{"role": "user", "content": "q"}]}
    answers = [
        httpx.post(f"{endpoint.base_url}/chat/completions", json=body, headers=headers, timeout=None).json()
        for _ in range(4)
    ]
    return {(answer["choices"][0]["message"]["content"], answer["weights_version"]) for answer in answers}


def test_weights_are_sent_to_servers_and_again_when_one_dies_while_it_receives(serving_model, tmp_path):
    base, new = (shutil.copytree(serving_model(seed=seed, tied=True), tmp_path / str(seed)) for seed in range(2))
    tables = {folder: learner_log_probs(folder, probe_tokens(folder), "float32") for folder in (base, new)}
    transfer_kit.write_tables(tables)
    python = write_python(tmp_path, kit=transfer_kit.__file__)
    given = {"kind": "vllm", "path": str(base), "python": python, "replicas": 2, "transfer": "gloo"}
    models, warnings = {"senior": ModelConfig.model_validate(given)}, SimpleQueue()
    logs = tmp_path / "logs"
    with serve(
        models, ServingConfig(), {}, log_file=logs / "models.log", learning={"senior"}, on_warning=warnings.put
    ) as servers:
        servers.load_weights("senior", new, version="senior@1")
        assert said(servers) == {(str(tables[new][0]), "senior@1")}
        commands = [" ".join(one.cmdline()) for one in psutil.Process().children(recursive=True)]
        socket = next(command for command in commands if "--uds" in command).partition("--uds ")[2].split()[0]
        Path(socket).with_name("end").touch()
        servers.load_weights("senior", base, version="senior@2")
        assert said(servers) == {(str(tables[base][0]), "senior@2")}
    noted = [json.loads(line) for line in (logs / "vllm-publishes.jsonl").read_text().splitlines()]
    assert [(one["version"], one.get("transfer")) for one in noted] == [
        ("senior@1", "gloo"),
        ("senior@1", None),
        ("senior@2", "gloo"),
    ]
    assert max(max(one["apart"]) for one in noted) < 1e-5
    assert "ended with exit code 3" in noted[1]["restarted"]
    assert "restart 1 of 3" in warnings.get()
    assert warnings.empty()
