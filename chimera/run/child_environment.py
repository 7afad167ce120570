"""Which environment variables a child process gets: a short list of what it needs, and no other secret of the user's.

Every user of the machine's account, and every crash report, can read a process's environment; so a key that a child
does not use must not be in it. Keys that it does use are handed over by name.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

SYSTEM = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP", "XDG_*"),
    *("LD_*", "PYTHON*", "VIRTUAL_ENV", "MALLOC_*", "NO_COLOR", "TERM", "COLUMNS", "LINES"),
)
"""What any program and the Python interpreter need to start."""
LIBRARIES = (
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "CUDA*", "NVIDIA*", "NCCL_*", "GLOO_*", "CC", "CXX"),
    *("TORCH*", "PYTORCH_*", "TRITON_*", "UNSLOTH_*", "VLLM_*", "HF_*", "HUGGINGFACE_*", "TRANSFORMERS_*"),
    *("TOKENIZERS_*", "LITELLM_LOCAL_MODEL_COST_MAP", "CHIMERA_*"),
)
"""Settings of the libraries that compute, and of Chimera."""
NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""How to reach the network; a proxy's address may hold a password, so only those who use the network get it."""

_SECRET = re.compile(r"KEY|TOKEN$|SECRET|PASSW|CREDENTIAL")


def child_environment(*names: str, network: bool = False) -> dict[str, str]:
    """The part of this process's environment that a child gets.

    Args:
        names: Further variables, secrets among them, or patterns such as "WANDB_*".
        network: True if the child talks to other machines.

    Returns:
        Variables of `SYSTEM` and `LIBRARIES` whose names do not look like a secret's, with what was asked for.
    """
    usual = (*SYSTEM, *LIBRARIES)
    asked = (*names, *NETWORK) if network else names
    return {
        name: value
        for name, value in os.environ.items()
        if _fits(name, asked) or (_fits(name, usual) and not _SECRET.search(name.upper()))
    }


@contextmanager
def only_child_environment(*, network: bool) -> Iterator[None]:
    """Inside, this process's own environment is that of a child, for what can only be inherited."""
    hidden = {name: os.environ[name] for name in set(os.environ) - set(child_environment(network=network))}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def reduce_environment(*, network: bool) -> None:
    """Remove what a child does not need from this process's environment, for good."""
    for name in set(os.environ) - set(child_environment(network=network)):
        del os.environ[name]


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    """True if a pattern fits; proxies are written in capitals or small letters."""
    return any(fnmatchcase(name.upper(), pattern) for pattern in patterns)
