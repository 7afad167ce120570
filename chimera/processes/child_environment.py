"""The environment variables that a child process gets: a short list of those it needs, without other secrets.

Everybody with the same account, and every crash report, can read a process's environment. So it must not hold a key
that the child does not use. Keys that it uses are passed by name.
"""

import os
import re
from fnmatch import fnmatchcase

SYSTEM = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP", "XDG_*"),
    *("LD_*", "PYTHON*", "VIRTUAL_ENV", "MALLOC_*", "NO_COLOR", "TERM", "COLUMNS", "LINES"),
)
"""Variables that programs and the Python interpreter need to start."""
LIBRARIES = (
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "CUDA*", "NVIDIA*", "NCCL_*", "GLOO_*", "CC", "CXX"),
    *("TORCH*", "PYTORCH_*", "TRITON_*", "UNSLOTH_*", "VLLM_*", "HF_*", "HUGGINGFACE_*", "TRANSFORMERS_*"),
    *("TOKENIZERS_*", "LITELLM_LOCAL_MODEL_COST_MAP", "CHIMERA_*"),
)
"""Settings of numerical and model libraries, and of Chimera."""
NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Settings for network access; only children that use it get them, as a proxy's address may hold a password."""

_SECRET = re.compile(r"KEY|TOKEN$|SECRET|PASSW|CREDENTIAL")


def child_environment(*names: str, network: bool = False) -> dict[str, str]:
    """The part of this process's environment that a child gets.

    Args:
        names: Further variables, also secrets, or patterns such as "WANDB_*".
        network: True if the child connects to other machines.

    Returns:
        Variables of `SYSTEM` and `LIBRARIES` whose names do not look like secrets, and the requested ones.
    """
    usual = (*SYSTEM, *LIBRARIES)
    requested = (*names, *NETWORK) if network else names
    return {
        name: value
        for name, value in os.environ.items()
        if _fits(name, requested) or (_fits(name, usual) and not _SECRET.search(name.upper()))
    }


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    """True if a pattern matches, ignoring case: variables of proxies are written in either case."""
    return any(fnmatchcase(name.upper(), pattern) for pattern in patterns)
