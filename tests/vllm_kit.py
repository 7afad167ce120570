"""A scripted vLLM server: it speaks the routes of vLLM 0.32 that this project uses, and writes down what it was asked.

As a program it takes vLLM's own command line, so `write_python` makes what stands for the Python of vLLM's environment.
What it "computes" lies beside the weights in log_probs.json, so it tells which weights it has truly loaded.
"""

import asyncio
import json
import os
import shutil
import sys
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from itertools import pairwise
from pathlib import Path

import uvicorn

TABLE = "log_probs.json"
ADAPTERS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


class Refused(Exception):
    """An answer with another status than 200."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


async def until(changed, true):
    """Return when `true()`; `changed` is set whenever it may have become so."""
    while not true():
        changed.clear()
        await changed.wait()


class ScriptedVllm:
    """The server's state. Set `stuck` and it forgets to reload; set `refuses` to a route and that route fails.

    When the file `order` exists, the next server that is told to reload removes it and ends.
    """

    def __init__(self, folder, name="weights", device="cpu", changed=None):
        self.changed = changed or asyncio.Event()
        self._take(folder)
        self.name, self.device = name, device
        self.asked = []
        self.stuck, self.refuses = False, None
        self.paused, self.asleep = False, False
        self.running = 0
        self.hold = None
        self.order = None
        self.takes_adapters, self.adapters, self.most_adapters = True, {}, 0

    async def __call__(self, scope, receive, send):
        """Serve one request, as an ASGI application."""
        query = scope["query_string"].decode()
        path = scope["path"] + (f"?{query}" if query else "")
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        asked, key = json.loads(body) if body else None, dict(scope["headers"]).get(b"authorization", b"").decode()
        self.asked.append((path, asked, key))
        try:
            if self.refuses == scope["path"]:
                raise Refused(500, "scripted refusal")
            status, answer = 200, await self._answer(scope["path"], asked)
        except Refused as refused:
            status, answer = refused.status, {"error": {"message": str(refused)}}
        # As in vLLM, adapters are answered by a sentence that is no JSON.
        text = "Success" if status == 200 and scope["path"] in ADAPTERS else json.dumps(answer)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})

    async def _answer(self, path, asked):
        match path:
            case "/v1/models":
                return {"data": [{"id": self.name}]}
            case "/server_info":
                return {"vllm_config": {"device_config": {"device": self.device}}}
            case "/pause":
                self.paused = True
                self.changed.set()
                await until(self.changed, lambda: not self.running)
            case "/resume":
                self.paused = False
            case "/sleep":
                assert not self.running, "a server that sleeps can end no answer"
                self.asleep = True
                self.changed.set()
            case "/wake_up":
                self.asleep = False
            case "/collective_rpc":
                if asked["method"] != "reload_weights":
                    raise Refused(500, f"Method {asked['method']!r} is not implemented.")
                assert self.paused, "weights may change only in a pause"
                assert not self.running, "an answer would be by old and new weights"
                if self.order is not None and self.order.exists():
                    self.order.unlink()
                    os._exit(3)
                if not self.stuck:
                    self._take(asked["kwargs"]["weights_path"])
            case "/v1/completions":
                table = zip(asked["prompt"][1:], self._table(asked["model"]), strict=False)
                told = [None, *({str(token): {"logprob": value}} for token, value in table)]
                return {"choices": [{"prompt_logprobs": told}]}
            case "/v1/chat/completions":
                return await self._chat(asked)
            case "/v1/load_lora_adapter" if self.takes_adapters:
                self._load(asked["lora_name"], Path(asked["lora_path"]))
            case "/v1/unload_lora_adapter" if self.takes_adapters:
                if self.adapters.pop(asked["lora_name"], None) is None:
                    raise Refused(404, "cannot be found")
                self.changed.set()
            case path if path in ADAPTERS:
                raise Refused(404, "Not Found")
        return {}

    def _load(self, name, folder):
        if name in self.adapters:
            raise Refused(400, f"{name} has already been loaded")
        assert json.loads((folder / "adapter_config.json").read_text())["r"] > 0
        self.adapters[name] = 0.0 if self.stuck else float((folder / "adapter_model.safetensors").read_text())
        self.most_adapters = max(self.most_adapters, len(self.adapters))

    async def _chat(self, asked):
        assert not self.asleep, "a server that sleeps has no memory to answer in"
        said = self._table(asked["model"])[0]
        self.running += 1
        self.changed.set()
        try:
            if self.hold is not None:
                await self.hold.wait()
            assert asked["model"] in (self.name, *self.adapters), "an adapter was unloaded while it was in use"
        finally:
            self.running -= 1
            self.changed.set()
        message = {"role": "assistant", "content": f"{said}"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop", "token_ids": [7, 8]}]
        return {"id": "c", "choices": choices, "prompt_token_ids": [1], "model": asked["model"], "usage": {}}

    def _table(self, model):
        """Log-probabilities of the weights, and an adapter's number more of each."""
        if model not in (self.name, *self.adapters):
            raise Refused(404, f"The model `{model}` does not exist.")
        more = self.adapters.get(model, 0.0)
        return [value + more for value in self.table]

    def _take(self, folder):
        self.loaded, self.table = Path(folder), json.loads((Path(folder) / TABLE).read_text())

    @asynccontextmanager
    async def serve(self, socket):
        """Serve at a Unix socket in this event loop."""
        server = uvicorn.Server(uvicorn.Config(self, uds=str(socket), log_config=None, lifespan="off"))
        server.capture_signals = nullcontext
        running = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.005)
        try:
            yield self
        finally:
            server.should_exit = True
            await running


