"""The gradient of one call, computed again, beside that of VeRL's engine, which had no other call in its batch."""

from contextlib import closing
from functools import partial

import pytest

from evaluation.traces.token_records import read_tokens, tokens_file
from training.learning.experience import Call
from training.ppo.engine.batch import Sample
from training.ppo.engine.update import PpoEngine
from training.ppo.gradients import CallGradients
from training.ppo.tokens import record_update
from training.ppo.verl.settings import PpoSettings

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
PROMPT, RESPONSE = (1, 2, 3), (5, 6, 7, 9)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_of_the_only_call_is_the_updates(serving_model, tmp_path, temperature):
    folder = serving_model(seed=3)
    settings = PpoSettings(adv_estimator="gae", critic_warmup=0, lr=1e-3)
    call = Call("ro-1", "HypothesisRefiner", 1, 1, 1, "r-1", PROMPT, RESPONSE, "v7", 0.0, True)
    with closing(PpoEngine(folder, settings, seed=0, total_steps=2, temperature=temperature)) as engine:
        record = partial(record_update, tmp_path, "ppo", 1, settings)
        metrics = engine.update([Sample(PROMPT, RESPONSE, 1.0, "g", "t", call)], 1, record)
        engine.export(tmp_path / "after")
    (learned,) = read_tokens(tokens_file(tmp_path, "ppo", 1))
    gradients = CallGradients(temperature)
    before = gradients.of(folder, learned, PROMPT, RESPONSE)
    assert learned.objective.weight == pytest.approx(1 / len(RESPONSE))
    assert before.by_weights == pytest.approx(metrics["actor/grad_norm"], rel=1e-4)
    assert before.by_weights == pytest.approx(learned.objective.grad_norm, rel=1e-4)
    assert len(before.by_logits) == len(RESPONSE)
    after = gradients.of(tmp_path / "after", learned, PROMPT, RESPONSE)
    assert after.by_weights != pytest.approx(before.by_weights, rel=1e-3)
    with pytest.raises(ValueError, match="of another response"):
        gradients.of(folder, learned, PROMPT, RESPONSE[:2])
