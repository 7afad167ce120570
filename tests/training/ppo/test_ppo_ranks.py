"""The PPO phase with two ranks: as with one, also when a rank dies, which ends the run, and one rank goes on."""

import asyncio
import signal

import psutil
import pytest
from engine_kit import apart
from message_kit import refused
from test_ppo import MadeUpLab, learn, wait_for_engines

from chimera.core.errors import RunError
from chimera.serving.embedded.checkpoint import load_checkpoint
from evaluation.traces.token_records import read_tokens, tokens_file

pytestmark = pytest.mark.whole

SETTINGS = {"lr": 1e-3, "adv_estimator": "rloo"}


def ranks_here():
    """The rank processes of this test."""
    children = psutil.Process().children(recursive=True)
    return [one for one in children if "training.ppo.ranks.rank" in " ".join(one.cmdline())]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_phase_with_ranks_that_die_ends_as_one_without(serving_model, tmp_path):
    straight = MadeUpLab(tmp_path / "one", serving_model(), **SETTINGS)
    result = asyncio.run(learn(straight))
    wait_for_engines()

    stopped = MadeUpLab(tmp_path / "two", serving_model(), ranks=2, shards="fsdp", **SETTINGS)

    def disturb(policy):
        if policy.version == "senior@ppo-2":
            ranks_here()[-1].send_signal(signal.SIGKILL)

    stopped.on_live = disturb
    with refused(RunError, ("rank 1 of 2", "SIGKILL", "--resume"), lines=None):
        asyncio.run(learn(stopped))
    wait_for_engines()
    assert ranks_here() == []
    started = [event for event in stopped.run.events() if event["event"] == "ranks_started"]
    assert [(event["phase"], event["ranks"], event["shards"]) for event in started] == [("ppo", 2, "fsdp")]

    resumed = MadeUpLab(tmp_path / "two", serving_model(), **SETTINGS)
    again = asyncio.run(learn(resumed))
    wait_for_engines()
    assert any("continues after step 1" in line for line in resumed.view.lines)
    assert again.figures == result.figures
    asked = [one for lab in (stopped, resumed) for _, one in lab.asked]
    assert len(asked) == len({(one.task.id, one.repeat) for one in asked}) == 18  # No rollout was made twice.
    for step in (1, 2, 3):
        ours, theirs = (read_tokens(tokens_file(lab.run.path, "ppo", step)) for lab in (resumed, straight))
        assert [record.response_id for record in ours] == [record.response_id for record in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.advantages == pytest.approx(other.advantages, abs=1e-5)
            assert one.old_log_probs == pytest.approx(other.old_log_probs, abs=1e-4)
            assert one.new_log_probs == pytest.approx(other.new_log_probs, abs=1e-4)
    ends = [load_checkpoint(str(lab.run.path / again.policy.folder)).weights for lab in (resumed, straight)]
    assert apart(*ends) < 1e-5
