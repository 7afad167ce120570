"""`python -m chimera.train` where all models are endpoints: what cannot run is told, the rest runs."""

import json
import re

import pytest
from ask_kit import printed_by
from message_kit import refused

from chimera.config.sections.models import SLOTS
from chimera.core.errors import ConfigError
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE

pytestmark = pytest.mark.whole


def test_the_check_names_the_phases_that_need_weights_and_its_command_trains_the_rest(scripted_openai, tmp_path):
    scripted_openai.hooks.append(scripted_openai.justified)
    endpoint = {"kind": "endpoint", "base_url": scripted_openai.url, "model": "scripted"}
    models = [f"models.{slot}.{key}={value}" for slot in SLOTS for key, value in endpoint.items()]
    few = ["data.size=80", "gate.tasks=2", "gather.tasks=8", "bandit.tasks=2", "rollouts.concurrency=2"]
    few += ["society.quotes=free", "society.refiner_max_chars=0", "wandb.mode=disabled", f"runs_dir={tmp_path}"]
    with refused(ConfigError, "sft, ppo and design cannot run", "weights that there is no access to") as caught:
        printed_by("chimera.train", "--check", *models, *few)
    offered = re.search(r"--phases \S+(?=, or)", str(caught.value))[0].split()
    assert offered == ["--phases", "gather,bandit"]
    said = printed_by("chimera.train", "--check", *offered, *models, *few)
    assert list(tmp_path.iterdir()) == []
    assert "nothing was started: gather, bandit can run" in said
    printed_by("chimera.train", "--name", "mine", *offered, *models, *few)
    events = list(Run.open("mine", tmp_path).events())
    assert [event["phase"] for event in events if event["event"] == "phase_finished"] == ["gather", "bandit"]
    decided = [event["policy"]["part"] for event in events if event["event"] in (WENT_LIVE, "rolled_back")]
    assert decided == ["choice"], json.dumps(events)[-2000:]
