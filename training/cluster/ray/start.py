"""Starts the process that speaks with Ray: it reads orders at once, while Ray is imported and while one is carried out.

So the main process never waits for it.
"""

import queue
import socket
import threading
from typing import Any

from training.cluster.wire import Channel

Orders = queue.SimpleQueue[dict[str, Any] | None]
"""What the main process wants, in its order; None when it has closed the connection."""


def main(argv: list[str]) -> None:
    """Serve the main process by the socket with this descriptor.

    Raises:
        RunError: See `training.cluster.ray.driver.Driver.obey`.
    """
    channel, orders = Channel(socket.socket(fileno=int(argv[0]))), Orders()
    threading.Thread(target=_read, args=(channel, orders), name="orders", daemon=True).start()
    from training.cluster.ray.driver import Driver

    Driver(channel, orders).obey()


def _read(channel: Channel, orders: Orders) -> None:
    try:
        while True:
            orders.put(channel.receive()[0])
    except OSError:
        orders.put(None)
