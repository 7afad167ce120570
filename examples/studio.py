"""The society in LangGraph Studio: `langgraph dev` opens it by langgraph.json."""

import asyncio
from functools import cache
from pathlib import Path

from agents.graph import Graph
from evaluation.conduct.studio import studio_graph
from training.configuration import load_config

CONFIG = Path(__file__).parents[1] / "configs" / "local.yaml"
"""Whose models, tools and tasks: put your own file here."""


@cache
def _once() -> Graph:
    return studio_graph(load_config(CONFIG))


async def society() -> Graph:
    """The graph; its models are started once."""
    return await asyncio.to_thread(_once)
