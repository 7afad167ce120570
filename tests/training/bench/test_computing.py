"""While a phase computes an update, vLLM servers may sleep: they are sent to sleep first and always woken after it."""

from types import SimpleNamespace

import pytest

from chimera.core.errors import ModelError
from training.bench.lab_bench import LabBench


class Servers:
    """Writes down what it is told; `refuses` goes to sleep only in part."""

    def __init__(self, refuses=False):
        self.told, self.refuses = [], refuses

    def sleep(self):
        self.told.append("sleep")
        if self.refuses:
            raise ModelError("server 2 does not sleep")

    def wake(self):
        self.told.append("wake")


def bench(servers):
    lab = SimpleNamespace(servers=servers, config=None, dataset=None, run=None, view=None, metrics=None)
    return LabBench(lab, "tried")


async def test_servers_sleep_during_an_update_and_answer_after_it():
    servers = Servers()
    async with bench(servers).computing():
        servers.told.append("update")
    assert servers.told == ["sleep", "update", "wake"]


async def test_servers_wake_up_when_the_update_fails():
    servers = Servers()
    with pytest.raises(ZeroDivisionError):
        async with bench(servers).computing():
            raise ZeroDivisionError
    assert servers.told == ["sleep", "wake"]


async def test_nothing_is_computed_when_a_server_does_not_sleep_and_the_others_are_woken():
    servers = Servers(refuses=True)
    with pytest.raises(ModelError, match="server 2 does not sleep"):
        async with bench(servers).computing():
            servers.told.append("update")
    assert servers.told == ["sleep", "wake"]
