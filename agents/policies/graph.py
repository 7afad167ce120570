"""A learned graph as a file."""

from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from chimera.config.sections.graph import GraphConfig
from chimera.core.errors import RunError

FILE: str = "graph.json"


def dump(graph: GraphConfig) -> str:
    """A graph as JSON text; equal graphs give equal text."""
    return graph.model_dump_json(indent=2) + "\n"


@lru_cache(maxsize=64)
def load(folder: Path) -> GraphConfig:
    """The graph in `folder`, which is read once; raises RunError if it cannot be."""
    file = folder / FILE
    try:
        return GraphConfig.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(f"{file} holds no learned graph ({error}): restore it from a copy of the run") from error
