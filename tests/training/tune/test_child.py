"""The phase with its real child process, on the bundled model: what it learns, writes and reports."""

import asyncio
import json
import random
import shutil
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_kit import apart
from fake_bench import ADAPTER, FakeBench
from message_kit import refused
from peft import PeftModel
from record_kit import answered, spans_of

from chimera.config.roles import JUNIORS
from chimera.config.sections.bundled import NANO
from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.data.generated.tasks import generate
from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.serving.embedded.checkpoint import load_checkpoint, load_weights
from chimera.serving.embedded.protocol import parse_request
from chimera.serving.embedded.service import Service
from evaluation.traces.spans import write
from recipes.nano.transcripts import careful, junior
from training.algorithms.sft import Sft, choose
from training.bench.lab_bench import LabBench
from training.learning.base import PhasePlan
from training.learning.episodes import Episode
from training.learning.fine_tuning import SftSettings
from training.tune import child as sft_child
from training.tune import fine_tune as tuning
from training.tune.process import TuningProcess
from training.tune.render import Renderer

pytestmark = pytest.mark.whole

ROLLOUTS = 8
EXAMPLES = ROLLOUTS // 2 * len(JUNIORS)
"""Of the good half of the rollouts, each junior's conversation."""
SETTINGS = {
    "min_examples": 8,
    "epochs": 2,
    "batch_size": EXAMPLES,
    "micro_batch_size": 4,
    "lr": 1e-3,
    "warmup_ratio": 0,
    "quantile": 0.5,
}


def calls_of(talk, name):
    """The requests and responses that made up a conversation."""
    tools = [{"type": "function", "function": {"name": tool}} for tool in talk.tools]
    for position, message in enumerate(talk.messages):
        if message["role"] == "assistant":
            choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [1]}
            yield (
                {"model": "junior", "messages": list(talk.messages[:position]), "tools": tools},
                {"id": f"{name}-{position}", "choices": [choice], "weights_version": "nano@0"},
            )


def rollouts(run):
    """Rollouts, each with all juniors' conversations; only every second is good."""
    rng = random.Random(0)
    items = generate(ROLLOUTS + 1, seed=3)
    records = []
    for number, item in enumerate(items[:ROLLOUTS]):
        name, trace = f"ro-{number}", f"traces/gather/ro-{number}.jsonl.gz"
        talks = {role: junior(item, items[ROLLOUTS], role, careful(item), rng) for role in JUNIORS}
        visits = [(role, "junior", list(calls_of(talk, f"{name}-{role}"))) for role, talk in talks.items()]
        write(spans_of(name, visits), run.path / trace)
        fields = {"reward": 2.0 if number % 2 else 1.0, "seed": 1, "label": item.task.label, "trace": trace}
        records.append(answered(name, item.task.id, item.task.label, **fields))
    return records


PLAN = PhasePlan("sft", "sft", JUNIORS, ("junior",))


async def learn(lab):
    return await Sft().learn(PLAN, lab.settings, lab)


def episode_of(lab, record):
    return Episode(record, None, lab.run.path, ADAPTER)


def spec_of(lab, folder):
    return tuning.specify(lab.settings, lab.run.path / "phases" / "sft" / tuning.EXAMPLES, NANO, folder, 0)


