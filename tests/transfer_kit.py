"""A scripted vLLM server that truly receives weights which are sent, in as many workers as wanted.

As a program it loads the receiver as vLLM does: by its name on the command line, through PYTHONPATH.
"""

import asyncio
import importlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm_kit import Refused, ScriptedVllm, main

TABLES = "tables.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def total(tensors):
    """What is "computed" with weights: a number that any other weight would change."""
    return [-float(sum(tensor.double().abs().sum() for _, tensor in sorted(tensors.items())))] * 80


def load_whole(folder):
    """The tensors of a model as vLLM is to get them, with a head of its own."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    return {HEAD: tensors[EMBEDDING].clone(), **tensors}


def total_of(folder, tokens, dtype):
    """What servers of the weights in `folder` say; stands for the learner."""
    return total(load_whole(folder))[: len(tokens) - 1]


def scripted_worker(receiver, rank, ranks):
    """One worker of a server, with `receiver` as a further base, as vLLM does it.

    `on_tensor` is called with the number of tensors that have come, and may raise.
    """

    class ScriptedWorker(receiver):
        def reload_weights(self, weights_iterator):
            self.got = {}
            for name, tensor in weights_iterator:
                self.got[name] = tensor
                self.on_tensor(len(self.got))

    worker = ScriptedWorker()
    worker.rank, worker.device = rank, torch.device("cpu")
    worker.parallel_config = SimpleNamespace(world_size_across_dp=ranks)
    worker.got, worker.on_tensor = {}, lambda number: None
    return worker


class ReceivingVllm(ScriptedVllm):
    """A server with `count` workers that have loaded `receiver`; `compute` gives log-probabilities of weights."""

    def __init__(self, folder, receiver, count=1, compute=total, **options):
        super().__init__(folder, **options)
        self.workers = [scripted_worker(receiver, rank, count) for rank in range(count)]
        self.compute = compute
        self.threads = ThreadPoolExecutor(count)
        self.begun = load_whole(folder)
        for worker in self.workers:
            worker.on_tensor = self._end_when_told

    def _end_when_told(self, number):
        if number == 3 and self.order is not None and self.order.exists():
            self.order.unlink()
            os._exit(3)

    async def _answer(self, path, asked):
        if path != "/collective_rpc":
            return await super()._answer(path, asked)
        assert asked["method"] != "reload_weights", "this server shares no folder with the publisher"
        assert self.paused or asked["method"] == "chimera_place", "weights may change only in a pause"
        assert not self.running, "an answer would be by old and new weights"
        loop, given = asyncio.get_running_loop(), json.loads(json.dumps(asked.get("kwargs", {})))
        calls = [
            loop.run_in_executor(self.threads, lambda worker=worker: getattr(worker, asked["method"])(**given))
            for worker in self.workers
        ]
        return {"results": await asyncio.gather(*calls)}

    def _table(self, model):
        if model != self.name:
            raise Refused(404, f"The model `{model}` does not exist.")
        tables = [self.compute(worker.got or self.begun) for worker in self.workers]
        assert all(table == tables[0] for table in tables), "workers of one server have different weights"
        return tables[0]


def write_tables(tables):
    """Lay what programs compute with weights, by the folder of these, beside all of them."""
    known = {key_of(load_whole(folder)): table for folder, table in tables.items()}
    for folder in tables:
        (folder / TABLES).write_text(json.dumps(known))


def key_of(tensors):
    return f"{total(tensors)[0]:.6f}"


def loaded_as_vllm_does(arguments):
    """What makes the server of a program with vLLM's own `arguments`."""
    module, _, name = dict(pairwise(arguments))["--worker-extension-cls"].rpartition(".")
    receiver = getattr(importlib.import_module(module), name)

    def make(folder):
        tables = json.loads((Path(folder) / TABLES).read_text())
        return ReceivingVllm(Path(folder), receiver, compute=lambda tensors: tables[key_of(tensors)])

    return make


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:], loaded_as_vllm_does(sys.argv[2:]))
