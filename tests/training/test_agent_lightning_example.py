"""The society in Agent Lightning's own Trainer, as `docs/extending.md` says."""

import re
import subprocess
import sys

import psutil
import pytest


@pytest.mark.whole
def test_agent_lightning_s_own_trainer_runs_the_society_and_leaves_no_process():
    run = subprocess.Popen(
        [sys.executable, "-m", "examples.agent_lightning"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, errors = run.communicate(timeout=1200)
    assert run.returncode == 0, errors
    ended = re.findall(r"^succeeded: reward ([\d.]+), (\d+) triplets with token ids$", out, re.MULTILINE)
    assert len(ended) == 2, out
    assert all(float(reward) > 0 and int(triplets) >= 2 for reward, triplets in ended)
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if "examples.agent_lightning" in line]
