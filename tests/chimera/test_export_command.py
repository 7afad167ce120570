"""`python -m chimera export`: the folder loads elsewhere as what the run trained, and says what it is."""

import json

import pytest
from embedded_kit import embedded, log_probs
from lab_kit import choice_goes_live
from message_kit import refused

from agents.context import Candidates
from agents.policies.bandit import load_policy
from chimera.config.roles import JUNIORS
from chimera.config.sections.models import ModelConfig
from chimera.core.errors import ConfigError, RunError
from chimera.export import generation_settings, licence_of, main
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE, Policy
from chimera.run.seals import seal
from chimera.serving.embedded.protocol import parse_request
from training.configuration import load_config
from training.model.weights import copy_model

MESSAGES = [{"role": "user", "content": "the rate was lower, was it?"}]
FIGURES = {
    "before": 0.5, "after": 0.75, "difference": 0.25, "low": 0.05, "high": 0.4, "n": 40, "verdict": "better"
}  # fmt: skip


@pytest.fixture
def trained(tmp_path, serving_model):
    """A run whose juniors, refiner and supervisor have learned."""
    base = str(serving_model(seed=0))
    settings = [f"models.junior.path={base}", f"runs_dir={tmp_path}", "models.junior.temperature=0.7"]
    config = load_config(None, [*settings, "ppo.lora_rank=4", "data.path=mine.csv"])
    with Run.create("mine", config) as run:
        for slot, name, phase in (("junior", "sft", "sft"), ("refiner", "ppo-2", "ppo")):
            policy = Policy.made("weights", slot, name)
            copy_model(serving_model(seed=len(name)), run.path / policy.folder)
            run.ledger(WENT_LIVE, phase=phase, policy=policy.dump(), artifacts=[policy.folder])
        choice_goes_live(run)
    return run


def exported(run, role, out):
    assert main([str(run.path), "--role", role, "--out", str(out)]) is None
    return out


def report(run, comparisons, stages=("base", "sft", "ppo")):
    """Give the run a report with these comparisons, sealed as the evaluation does."""
    sequence = [{"name": name, "own_name": name, "title": name, "kind": "sequence"} for name in stages]
    plan = {"tasks": [{}] * 40, "split": "test", "stages": sequence, "data": "your data, mine.csv, seed 0"}
    found = {"plan": plan, "settings": {"confidence": 0.95}, "comparisons": comparisons}
    with run.own() as owned:
        (run.path / "report").mkdir()
        (run.path / "report" / "report.json").write_text(json.dumps(found))
        seal(owned, "report")


async def test_an_export_is_the_trained_model_for_transformers_and_for_our_server(trained, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = exported(trained, "HypothesisRefiner", tmp_path / "out")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    with embedded(folder, slots=1) as service:
        asked = {"model": "junior", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
        answer = await service.complete(parse_request({**asked, "logprobs": True, "return_token_ids": True}))
    (choice,) = answer["choices"]
    assert answer["prompt_token_ids"] == list(prompt)
    scores, expected = log_probs(model, answer, choice)
    assert scores.argmax(-1).tolist() == choice["token_ids"]
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == pytest.approx(expected.tolist(), abs=1e-4)
    original = AutoModelForCausalLM.from_pretrained(trained.path / "models" / "refiner" / "ppo-2")
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in original.state_dict().items())


def test_the_folder_says_what_it_is(trained, tmp_path):
    folder = exported(trained, "HypothesisRefiner", tmp_path / "new" / "out")
    names = {file.name for file in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} < names
    assert not list(folder.parent.glob(".*"))
    card = (folder / "README.md").read_text()
    assert "`refiner@ppo-2` of the run `mine`" in card
    assert (
        "`ppo` (phase `ppo`), LoRA of rank 4, merged into the weights, beginning with the weights of 'junior'" in card
    )
    assert "not measured: the run has no report" in card
    assert "license: other" in card
    assert f"python -m chimera export {trained.path} --role HypothesisRefiner --out {folder}" in card
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["temperature"], generation["max_new_tokens"]) == (0.3, 768)
    role = json.loads((folder / "role.json").read_text())
    assert role["prompt"].startswith("You are the HypothesisRefiner.")
    assert role["response_format"]["json_schema"]["schema"]["properties"]["answer"]["enum"] == ["yes", "no", "maybe"]
    assert json.loads((folder / "chimera.json").read_text())["version"] == "refiner@ppo-2"


