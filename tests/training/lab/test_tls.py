"""Store and gateway speak HTTPS (`cluster.tls`), with the files that the documentation's own commands make."""

import asyncio
import os
import re
import ssl
import subprocess
import sys
from dataclasses import replace

import aiohttp
import httpx
import pytest
from lab_kit import AllAtOnce, collect, config_for, open_lab, task
from tls_kit import LACKING, made_files

from chimera.config.sections.cluster import TlsConfig
from chimera.config.tree import load_config
from chimera.core.errors import ConfigError, UnreachableError
from chimera.core.ports import free_port
from chimera.serving.client import HttpModel
from chimera.serving.tls import check_tls, client_context
from training.lab.runners import visitors
from training.lab.store import KeyedStoreClient

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(LACKING, reason="there is no openssl command, which makes the files"),
]

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return made_files(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return made_files(tmp_path_factory.mktemp("tls") / "other")


def secured(url, folder, files, **changes):
    config = config_for(url, folder, runners=1)
    cluster = {"key_file": folder / "key", "store_port": free_port(), "gateway_port": free_port(), "tls": files}
    return config.model_copy(update={"cluster": config.cluster.model_copy(update=cluster), **changes})


def store_of(config):
    return f"https://{HOST}:{config.cluster.store_port}"


async def command(config, store, *arguments):
    key = str(config.cluster.key_file)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "chimera.runner", "--store", store, "--key-file", key, *arguments,
        env={**os.environ, "PYTHONPATH": os.getcwd()}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_the_run_s_runner_and_one_by_hand_work_over_tls_with_several_gateways(scripted_openai, tmp_path, files):
    scripted_openai.hooks.clear()
    tasks = [task("alpha"), task("beta")]
    config = secured(scripted_openai.url, tmp_path, files)
    config = config.model_copy(update={"gateway": config.gateway.model_copy(update={"processes": 2})})
    store = store_of(config)
    async with open_lab(scripted_openai.url, tmp_path, tasks, config=config) as lab:
        assert (lab.store.endpoint, lab.gateway.url) == (store, f"https://{HOST}:{config.cluster.gateway_port}")
        visitor = await command(config, store, "--authority", str(files.authority))
        assert (await visitor.stderr.readline()).decode() == f"Worker-1000000 works for the run at {store}\n"
        first = AllAtOnce(scripted_openai, ["alpha", "beta"])
        collecting = asyncio.create_task(collect(lab, tasks))
        await first.together.wait()
        first.go.set()
        records = await collecting
        workers = [(await lab.store.get_latest_attempt(one.rollout_id)).worker_id for one in records.values()]
    assert sorted(workers) == ["Worker-0", "Worker-1000000"]
    assert {(one.status, one.untraced_calls) for one in records.values()} == {("succeeded", 0)}
    assert await visitor.wait() == 0
    assert (await visitor.stderr.read()).decode().splitlines()[-1] == "the run has ended"


async def test_a_run_on_a_ray_cluster_says_what_its_tls_does_not_cover(scripted_openai, tmp_path, files):
    config = secured(scripted_openai.url, tmp_path, files)
    config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"address": "127.0.0.1:6379"})})
    async with open_lab(scripted_openai.url, tmp_path, [task("alpha")], config=config) as lab:
        view = lab.run.path / "view.txt"
    assert "warning: cluster.tls covers store and gateway only: Ray's own messages" in view.read_text()


