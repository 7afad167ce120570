"""The files that start a cluster: Ray's launcher takes the one, and Slurm's script does its steps in order."""

import json
import os
import re
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from training.configuration import load_config

RECIPES = Path(__file__).parents[2] / "recipes"
LAUNCHER, SBATCH = RECIPES / "ray" / "ray-cluster.yaml", RECIPES / "slurm" / "slurm.sbatch"


def test_ray_s_launcher_takes_the_file():
    jsonschema = pytest.importorskip("jsonschema", reason="comes with Ray")
    ray = find_spec("ray")
    if ray is None:
        pytest.skip("Ray is not installed")
    schema = json.loads((Path(ray.submodule_search_locations[0]) / "autoscaler" / "ray-schema.json").read_text())
    cluster = yaml.safe_load(LAUNCHER.read_text())
    jsonschema.validate(cluster, schema)
    assert cluster["provider"]["head_ip"] in cluster["head_start_ray_commands"][1]
    assert all("RAY_AUTH_MODE=token" in cluster[f"{kind}_start_ray_commands"][1] for kind in ("head", "worker"))


@pytest.mark.parametrize("file", [LAUNCHER, SBATCH], ids=lambda file: file.name)
def test_the_settings_that_the_files_name_exist(file):
    """Those after the command in the comments, and those that the script itself gives."""
    found = re.findall(r"(?<![\w$-])((?:ppo|cluster|rollouts)\.\w+=\S+)", file.read_text().replace("\\\n", " "))
    assert len(found) >= 7
    given = {one.partition("=")[0]: re.sub(r'"\$HEAD:\$PORT"|"\$HEAD"', "auto", one) for one in found}
    config = load_config(None, [value.replace('"', "") for value in given.values()])
    assert (config.rollouts.on, config.cluster.gpus_per_rank, config.rollouts.concurrency) == ("ray", 1, 64)


SRUN = r"""#!/bin/bash
while [[ $1 == --* ]]; do
  case $1 in --nodelist=*) export ON=${1#*=} ;; --output=*) exec >> "${1#*=}" 2>&1 ;; esac
  shift
done
[[ $1 == getent ]] || exec "$@"
case "$3 $ON" in "at-first second") echo "127.0.0.2 STREAM $3" ;; "at-second first") echo "127.0.0.3 STREAM $3" ;; esac
"""
SCONTROL = r"""#!/bin/bash
[[ $2 == hostnames ]] && printf 'first\nsecond\n' || echo "NodeName=$3 NodeAddr=at-$3 NodeHostName=host"
"""
RAY = r"""#!/bin/bash
echo "$@" >> "$SEEN/$ON"
(( $(wc -l < "$SEEN/$ON") > TIMEOUTS )) || exit 1
echo "Ray runtime started."
exec sleep 1000
"""
PYTHON = r"""#!/bin/bash
stat -c %a "$RAY_AUTH_TOKEN_PATH" > "$SEEN/mode"
echo "$@" > "$SEEN/train"
exit ${FAILS:-0}
"""


@pytest.mark.whole
@pytest.mark.parametrize(("fails", "timeouts"), [("0", "0"), ("3", "2")])
def test_slurm_s_script_starts_the_nodes_and_the_run_and_leaves_nothing(tmp_path, fails, timeouts):
    """With stand-ins for Slurm's commands and for what is installed; Ray times out `timeouts` times on each node."""
    seen, tools = tmp_path / "seen", tmp_path / "bin"
    seen.mkdir()
    tools.mkdir()
    for name, text in {"scontrol": SCONTROL, "srun": SRUN, "ray": RAY, "python": PYTHON}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "CHIMERA_BIN": str(tools), "SEEN": str(seen),
        "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "[first,second]", "SLURM_CPUS_PER_TASK": "16",
        "SLURM_GPUS_ON_NODE": "4", "FAILS": fails, "TIMEOUTS": timeouts,
    }  # fmt: skip
    command = ["bash", str(SBATCH), "--name", "mine", "ppo.ranks=8"]
    ended = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (int(fails), "")
    assert "--node-ip-address=127.0.0.2 --head --port=6379" in (seen / "first").read_text()
    joined = "--node-ip-address=127.0.0.3 --address=127.0.0.2:6379 --num-cpus=16 --num-gpus=4"
    assert joined in (seen / "second").read_text()
    module, *arguments = (seen / "train").read_text().split()[1:]
    assert module == "chimera.train"
    assert arguments[:2] == ["--name", "mine"]
    assert load_config(None, arguments[2:]).cluster.address == "127.0.0.2:6379"
    assert (seen / "mode").read_text().strip() == "600"
    assert not (tmp_path / ".chimera-42").exists()
    assert stat.S_IMODE(SBATCH.stat().st_mode) & stat.S_IXUSR == 0