def test_the_gain_of_the_stage_is_that_of_the_report(trained, tmp_path):
    lower = {**FIGURES, "difference": -0.1, "low": None, "high": None, "verdict": None}
    pairs = {"base:sft": {"alignment": FIGURES}, "sft:ppo": {"reward": lower}, "base:ppo": {"alignment": lower}}
    report(trained, pairs)
    card = (exported(trained, "Geneticist", tmp_path / "a") / "README.md").read_text()
    assert "Paired on 40 test tasks, with 95 % intervals" in card
    shown = "| after sft, beside base | answers right | 50.0 % | 75.0 % | +25.0 points [+5.0, +40.0] | 40 | better |"
    assert shown in card
    assert "plays | Geneticist, Pharmacologist, Neurologist |" in card
    card = (exported(trained, "HypothesisRefiner", tmp_path / "b") / "README.md").read_text()
    assert "| after ppo, beside sft | reward | 0.500 | 0.750 | -0.100 no interval | 40 | – |" in card
    assert "| the whole run, beside base | answers right |" in card
    assert "+25.0" not in card


def test_a_report_without_the_stage_says_that_its_gain_is_not_measured(trained, tmp_path):
    report(trained, {"base:ppo": {"alignment": FIGURES}}, stages=("base", "ppo"))
    card = (exported(trained, "Geneticist", tmp_path / "out") / "README.md").read_text()
    assert "The report has no stage of this policy, so its own gain is not measured." in card


def test_a_report_that_was_changed_is_refused(trained, tmp_path):
    report(trained, {"base:sft": {"alignment": FIGURES}})
    file = trained.path / "report" / "report.json"
    file.write_text(file.read_text().replace("0.75", "0.95"))
    with refused(RunError, "report/report.json", "evaluate the run again"):
        exported(trained, "Geneticist", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_exported_choice_is_the_learned_one(trained, tmp_path, society_kit):
    folder = exported(trained, "Supervisor", tmp_path / "out")
    hypotheses = [{**society_kit.answers[name], "author": name} for name in JUNIORS]
    offered = Candidates("Does the drug lower the rate?", hypotheses, ())
    own = load_policy(trained.path / "models" / "Supervisor" / "bandit").probabilities(offered, greedy=True)
    assert (load_policy(folder).probabilities(offered, greedy=True) == own).all()
    card = (folder / "README.md").read_text()
    assert "This folder holds no language model." in card
    assert "| plays | Supervisor |" in card


def test_a_damaged_file_is_named_and_nothing_is_written(trained, tmp_path):
    file = trained.path / "models" / "junior" / "sft" / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    with refused(RunError, "models/junior/sft", "hash", "restore it"):
        exported(trained, "Neurologist", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_left_alone(trained, tmp_path):
    (tmp_path / "out").mkdir()
    exported(trained, "Geneticist", tmp_path / "out")
    before = {file: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    with refused(ConfigError, "--out", tmp_path / "out", "name a new folder"):
        exported(trained, "HypothesisRefiner", tmp_path / "out")
    assert before == {file: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    with refused(ConfigError, "--out", "README.md", "name a new folder"):
        exported(trained, "Geneticist", tmp_path / "out" / "README.md")


def test_a_role_that_learned_nothing_is_refused_in_words(trained, tmp_path):
    learned = "Geneticist, HypothesisRefiner, Neurologist, Pharmacologist, Supervisor"
    with refused(RunError, "PeerReviewer", "models.board", learned):
        exported(trained, "PeerReviewer", tmp_path / "out")
    with refused(ConfigError, "--role Refiner", "'HypothesisRefiner'"):
        exported(trained, "Refiner", tmp_path / "out")


def test_the_licence_is_that_of_the_base_model(tmp_path):
    assert licence_of("nano") == "mit"
    (tmp_path / "README.md").write_text('---\nlicense: "apache-2.0"\n---\n')
    assert licence_of(str(tmp_path)) == "apache-2.0"
    assert licence_of("somebody/model") is None


def test_greedy_sampling_stays_greedy(tmp_path, serving_model):
    model = ModelConfig(path=str(serving_model()), temperature=0.0, max_tokens=9)
    assert generation_settings(tmp_path / "none.json", model, 0.3) == {"do_sample": False, "max_new_tokens": 9}
    assert generation_settings(tmp_path / "none.json", ModelConfig(temperature=0.2), 0.3)["temperature"] == 0.2
    assert generation_settings(tmp_path / "none.json", ModelConfig(temperature=0.7), None)["temperature"] == 0.7
    sampled = generation_settings(tmp_path / "none.json", ModelConfig(extra_body={"min_p": 0.1, "seed": None}), None)
    assert [sampled.get(name) for name in ("top_p", "min_p", "seed")] == [1.0, 0.1, None]


def test_the_default_folder_is_named_after_run_and_role(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["mine", "--role", "Geneticist", "--runs-dir", str(tmp_path)]) is None
    assert (tmp_path / "mine-Geneticist" / "model.safetensors").is_file()