class FakeLab(FakeBench):
    """A lab whose rollouts are over."""

    def __init__(self, folder):
        config = Config.model_validate({"runs_dir": str(folder)})
        run = Run.create("tried", config)
        super().__init__(
            run, config=config, versions={"junior": "nano@0"}, weights={"junior": NANO}, earlier=rollouts(run)
        )
        self.settings = SftSettings(**SETTINGS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A lab, and what the phase came to in it."""
    lab = FakeLab(tmp_path_factory.mktemp("runs"))
    yield lab, asyncio.run(learn(lab))
    lab.run.close()


def examples(lab):
    return [json.loads(line) for line in (lab.run.path / "phases" / "sft" / tuning.EXAMPLES).open()]


def trained_here(spec, progress=None):
    """What the child reports of a training in this process."""
    progress = progress or StringIO()
    sft_child.train(spec, progress)
    return [json.loads(line) for line in progress.getvalue().splitlines()]


def model_of(folder):
    from transformers.models.qwen2 import Qwen2ForCausalLM

    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def loss_of(model, rows):
    """Mean negative log-likelihood of the learned tokens, by definition; and that of all tokens."""
    learned, everything = [], []
    for row in rows:
        ids = torch.tensor(row["input_ids"])
        with torch.no_grad():
            log_probs = model(ids[None]).logits[0, :-1].log_softmax(-1)
        taken = log_probs.gather(1, ids[1:, None])[:, 0]
        everything += taken.tolist()
        learned += taken[torch.tensor(row["labels"])[1:] != -100].tolist()
    return -np.mean(learned), -np.mean(everything)


def test_the_first_loss_is_that_of_the_assistants_tokens_alone(trained):
    lab, _ = trained
    ours, of_all = loss_of(model_of(NANO), examples(lab))
    phase, step, figures = lab.logged[0]
    assert (phase, step) == ("sft", 1)
    # One step sees all examples; the processor may compute in bfloat16.
    assert figures["loss"] == pytest.approx(ours, rel=0.03)
    assert of_all > 5 * ours


def test_the_loss_has_no_gradient_at_any_other_token(trained):
    lab, _ = trained
    row = examples(lab)[0]
    model = model_of(NANO)
    logits = model(torch.tensor([row["input_ids"]])).logits.detach().requires_grad_()
    model.loss_function(logits=logits, labels=torch.tensor([row["labels"]]), vocab_size=1536).backward()
    # The logits at a position are about the next token.
    assert (logits.grad[0].abs().sum(-1) > 0).tolist() == [label != -100 for label in row["labels"][1:]] + [False]


def test_good_rollouts_are_learned_and_the_model_fits_them_better(trained):
    lab, result = trained
    rows = examples(lab)
    good = {record.task_id for record in lab.earlier if record.reward == 2.0}
    assert {row["task_id"] for row in rows} == good
    assert {row["role"] for row in rows} == set(JUNIORS)
    assert len(rows) == result.figures["selected"] == EXAMPLES
    assert lab.computed == 1
    folder = lab.run.path / result.policy.folder
    before, _ = loss_of(model_of(NANO), rows)
    after, _ = loss_of(model_of(folder), rows)
    assert after < before


def test_the_saved_folder_is_a_whole_model_that_the_server_computes_like_transformers(trained):
    lab, result = trained
    assert result.policy == Policy("weights", "junior", "junior@sft", "models/junior/sft")
    folder = lab.run.path / result.policy.folder
    checkpoint, base = load_checkpoint(str(folder)), load_checkpoint("nano")
    assert (checkpoint.template, checkpoint.eos, checkpoint.shape) == (base.template, base.eos, base.shape)
    assert checkpoint.tokenizer.to_str() == base.tokenizer.to_str()
    for copied in ("generation_config.json", "chat_template.jinja", "tokenizer_config.json"):
        assert (folder / copied).read_bytes() == (NANO / copied).read_bytes()
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["sft"]

    service = Service({"junior": ModelConfig(path="nano")}, ServingConfig(slots=2))
    try:
        assert service.load_weights("junior", folder, "junior@sft") == "junior@sft"
        body = {
            "model": "junior", "messages": [{"role": "user", "content": "Is pain lower?"}], "max_tokens": 12,
            "temperature": 0, "logprobs": True, "return_token_ids": True,
        }  # fmt: skip
        answer = asyncio.run(service.complete(parse_request(body)))
    finally:
        service.close()
    choice = answer["choices"][0]
    prompt, ids = answer["prompt_token_ids"], choice["token_ids"]
    with torch.no_grad():
        logits = model_of(folder)(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    served = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert served == pytest.approx(expected.tolist(), abs=1e-4)


def test_every_step_is_shown_and_logged(trained):
    lab, result = trained
    assert [work[:3] for work in lab.view.works] == [("sft", 1, 2), ("sft", 2, 2)]
    assert [step for _, step, _ in lab.logged] == [1, 2]
    assert lab.logged[0][2]["lr"] == pytest.approx(1e-3)
    assert result.figures["steps"] == 2
    assert result.figures["credited"] == result.figures["of_good_rollouts"] == EXAMPLES


def test_an_only_step_changes_the_weights_although_the_rate_rises_from_0(trained, tmp_path):
    lab, _ = trained
    reports = trained_here(replace(spec_of(lab, tmp_path / "one"), epochs=1.0, warmup_ratio=0.5))
    assert reports[-1]["steps"] == 1
    after, _ = loss_of(model_of(tmp_path / "one"), examples(lab))
    before, _ = loss_of(model_of(NANO), examples(lab))
    assert after < before


async def test_a_finished_model_is_kept_and_another_seed_or_set_of_examples_is_not(trained):
    lab, result = trained
    folder = lab.run.path / result.policy.folder
    written = (folder / "model.safetensors").stat().st_mtime_ns
    again = await learn(lab)
    assert again == result
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    spec = spec_of(lab, folder)
    described = tuning.fingerprint(spec, "nano@0")
    assert tuning.finished(folder, described) == result.figures
    for changed in (replace(spec, seed=1), replace(spec, lr=1e-4)):
        assert tuning.finished(folder, tuning.fingerprint(changed, "nano@0")) is None
    assert tuning.finished(folder, tuning.fingerprint(spec, "another@0")) is None
    other = lab.run.path / "other.jsonl"
    other.write_text((lab.run.path / "phases" / "sft" / tuning.EXAMPLES).read_text().replace("1", "2", 1))
    assert tuning.finished(folder, tuning.fingerprint(replace(spec, dataset=str(other)), "nano@0")) is None


async def test_a_finished_model_that_was_damaged_is_named_and_not_kept(trained):
    lab, result = trained
    file = lab.run.path / result.policy.folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with refused(RunError, "model.safetensors", "remove the folder"):
        await learn(lab)
    file.write_bytes(whole)


async def test_a_phase_that_is_done_again_learns_from_what_it_had_the_first_time(tmp_path):
    """Rollouts of later phases are answers of what was learned from it; they are better, and must not be imitated."""
    lab = FakeLab(tmp_path)
    later = [replace(one, phase="ppo", repeat=1, reward=9.0) for one in lab.earlier]

    def bench(lab):
        def recorded(phases):
            return [episode_of(lab, one) for one in lab.earlier if one.phase in phases]

        shared = {"config": lab.config, "dataset": None, "run": lab.run, "view": lab.view, "metrics": lab.metrics}
        live = SimpleNamespace(weights=lab.weights)
        return LabBench(SimpleNamespace(**shared, recorded=recorded, live=live, policy_versions=lab.versions), "sft")

    render = Renderer(NANO, lab.config.society.max_tool_calls).rows

    async def chosen(lab):
        return (await choose(PLAN, lab.settings, bench(lab), render)).examples

    for phase in ("gather", "sft"):
        lab.run.ledger("phase_started", phase=phase)
    first = await chosen(lab)
    lab.earlier += later
    for phase in ("ppo", "sft", "bandit"):
        lab.run.ledger("phase_started", phase=phase)
    again = await chosen(lab)
    assert {example.candidate.record.phase for example in again} == {"gather"}
    assert again == first
    lab.run.close()
    other = FakeLab(tmp_path / "other")
    other.earlier += later
    for phase in ("gather", "ppo", "sft"):
        other.run.ledger("phase_started", phase=phase)
    assert {example.candidate.record.phase for example in await chosen(other)} == {"ppo"}
    other.run.close()


async def test_conversations_of_other_weights_are_left_out_and_counted(tmp_path):
    lab = FakeLab(tmp_path)
    lab.versions = {"junior": "another@0"}
    with refused(RunError, "sft", "0 conversations"):
        await learn(lab)
    lab.run.close()


async def test_a_model_without_its_manifest_is_made_again_to_the_last_bit(trained):
    lab, result = trained
    folder = lab.run.path / result.policy.folder
    first = load_weights(folder, load_checkpoint("nano").shape)
    (folder / tuning.MANIFEST).unlink()
    draft = folder.with_name(".sft.999")
    draft.mkdir()
    again = await learn(lab)
    assert again.figures["loss"] == result.figures["loss"]
    second = load_weights(folder, load_checkpoint("nano").shape)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not draft.exists()


@pytest.mark.parametrize("rank", [0, 4])
def test_what_was_killed_goes_on_from_its_checkpoint_to_the_same_weights_to_the_last_bit(
    trained, tmp_path, monkeypatch, rank
):
    class Progress(StringIO):
        def write(self, text):
            if '"step": 5' in text and killed:
                raise KeyboardInterrupt
            return super().write(text)

    def train(name):
        *reports, end = trained_here(replace(spec, out=str(tmp_path / name)), Progress())
        steps = [report["step"] for report in reports if "step" in report]
        return load_weights(tmp_path / name, load_checkpoint("nano").shape), end, steps

    lab, _ = trained
    monkeypatch.setattr(sft_child, "CHECKPOINT_S", 0)
    shutil.copy(lab.run.path / "phases" / "sft" / tuning.EXAMPLES, tmp_path)
    spec = replace(spec_of(lab, tmp_path), dataset=str(tmp_path / tuning.EXAMPLES), batch_size=4, lora_rank=rank)
    killed = True
    with pytest.raises(KeyboardInterrupt):
        train("model")
    killed = False
    weights, end, steps = train("model")
    whole, whole_end, all_steps = train("whole")
    assert (steps, all_steps) == ([5, 6], [1, 2, 3, 4, 5, 6])
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
    assert (end["loss"], end["steps"]) == (whole_end["loss"], 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([tuning.EXAMPLES, "model", "whole"])


def test_lora_adapters_are_merged_into_the_weights(trained, tmp_path):
    lab, _ = trained
    reports = trained_here(replace(spec_of(lab, tmp_path / "merged"), lora_rank=4, lora_alpha=8, lr=1e-2))
    assert [report["event"] for report in reports] == ["begin", "step", "step", "end"]
    shape = load_checkpoint("nano").shape
    base, merged = load_weights(NANO, shape), load_weights(tmp_path / "merged", shape)
    assert base.keys() == merged.keys()
    for name, weight in base.items():
        change = merged[name] - weight
        if any(f".{target}.weight" in name for target in sft_child.LORA_TARGETS):
            assert 0 < torch.linalg.matrix_rank(change, rtol=1e-3) <= 4
        else:
            assert not change.any()
    assert loss_of(model_of(tmp_path / "merged"), examples(lab)) < loss_of(model_of(NANO), examples(lab))
    adapted = PeftModel.from_pretrained(model_of(NANO), tmp_path / "merged" / "adapter").merge_and_unload()
    for name, weight in adapted.state_dict().items():
        assert torch.allclose(weight, merged.get(name, weight), atol=1e-6), name


async def test_two_ranks_learn_what_one_learns(trained, tmp_path):
    """A batch of five in micro-batches of one: three rows for one rank, two and a spare one for the other."""
    lab, _ = trained
    spec = replace(spec_of(lab, tmp_path / "one"), batch_size=5, micro_batch_size=1, epochs=1, lr=1e-4)
    async with TuningProcess(tmp_path / "one.log", "never") as process:
        expected = [report async for report in process.train(spec)]
    async with TuningProcess(tmp_path / "two.log", "never", ranks=2) as process:
        assert len(set(process.pids)) == 2
        found = [report async for report in process.train(replace(spec, out=str(tmp_path / "two")))]
    for figure in ("loss", "lr", "grad_norm", "steps", "total"):  # TRL takes the others' mean over forward passes.
        told = [[report.get(figure, 0) for report in reports] for reports in (found, expected)]
        assert told[0] == pytest.approx(told[1], rel=1e-4), figure
    assert apart(*(load_weights(tmp_path / name, load_checkpoint("nano").shape) for name in ("two", "one"))) < 1e-5
