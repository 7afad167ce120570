"""Files for TLS on 127.0.0.1, by the commands of docs/cluster.md."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from chimera.config.sections.cluster import TlsConfig

PAGE = Path(__file__).parents[1] / "docs/cluster.md"
LACKING = shutil.which("openssl") is None
"""True if this machine cannot make them."""


def made_files(folder):
    """Make an authority, a certificate and its key in `folder`, which must not exist."""
    folder.mkdir()
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    for command in re.findall(r"^openssl req .*$", text, re.MULTILINE):
        subprocess.run(shlex.split(command), cwd=folder, check=True, capture_output=True)
    return TlsConfig(certificate=folder / "tls.pem", key=folder / "tls.key", authority=folder / "authority.pem")
