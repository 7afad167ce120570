"""One of the processes that share each update. All do what they are told at once, in one order.

VeRL and torch find the others by the variables that torchrun sets: RANK, WORLD_SIZE, MASTER_ADDR and the like.
"""

import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chimera.core.errors import ChimeraError
from training.ppo.engine.batch import Batch, Sample
from training.ppo.verl.settings import PpoSettings

if TYPE_CHECKING:
    from training.ppo.ranks.rank_engine import RankEngine


class Rank:
    """Joins the other ranks; has one engine at a time.

    Args:
        place: The variables that give it its place.
    """

    def __init__(self, place: Mapping[str, str]) -> None:
        os.environ.update(place)
        import torch.distributed as dist

        from training.ppo.verl.runtime import load_verl

        device = load_verl()
        if device == "cuda":
            import torch

            torch.cuda.set_device(int(place["LOCAL_RANK"]))
        dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
        self._first = dist.get_rank() == 0
        self._engine: RankEngine | None = None

    def open(self, folder: Path, settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Make the engine, see `training.ppo.engine.update.PpoEngine`. One that is open is closed."""
        from training.ppo.ranks.rank_engine import RankEngine

        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._engine = RankEngine(folder, PpoSettings(**settings), **options)

    def update(self, samples: Sequence[Sample], step: int, watched: bool) -> tuple[dict[str, float], dict[str, Any]]:
        """The first rank gives the update's metrics and, if it is `watched`, its batch's columns with `after`."""
        seen: dict[str, Any] = {}

        def keep(batch: Batch, _: Mapping[str, float]) -> None:
            seen.update(batch.columns if batch.after is None else batch.columns | {"after": batch.after})

        assert self._engine is not None
        metrics = self._engine.update(samples, step, keep if watched else None)
        return (metrics, {name: column.cpu() for name, column in seen.items()}) if self._first else ({}, {})

    def export(self, folder: Path) -> None:
        """See `PpoEngine.export`."""
        assert self._engine is not None
        self._engine.export(folder)

    def save(self, folder: Path) -> None:
        """Write the complete state in the format of one rank: any number of ranks can load it."""
        assert self._engine is not None
        self._engine.save(folder)

    def load(self, folder: Path) -> int:
        """Restore what an engine of any number of ranks has saved; returns its number of updates."""
        assert self._engine is not None
        self._engine.load(folder)
        return self._engine.updates


def main(argv: list[str]) -> NoReturn:
    """Be the rank of the process that holds the other end of the socket with this descriptor, until it closes it."""
    code, orders = 0, Connection(int(argv[0]))
    try:
        _obey(orders)
    except EOFError:
        pass
    except Exception:  # noqa: BLE001  whatever it is, it ends this process
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # The process group's threads would wait for ranks that are gone.


def _obey(orders: Connection) -> None:
    """Call a rank's methods as they are ordered. An error that a user can mend is an answer."""
    rank = Rank(pickle.loads(orders.recv_bytes()))
    while True:
        method, arguments = pickle.loads(orders.recv_bytes())
        try:
            answer = getattr(rank, method)(*arguments)
        except ChimeraError as error:
            answer = error
        orders.send_bytes(pickle.dumps(answer))
