"""Where the store keeps its rollouts and spans: in the main process's memory, or in a MongoDB (`cluster.store`).

MongoDB takes them out of the main process's memory and shows them to other programs. A run does not depend on it when
it is resumed: its directory holds what has ended. So each start of a run has a partition of its own, and nobody takes
rollouts that were queued by a process that is gone.
"""

import secrets
from importlib import import_module
from typing import Any

import agentlightning as agl

from chimera.core.errors import ConfigError

SPAN_MEMORY_BYTES = 512 * 2**20
SCAN_SECONDS = 1.0
"""Interval at which the store looks for rollouts over their time limit."""
DATABASE = "chimera"
CONNECT_SECONDS = 10.0


def in_memory() -> agl.InMemoryLightningStore:
    """Spans beyond 512 MB are evicted, oldest first."""
    return agl.InMemoryLightningStore(
        thread_safe=True, eviction_memory_threshold=SPAN_MEMORY_BYTES, scan_debounce_seconds=SCAN_SECONDS
    )


def in_mongo(uri: str) -> agl.LightningStore:
    """Agent Lightning's store in a MongoDB, whose writes are acknowledged by the majority of its replicas.

    Raises:
        ConfigError: pymongo is missing, no server answers, or it is no replica set, which its transactions need.
    """
    check_mongo(uri)
    made = import_module("agentlightning.store.mongo").MongoLightningStore
    partition = f"run-{secrets.token_hex(8)}"
    return made(mongo_uri=uri, database_name=DATABASE, partition_id=partition, scan_debounce_seconds=SCAN_SECONDS)


def check_mongo(uri: str) -> None:
    """Raise ConfigError if no run could keep its store at `uri`."""
    try:
        pymongo: Any = import_module("pymongo")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"cluster.store={uri} needs the package pymongo, which is not installed: pip install pymongo, or set "
            "cluster.store=null"
        ) from error
    client = pymongo.MongoClient(uri, serverSelectionTimeoutMS=1000 * CONNECT_SECONDS)
    try:
        told = client.admin.command("hello")
    except import_module("pymongo.errors").PyMongoError as error:
        raise ConfigError(
            f"cluster.store={uri}: no MongoDB answers as asked ({type(error).__name__}: {str(error)[:200]}): start it, "
            "or set cluster.store=null"
        ) from error
    finally:
        client.close()
    if "setName" not in told:
        raise ConfigError(
            f"cluster.store={uri} is no replica set, which transactions need: start mongod with --replSet rs0, run "
            "rs.initiate() in mongosh once, and add ?replicaSet=rs0 to the address"
        )
