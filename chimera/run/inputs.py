"""Files that a run reads from outside its folder (data, test ids, database, model folders), identified by their hashes.

So a run can be continued if these files have other paths, but not if their contents differ.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chimera.config.sections.bundled import BUNDLED, NAMED
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.run.hashes import hash_artifact

OF_MODEL = ("*.safetensors", "*.json", "*.jinja", "additional_chat_templates/*.jinja")
"""The files of a model's folder that are read."""
NO_FILES = ("generated", "hub", *BUNDLED, *NAMED)
"""Values of paths that name no file, though one of that name may lie in the current folder."""
CREATED = "created"


def hash_inputs(config: Config) -> dict[str, str]:
    """SHA-256 of each input by the setting that names it; bundled, generated and hub inputs have none.

    Raises:
        RunError: A file cannot be read.
    """
    return {key: _hash(key, path) for key, path in _paths(config) if path.exists()}


def same_inputs(events: Iterable[Mapping[str, Any]], config: Config) -> set[str]:
    """The settings whose files have the same contents as when the run was made; paths may differ.

    Raises:
        RunError: A file's contents differ from when the run was made.
    """
    recorded = _recorded(events)
    if problem := next(_unlike(recorded, dict(_paths(config)) if recorded else {}), None):
        raise RunError(problem)
    now = hash_inputs(config) if recorded else {}
    return {key for key in recorded if recorded[key] == now.get(key)}


def changed_inputs(
    events: Iterable[Mapping[str, Any]], run_config: Config, config: Config | None = None
) -> Iterator[str]:
    """One sentence for each file whose contents differ from when the run was made, with the setting and the remedy.

    A missing file is none: what reads it names it.

    Args:
        run_config: The run's configuration.
        config: The configuration of a command on the run. A path that it sets otherwise is another input on purpose.
    """
    paths = dict(_paths(config or run_config))
    yield from _unlike(_recorded(events), {key: path for key, path in _paths(run_config) if paths.get(key) == path})


def check_inputs(events: Iterable[Mapping[str, Any]], run_config: Config, config: Config | None = None) -> None:
    """Raise RunError with the first sentence of `changed_inputs`, if there is one."""
    if problem := next(changed_inputs(events, run_config, config), None):
        raise RunError(problem)


def _recorded(events: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """The hash of each input when the run was made, by its setting."""
    return next((event.get("inputs", {}) for event in events if event["event"] == CREATED), {})


def _unlike(recorded: Mapping[str, str], paths: Mapping[str, Path]) -> Iterator[str]:
    for key, path in paths.items():
        if key in recorded and path.exists() and _hash(key, path) != recorded[key]:
            yield (
                f"{key}={path} is not what the run was made with, by the hash in its ledger: restore it, or make a "
                "new run under another name"
            )


def _paths(config: Config) -> Iterator[tuple[str, Path]]:
    named = {
        "data.path": config.data.path,
        "data.test_ids": config.data.test_ids,
        "tools.database": config.tools.database,
    }
    for name, model in config.models.items():
        if model.has_weights:
            named[f"models.{name}.path"] = model.path
    for key, path in named.items():
        if path is not None and path not in NO_FILES:
            yield key, Path(path).expanduser()


def _hash(key: str, path: Path) -> str:
    if not (path.is_dir() and key.startswith("models.")):
        return hash_artifact(path)
    files = sorted(file for pattern in OF_MODEL for file in path.glob(pattern))
    lines = "".join(f"{hash_artifact(file)}  {file.relative_to(path).as_posix()}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