async def test_who_does_not_trust_the_authority_is_told_so_and_plain_http_gets_nothing(
    scripted_openai, tmp_path, files, others
):
    config = secured(scripted_openai.url, tmp_path, files)
    store, key = store_of(config), config.cluster.key_file
    async with open_lab(scripted_openai.url, tmp_path, [task("alpha")], config=config) as lab:
        refused = await command(config, store)
        _, said = await refused.communicate()
        assert refused.returncode not in (0, None)
        (line,) = said.decode().splitlines()
        assert re.fullmatch(
            rf"error: the certificate of {store} is not trusted \(.*\): copy .* with --authority FILE", line
        )
        with pytest.raises(UnreachableError, match="is not trusted"):
            await asyncio.to_thread(visitors.visit, store, key, str(others.authority))
        with pytest.raises(UnreachableError, match=r"no run answers at http://.*does it speak https"):
            await asyncio.to_thread(visitors.visit, store.replace("https", "http"), key)
        trusts = ssl.create_default_context(cafile=files.authority)
        async with httpx.AsyncClient(trust_env=False, verify=trusts) as client:
            for url in (lab.store.endpoint, lab.gateway.url):
                assert (await client.get(f"{url}/v1/agl/health")).status_code == 401
                with pytest.raises(httpx.TransportError):
                    await client.get(f"{url.replace('https', 'http')}/v1/agl/health")
        model = HttpModel(
            {"junior": lab.servers.endpoints["junior"]}, max_retries=0, tls=client_context(others.authority)
        )
        model.route({"junior": replace(model.endpoints["junior"], base_url=f"{lab.gateway.url}/v1")})
        client = KeyedStoreClient(store, lab.store.key, str(others.authority))
        with pytest.raises(UnreachableError, match="cannot be reached"):
            await model.complete("junior", [{"role": "user", "content": "q"}])
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await client.dequeue_rollout("Worker-0")
        await asyncio.gather(model.aclose(), client.close())
        with pytest.raises(ConfigError, match=r"--authority=.*none cannot be read \(No such file"):
            await asyncio.to_thread(visitors.visit, store, key, str(tmp_path / "none"))


def test_files_that_fit_are_accepted_and_others_are_one_sentence(files, others, tmp_path):
    check_tls(TlsConfig(), "10.0.0.1")
    for host in (HOST, "10.0.0.1"):
        check_tls(files, host)
    wrong, none = tmp_path / "wrong.pem", tmp_path / "none"
    wrong.write_text("no certificate\n")
    locked = tmp_path / "locked.key"
    lock = ["openssl", "pkey", "-in", str(files.key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True)
    for changes, message in [
        (
            {"key": others.key},
            r"cluster\.tls\.key=.* does not belong to cluster\.tls\.certificate=.*: name its own key",
        ),
        ({"key": none}, r"cluster\.tls\.key=.*none cannot be read \(No such file or directory\): name the file"),
        ({"certificate": none}, r"cluster\.tls\.certificate=.*none cannot be read \(No such file"),
        ({"authority": none}, r"cluster\.tls\.authority=.*none cannot be read \(No such file"),
        ({"certificate": tmp_path}, r"cannot be read \(Is a directory\)"),
        ({"certificate": wrong}, r"are no certificate and key in PEM without a password"),
        ({"key": locked}, r"are no certificate and key in PEM without a password"),
        ({"authority": wrong}, r"cluster\.tls\.authority=.*wrong\.pem holds no certificate in PEM"),
        ({"authority": others.authority}, r"clients that trust cluster\.tls\.authority=.* would refuse"),
        ({"authority": None}, r"clients that trust this system's authorities would refuse"),
    ]:
        with pytest.raises(ConfigError, match=message) as raised:
            check_tls(files.model_copy(update=changes), HOST)
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"at cluster\.host=10\.0\.0\.2 \(.*10\.0\.0\.2.*\): make a certificate"):
        check_tls(files, "10.0.0.2")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.tls.certificate=c"], r"tls\.certificate is set without tls\.key: set cluster\.tls\.key=FILE too"),
        (["cluster.tls.key=k"], r"tls\.key is set without tls\.certificate"),
        (
            ["cluster.tls.authority=a"],
            r"cluster\.tls\.authority .* has no effect because cluster\.tls\.certificate is null",
        ),
        (
            ["cluster.tls.certificate=c", "cluster.tls.key=k", "gateway.engine=litellm"],
            r"gateway\.engine=litellm, which speaks plain HTTP only: set gateway\.engine=thin",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def test_a_training_run_checks_its_files_before_it_starts(files, others):
    command = [sys.executable, "-m", "chimera.train", "--check", f"cluster.tls.certificate={files.certificate}"]
    for key, code in ((others.key, 2), (files.key, 0)):
        settings = [f"cluster.tls.key={key}", f"cluster.tls.authority={files.authority}"]
        done = subprocess.run([*command, *settings], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert ("does not belong to" in done.stderr) == bool(code)
