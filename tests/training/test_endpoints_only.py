"""`python -m chimera.train` where all models are endpoints: what cannot run is told, the rest runs."""

import json
import os
import re
import subprocess
import sys

import pytest

from chimera.config.sections.models import SLOTS
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE

pytestmark = pytest.mark.whole


def train(*arguments):
    command = [sys.executable, "-m", "chimera.train", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    return done.returncode, done.stdout + done.stderr


def test_the_check_names_the_phases_that_need_weights_and_its_command_trains_the_rest(scripted_openai, tmp_path):
    scripted_openai.hooks.append(scripted_openai.justified)
    endpoint = {"kind": "endpoint", "base_url": scripted_openai.url, "model": "scripted"}
    models = [f"models.{slot}.{key}={value}" for slot in SLOTS for key, value in endpoint.items()]
    few = [
        "data.size=80",
        "gate.tasks=2",
        "gather.tasks=16",
        "bandit.tasks=2",
        "rollouts.concurrency=2",
    ]
    few += ["society.quotes=free", "society.refiner_max_chars=0", "wandb.mode=disabled", f"runs_dir={tmp_path}"]
    code, said = train("--check", *models, *few)
    assert code != 0
    sentence = said.strip().splitlines()[-1]
    assert sentence.startswith(
        "error: sft, ppo and design cannot run, because they train weights that there is no access to ("
    )
    offered = re.search(r"--phases \S+(?=, or)", sentence)[0].split()
    assert offered == ["--phases", "gather,bandit"]
    code, said = train("--check", *offered, *models, *few)
    assert (code, list(tmp_path.iterdir())) == (0, []), said
    assert "nothing was started: gather, bandit can run" in said
    code, said = train("--name", "mine", *offered, *models, *few)
    assert code == 0, said
    events = list(Run.open("mine", tmp_path).events())
    assert [event["phase"] for event in events if event["event"] == "phase_finished"] == ["gather", "bandit"]
    decided = [event["policy"]["part"] for event in events if event["event"] in (WENT_LIVE, "rolled_back")]
    assert decided == ["choice"], json.dumps(events)[-2000:]