@asynccontextmanager
async def scripted_replicas(prepared, folder, count, device="cpu"):
    """Servers of the weights in `prepared`, and the replicas that stand for them."""
    # As a program this file has no chimera to import.
    from chimera.serving.vllm.replicas import Replica

    async with AsyncExitStack() as stack:
        sockets = folder / "sockets"
        stack.callback(shutil.rmtree, sockets, ignore_errors=True)
        sockets.mkdir()
        servers, replicas, changed = [], [], asyncio.Event()
        for number in range(count):
            server, socket = ScriptedVllm(prepared, device=device, changed=changed), sockets / str(number)
            servers.append(await stack.enter_async_context(server.serve(socket)))
            replicas.append(Replica(f"server {number + 1}", "http://x", "a-key", socket, on_cpu=device == "cpu"))
            stack.push_async_callback(replicas[-1].connections.aclose)
        yield servers, replicas


@asynccontextmanager
async def fleet(first, folder, count=2, device="cpu", dtype="float32", **options):
    """Servers of the model in `first`, as (the weights behind all of them, the servers)."""
    from chimera.serving.vllm.publish import Loaded, ServedWeights
    from chimera.serving.vllm.weights import prepare

    prepared = prepare(first, folder / "served" / "0")
    async with scripted_replicas(prepared, folder, count, device) as (servers, replicas):
        live = Loaded("base@0", first, prepared)
        yield ServedWeights("senior", replicas, live, dtype, folder / "served", learner, **options), servers


def answer_text(answer):
    return json.loads(answer.content)["choices"][0]["message"]["content"]


def served_model(source, folder, value):
    """A copy of a model's folder, of which scripted servers compute `value` for each token."""
    shutil.copytree(source, folder)
    (folder / TABLE).write_text(json.dumps([value] * 80))
    return folder


def learner(folder, tokens, dtype):
    """What the learner computes with a model's folder: the same as scripted servers."""
    return json.loads((folder / TABLE).read_text())[: len(tokens) - 1]


def add_adapter(folder, base, more):
    """Lay an adapter of the weights in `base` beside merged weights; servers compute `more` with it."""
    (folder / "adapter").mkdir(exist_ok=True)
    settings = {"r": 4, "base_model_name_or_path": str(base)}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "adapter" / "adapter_model.safetensors").write_text(str(more))


def write_python(folder, behaviour=""):
    """A program that stands for the Python of vLLM's environment; `behaviour` is an argument of `main`."""
    file = folder / f"python{behaviour}"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).absolute()} {behaviour or "serve"} "$@"\n')
    file.chmod(0o700)
    return str(file)


def main(behaviour, arguments):
    given = dict(pairwise(arguments))
    if behaviour == "broken":
        sys.exit("no CPU backend found")
    print("serving", given["--model"], flush=True)
    server = ScriptedVllm(given["--model"])
    server.takes_adapters = "--enable-lora" in arguments and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1"
    server.order = Path(given["--uds"]).with_name("end")
    if "--enable-sleep-mode" not in arguments:
        server.refuses = "/sleep"
    uvicorn.run(server, uds=given["--uds"], log_config=None, lifespan="off")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
