"""Secrets: read from the environment or `.env` only, never shown, replaced by their names in all output."""

import json
import logging
import os
import re
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from chimera.core.errors import ConfigError

SECRETS: Mapping[str, str] = {
    "OPENAI_API_KEY": "key of OpenAI or of any server that models.*.api_key_env names it for",
    "CHIMERA_API_KEY": "key that clients of python -m chimera serve must send; made and printed without it",
    "TAVILY_API_KEY": "key of Tavily web search (tools.literature=tavily, tools.trials=tavily)",
    "NCBI_API_KEY": "optional key of PubMed E-utilities, for more requests per second (tools.literature=pubmed)",
    "WANDB_API_KEY": "key of Weights & Biases; without it runs are logged offline",
    "HF_TOKEN": "token of the Hugging Face hub, for gated models and data sets",
}
"""Every secret that Chimera can use; none is required. `.env.example` lists the same names."""

SETTINGS: Mapping[str, str] = {
    "HF_HOME": "folder in which the Hugging Face libraries keep models and data sets (default ~/.cache/huggingface)",
    "XDG_CACHE_HOME": "folder of caches (default ~/.cache): smollm2 and converted GGUF files are kept there",
    "HF_HUB_OFFLINE": "1 keeps the Hugging Face libraries off the network: what is in HF_HOME has to do",
    "LITELLM_LOCAL_MODEL_COST_MAP": "set to True unless you set it: LiteLLM then starts without asking the network",
    "WANDB_PROJECT": "name of the project at Weights & Biases (default chimera)",
    "WANDB_ENTITY": "team or user at Weights & Biases; the key's own without it",
    "WANDB_BASE_URL": "address of a Weights & Biases server of your own",
    "OMP_WAIT_POLICY": "set to PASSIVE unless you set it: waiting threads then leave the cores to other processes",
    "RAY_TMPDIR": "folder of Ray's notes on this machine's clusters; set to the system's unless you set it",
    "CUDA_VISIBLE_DEVICES": "the GPUs that may be used; a fine-tuning takes the first of them, or one for each rank",
    "HTTP_PROXY": "proxy for the web (also HTTPS_PROXY and ALL_PROXY); calls to this machine never go through it",
    "NO_PROXY": "addresses that no proxy is used for; Chimera adds this machine's own",
    "NO_COLOR": "any value: tables and progress are printed without colour",
}
"""Other environment variables that Chimera reads; they are never read from `.env`."""

READ_BY_LIBRARIES = ("HF_TOKEN", "WANDB_API_KEY")
"""Secrets that libraries read from the environment themselves. Those in `.env` are copied to the environment."""

ENVIRONMENT: Mapping[str, str] = {**SECRETS, **SETTINGS}
"""Every environment variable that Chimera reads, with its purpose."""

SHORTEST_SECRET = 8
"""Fewest characters of a secret. Shorter values are placeholders for local servers, such as 'EMPTY' or 'ollama'."""


class Secrets(Mapping[str, str]):
    """Secrets by name; neither `str` nor `repr` shows a value."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self._values))})"


def load_secrets(names: Iterable[str] = (), *, env_file: Path | str = ".env") -> Secrets:
    """Read the known secrets and those in `names`; `redact` hides them from now on.

    The environment overrides `env_file`. `READ_BY_LIBRARIES` are copied from the file to the environment. Empty values
    count as unset, and other names in the file are ignored.

    Raises:
        ConfigError: `env_file` exists but cannot be read.
    """
    from dotenv import dotenv_values

    path = Path(env_file)
    try:
        stored = dotenv_values(path, interpolate=False) if path.is_file() else {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text ({error}): save it as plain text") from error
    read = {name: (os.environ.get(name) or stored.get(name) or "").strip() for name in (*SECRETS, *names)}
    values = {name: value for name, value in read.items() if value}
    for name, value in values.items():
        register_secret(name, value)
        if name in READ_BY_LIBRARIES:
            os.environ[name] = value
    return Secrets(values)


class Redactor:
    """Replaces secret values, in every spelling, by their names in brackets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def add(self, name: str, value: str) -> None:
        """Hide `value` from now on, unless it is so short that it is a placeholder."""
        if len(value) < SHORTEST_SECRET:
            return
        with self._lock:
            self._names = self._names | dict.fromkeys(_spellings(value), name)
            longest_first = sorted(self._names, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redact(self, text: str) -> str:
        """`text` without any known value."""
        with self._lock:
            pattern, names = self._pattern, self._names
        if pattern is None:
            return text
        text = pattern.sub(lambda match: f"[{names[match.group()]}]", text)
        # A value may occur in a placeholder, or arise where one touches its neighbours; it is replaced by ***.
        while pattern.search(text):
            text = pattern.sub("***", text)
        return text


_redactor = Redactor()


@cache
def _process_redactor() -> Redactor:
    """The process's redactor. A child process that was given no secrets still hides those in its environment.

    Error messages are redacted too. If `.env` cannot be read, its values are unknown and only the environment counts.
    """
    try:
        load_secrets()
    except ConfigError:
        load_secrets(env_file=os.devnull)
    return _redactor


def register_secret(name: str, value: str) -> None:
    """Have `redact` replace `value` by `[name]`; for keys that a run generates, such as a server's."""
    _redactor.add(name, value)


def redact(text: str) -> str:
    """`text` with every known secret replaced by its name in brackets, also if JSON-escaped or URL-quoted."""
    return _process_redactor().redact(text)


def redact_tree(value: Any) -> Any:
    """A copy of plain data (mappings, lists, text, numbers) with `redact` applied to every text, keys included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_tree(key): redact_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(item) for item in value]
    return value


class RedactingFilter(logging.Filter):
    """Replaces secrets in a log record's message, exception and stack; put it on handlers, not on loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact `record` in place and let it pass."""
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        record.exc_text = redact(record.exc_text) if record.exc_text else record.exc_text
        record.stack_info = redact(record.stack_info) if record.stack_info else record.stack_info
        return True


def protect_logging(logger: logging.Logger | None = None) -> None:
    """Add a `RedactingFilter` to each handler of `logger` (the root logger by default) that has none yet."""
    for handler in (logger or logging.getLogger()).handlers:
        if not any(isinstance(item, RedactingFilter) for item in handler.filters):
            handler.addFilter(RedactingFilter())


def _spellings(value: str) -> set[str]:
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {value, quote(value, safe=""), quote_plus(value), *escaped}
