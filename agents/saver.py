"""LangGraph's checkpointer on a SQLite file, for work that waits for a person or is continued later."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver


@asynccontextmanager
async def open_saver(file: Path) -> "AsyncIterator[BaseCheckpointSaver[Any]]":
    """The checkpointer on `file`. States are plain JSON: reading one never loads a class."""
    import aiosqlite
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with aiosqlite.connect(file) as connection:
        yield AsyncSqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))


async def saved_state(file: Path, thread: str) -> Mapping[str, Any]:
    """The last saved state of `thread`; empty if there is none."""
    async with open_saver(file) as saver:
        snapshot = await saver.aget_tuple({"configurable": {"thread_id": thread}})
    return {} if snapshot is None else snapshot.checkpoint["channel_values"]
