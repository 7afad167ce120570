"""Runners that a user starts by hand: they join a run that is under way, with its key, and leave when it ends."""

import asyncio
import json
import os
import signal
import stat
import sys

import pytest
from lab_kit import CONCLUSION, PATIENCE, SECRET, AllAtOnce, collect, config_for, open_lab, task

from chimera.core.errors import ConfigError, RunError, UnreachableError
from chimera.core.ports import free_port, listen
from chimera.data.tasks import Dataset
from training.lab.runners import visitors
from training.lab.runners.runner import Doors, RunnerSpec

pytestmark = pytest.mark.whole

VISITOR = "Worker-1000000"


def visiting(config, folder):
    cluster = {"key_file": folder / "key", "store_port": free_port(), "gateway_port": free_port()}
    return config.model_copy(update={"cluster": config.cluster.model_copy(update=cluster)})


async def start_visitor(config):
    """The command, once it works for the run."""
    cluster = config.cluster
    command = ["-m", "chimera.runner", "--store", f"http://127.0.0.1:{cluster.store_port}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--key-file", str(cluster.key_file),
        env={**os.environ, "PYTHONPATH": os.getcwd()}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    line = (await process.stderr.readline()).decode()
    assert line == f"{VISITOR} works for the run at http://127.0.0.1:{cluster.store_port}\n"
    return process


async def test_a_visitor_works_beside_the_run_s_own_runner_and_leaves_when_it_ends(scripted_openai, tmp_path):
    scripted_openai.hooks.clear()
    tasks = [task("alpha"), task("beta")]
    config = visiting(config_for(scripted_openai.url, tmp_path, runners=1), tmp_path)
    async with open_lab(scripted_openai.url, tmp_path, tasks, config=config) as lab:
        visitor = await start_visitor(config)
        first = AllAtOnce(scripted_openai, ["alpha", "beta"])
        collecting = asyncio.create_task(collect(lab, tasks))
        await first.together.wait()
        first.go.set()
        records = await collecting
        attempts = [await lab.store.get_latest_attempt(one.rollout_id) for one in records.values()]
        run = lab.run.path
    assert sorted(one.worker_id for one in attempts) == ["Worker-0", VISITOR]
    assert {one.status for one in records.values()} == {"succeeded"}
    assert len({one.reward for one in records.values()}) == 1
    assert len({len(one.parts) for one in records.values()}) == 1
    assert await visitor.wait() == 0
    assert (await visitor.stderr.read()).decode().splitlines()[-1] == "the run has ended"
    key = config.cluster.key_file
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    kept = b"".join(file.read_bytes() for file in run.rglob("*") if file.is_file())
    assert not any(secret.encode() in kept for secret in (key.read_text().strip(), *visitors.keys_of(key)))


async def test_a_visitor_that_is_killed_loses_no_rollout(scripted_openai, tmp_path, monkeypatch):
    """After the time in which it has made no call, its rollout goes to another runner."""
    monkeypatch.setattr("training.lab.lab.SILENCE_SECONDS", 5.0 - PATIENCE)
    scripted_openai.hooks.clear()
    tasks = [task("alpha"), task("beta")]
    config = visiting(config_for(scripted_openai.url, tmp_path, runners=1, max_attempts=50), tmp_path)
    async with open_lab(scripted_openai.url, tmp_path, tasks, config=config) as lab:
        visitor = await start_visitor(config)
        first = AllAtOnce(scripted_openai, ["alpha", "beta"])
        collecting = asyncio.create_task(collect(lab, tasks))
        await first.together.wait()
        visitor.send_signal(signal.SIGKILL)
        await visitor.wait()
        first.go.set()
        records = await collecting
        workers = [(await lab.store.get_latest_attempt(one.rollout_id)).worker_id for one in records.values()]
    assert visitor.returncode == -signal.SIGKILL
    assert {one.status for one in records.values()} == {"succeeded"}
    assert VISITOR not in workers


def test_what_a_visitor_is_told_is_json_without_secrets_and_conclusions(tmp_path):
    config = config_for("http://127.0.0.1:1/v1", tmp_path)
    dataset = Dataset((task("alpha"), task("beta")), (), (), "generated", "test")
    doors = Doors("http://store", "http://gateway", "store-key", "gateway-key")
    spec = RunnerSpec.of(doors, config, dataset, {"TAVILY_API_KEY": SECRET})
    text = json.dumps(visitors.plain_spec(spec))
    assert not any(hidden in text for hidden in (SECRET, CONCLUSION, "store-key", "gateway-key", str(tmp_path)))
    again = visitors.read_spec(json.loads(text), doors, spec.secrets)
    assert (again.documents, again.conclusions, again.secrets) == (spec.documents, spec.conclusions, spec.secrets)
    kept = {"pipeline": config.pipeline, "runs_dir": config.runs_dir}
    assert again.config.model_copy(update=kept) == config
    with pytest.raises(ValueError, match="documents"):
        visitors.read_spec({"config": {}}, doors, {})


def test_a_key_is_made_once_and_must_be_secret(tmp_path):
    file = tmp_path / "key"
    visitors.make_key(file)
    keys = visitors.keys_of(file)
    visitors.make_key(file)
    assert visitors.keys_of(file) == keys
    assert len({*keys, file.read_text().strip()}) == 3
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"other users can read the key file .*: run chmod 600"):
        visitors.keys_of(file)
    file.write_text("short\n")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="fewer than 16 characters"):
        visitors.keys_of(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        visitors.keys_of(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be made"):
        visitors.make_key(tmp_path / "none" / "key")


async def test_whoever_has_no_key_or_no_run_is_told_so(scripted_openai, tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    for file in (own, other):
        visitors.make_key(file)
    config = visiting(config_for(scripted_openai.url, tmp_path, runners=1), tmp_path)
    async with open_lab(scripted_openai.url, tmp_path, [task("alpha")], config=config):
        url = f"http://127.0.0.1:{config.cluster.store_port}"
        with pytest.raises(RunError, match="does not know the key"):
            await asyncio.to_thread(visitors.visit, url, other)
    with pytest.raises(UnreachableError, match=r"no run answers at .*is the tunnel open\?"):
        await asyncio.to_thread(visitors.visit, url, own)
    with listen() as taken, pytest.raises(RunError, match=r"cluster\.store_port=\d+ cannot be opened"):
        visitors.check_port(taken.getsockname()[1], "cluster.store_port")
