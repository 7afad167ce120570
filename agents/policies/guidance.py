"""Learned guidance as a file: what each role is told beside its task, as a search has chosen it."""

import json
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agents.context import Guided
from chimera.config.sections.society import Guidance
from chimera.core.errors import RunError

FILE: str = "guidance.json"
_GUIDED = TypeAdapter(dict[str, Guidance])


def dump(guidance: Guided) -> str:
    """Guidance as JSON text: the fields that are not empty, by role; equal guidance gives equal text."""
    fields = {role: guidance[role].given() for role in sorted(guidance) if guidance[role].given()}
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


@lru_cache(maxsize=64)
def load(folder: Path) -> Guided:
    """The guidance in `folder`, which is read once; raises RunError if it cannot be."""
    file = folder / FILE
    try:
        return _GUIDED.validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(f"{file} holds no learned guidance ({error}): restore it from a copy of the run") from error
