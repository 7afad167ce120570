"""While a phase computes an update, vLLM servers may sleep: they are sent to sleep first and always woken after it."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from chimera.core.errors import ModelError
from training.bench.lab_bench import LabBench


class Servers:
    """Writes down what it is told, and fails at `fails`, as servers do of which only some go to sleep."""

    def __init__(self, fails):
        self.told, self.fails = [], fails

    def tell(self, what):
        self.told.append(what)
        if what == self.fails:
            raise ModelError(f"server 2: no {what}")

    def sleep(self):
        self.tell("sleep")

    def wake(self):
        self.tell("wake")


@pytest.mark.parametrize(
    ("fails", "told"),
    [(None, ["sleep", "update", "wake"]), ("update", ["sleep", "update", "wake"]), ("sleep", ["sleep", "wake"])],
)
async def test_servers_sleep_during_an_update_and_are_woken_however_it_ends(fails, told):
    servers = Servers(fails)
    lab = SimpleNamespace(servers=servers, config=None, dataset=None, run=None, view=None, metrics=None)
    with pytest.raises(ModelError, match=f"server 2: no {fails}") if fails else nullcontext():
        async with LabBench(lab, "tried").computing():
            servers.tell("update")
    assert servers.told == told
