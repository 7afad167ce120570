"""One rank of a team: a process that does what the main process orders.

    python -m training.cluster.rank HOST:PORT [--key-file FILE]       (without a file, the key is a line of stdin)

The launcher gives it its place by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK and LOCAL_WORLD_SIZE, as
torchrun does, and by GLOO_SOCKET_IFNAME where all ranks are on one machine. A Ray actor sets them and calls `run_rank`.
"""

import argparse
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chimera.core.errors import ChimeraError
from training.algorithms.ppo.batch import Batch, Sample
from training.algorithms.ppo.settings import PpoSettings
from training.cluster.wire import Channel, Tensors

if TYPE_CHECKING:
    from training.cluster.rank_engine import RankEngine


def run_rank(address: str, key: str) -> None:
    """Join the other ranks, then obey the main process until it closes the connection.

    Args:
        address: Where the main process listens, HOST:PORT.
        key: What shows it that this is a rank of its team.
    """
    import torch.distributed as dist

    from training.engines.verl_runtime import load_verl

    device = load_verl()
    if device == "cuda":
        import torch
        from torch.distributed.distributed_c10d import get_node_local_rank

        torch.cuda.set_device(get_node_local_rank())
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
    host, _, port = address.rpartition(":")
    channel = Channel(socket.create_connection((host, int(port))))
    channel.send({"rank": dist.get_rank(), "key": key})
    orders = Orders()
    while True:
        try:
            order, _ = channel.receive()
        except ConnectionError:
            return
        try:
            answer, tensors = orders.obey(order)
        except ChimeraError as error:
            answer, tensors = {"error": type(error).__name__, "text": str(error)}, {}
        channel.send(answer, tensors)


class Orders:
    """Does what the main process orders, with one engine at a time."""

    def __init__(self) -> None:
        self._engine: RankEngine | None = None

    def obey(self, order: Mapping[str, Any]) -> tuple[dict[str, Any], Tensors]:
        """Carry out one order; returns the answer.

        Raises:
            ChimeraError: It cannot be carried out, for a reason that a user can mend. Other ranks may have done it.
        """
        given = {name: value for name, value in order.items() if name != "do"}
        match order["do"]:
            case "open":
                self._open(**given)
            case "update":
                return self._update(**given)
            case "export" | "save" | "load" as work:
                getattr(self._opened(), work)(Path(given["folder"]))
            case "close":
                self._close()
            case unknown:
                raise ValueError(f"unknown order {unknown!r}")
        return {"updates": self._engine.updates if self._engine else 0}, {}

    def _opened(self) -> "RankEngine":
        if self._engine is None:
            raise ValueError("no engine is open")
        return self._engine

    def _open(self, folder: str, settings: Mapping[str, Any], **options: Any) -> None:
        from training.cluster.rank_engine import RankEngine

        self._close()
        self._engine = RankEngine(Path(folder), PpoSettings(**settings), **options)

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _update(self, samples: list[list[Any]], step: int, watch: bool) -> tuple[dict[str, Any], Tensors]:
        import torch.distributed as dist

        engine, seen = self._opened(), dict[str, Any]()

        def keep(batch: Batch, _: Mapping[str, float]) -> None:
            seen.update(batch.columns if batch.after is None else batch.columns | {"after": batch.after})

        metrics = engine.update([sample_of(one) for one in samples], step, keep if watch else None)
        first = dist.get_rank() == 0
        return {"updates": engine.updates, "metrics": metrics if first else {}}, seen if first else {}


def sample_of(plain: list[Any]) -> Sample:
    """The inverse of `plain_sample`."""
    prompt_ids, response_ids, reward, group, task, log_probs = plain
    sampled = None if log_probs is None else tuple(log_probs)
    return Sample(tuple(prompt_ids), tuple(response_ids), reward, group, task, log_probs=sampled)


def plain_sample(sample: Sample) -> list[Any]:
    """What a rank needs of a sample."""
    return [sample.prompt_ids, sample.response_ids, sample.reward, sample.group, sample.task, sample.log_probs]


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one rank, and end the process with 1 if it cannot go on."""
    parser = argparse.ArgumentParser(prog="python -m training.cluster.rank", description="One rank of a team.")
    parser.add_argument("address", metavar="HOST:PORT", help="where the main process listens")
    parser.add_argument("--key-file", type=Path, help="a file with the team's key")
    given = parser.parse_args(argv)
    key = given.key_file.read_text(encoding="utf-8") if given.key_file else sys.stdin.readline()
    code = 0
    try:
        run_rank(given.address, key.strip())
    except Exception:  # noqa: BLE001  whatever it is, it ends this process
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # The process group's threads would wait for ranks that are gone.


if __name__ == "__main__":
    main()
