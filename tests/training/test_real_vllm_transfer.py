"""Weights that are sent to the real vLLM on a processor; skipped as `test_real_vllm` is.

CHIMERA_VLLM_PYTHON=/path/to/bin/python python -m pytest tests/training/test_real_vllm_transfer.py
"""

import shutil

import test_real_vllm as real

from chimera.serving.vllm.engine import RECEIVER, RECEIVER_CLASS

pytestmark = real.pytestmark

ELSEWHERE = """
models:
  refiner: {{like: senior, kind: vllm, path: "{folder}", urls: ["{url}"], api_key_env: OPENAI_API_KEY, transfer: gloo,
    max_tokens: 256, timeout_s: 600}}
pipeline:
  gather: {{tasks: 8}}
  ppo: {{roles: [HypothesisRefiner], start: null, states: 6, n: 4, steps: 1, reward: {{alignment: 1.0}}}}
  again: {{algorithm: gather, tasks: 4}}
"""


def test_a_server_that_runs_already_and_shares_no_folder_gets_weights_sent(tmp_path, monkeypatch):
    """It has the receiver's one file, as on a machine without Chimera; the folder that it was started with is gone."""
    folder = real.untied(tmp_path / "nano")
    other = tmp_path / "another-machine"
    shutil.copytree(folder, other / "model")
    shutil.copy(RECEIVER / "chimera_receiver.py", other)
    monkeypatch.setenv("OPENAI_API_KEY", real.KEY)
    monkeypatch.setenv("PYTHONPATH", str(other))
    monkeypatch.setattr(real, "USUAL", (*real.USUAL, "--worker-extension-cls", RECEIVER_CLASS))
    with real.running_server(other / "model", tmp_path / "server.log") as url:
        monkeypatch.delenv("PYTHONPATH")
        shutil.rmtree(other / "model")
        _, _, publishes = real.played(tmp_path, real.PATIENT + ELSEWHERE.format(folder=folder, url=url))
    assert {one["transfer"] for one in publishes} == {"gloo"}
