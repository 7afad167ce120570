"""The baseline that learned labels alone: its prompt, and a run that is evaluated and asked with it."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from message_kit import refused

from chimera import ask
from chimera import eval as evaluation
from chimera.config.sections.bundled import NANO
from chimera.core.errors import ModelError, RunError
from chimera.core.types import Option, ResearchTask, Section
from chimera.run.directory import Run
from chimera.run.jsonl import read_lines
from evaluation.baselines.labels import label_answer, label_prompt
from training.tune.labels import label_lines

TASK = ResearchTask("1", "Does zinc help?", (Section("METHODS", "We gave zinc."),), "no", "generated", "It did not.")
SMALL = """
data: {size: 60}
rollouts: {concurrency: 2, timeout_s: 6000}
gate: {tasks: 0}
wandb: {mode: disabled}
evaluation: {labels: true, self_consistency: false}
pipeline:
  gather: {tasks: 4}
  sft: {roles: juniors, min_examples: 1, epochs: 2, batch_size: 8}
"""


class Broken:
    async def choices(self, *_, **__):
        raise ModelError("no room")


def test_its_prompt_holds_abstract_question_and_options_and_neither_label_nor_conclusion():
    (message,) = label_prompt(TASK)
    assert "METHODS: We gave zinc." in message["content"]
    assert message["content"].endswith("Does zinc help?\nAnswer with yes, no or maybe only.")
    assert "It did not" not in message["content"]
    options = (Option("A", "Zinc"), Option("B", "Iron"))
    (message,) = label_prompt(ResearchTask("2", "Which?", (), "A", "own", "", options=options))
    assert message["content"].endswith("Which?\nA: Zinc\nB: Iron\nAnswer with A or B only.")


async def test_an_answer_that_the_model_did_not_give_counts_as_none():
    answer = await label_answer(Broken(), TASK, key="junior")
    assert (answer.answer, answer.calls) == (None, 1)
    assert "no room" in answer.error


def test_tasks_that_are_too_long_are_left_out_and_named_if_none_is_left():
    longer = replace(TASK, id="2", goal="Does zinc help " + "very " * 200 + "much?")
    (line,) = label_lines(NANO, [TASK, longer], 200)
    assert line["task_id"] == "1"
    with refused(RunError, "max_length=9", f"{len(line['input_ids'])} tokens", "evaluation.labels=false"):
        label_lines(NANO, [TASK, longer], 9)


@pytest.mark.whole
def test_a_run_s_base_learns_the_labels_once_and_answers_every_task(tmp_path, capsys):
    (tmp_path / "small.yaml").write_text(SMALL)
    train = [sys.executable, "-m", "chimera.train", "--config", "small.yaml", "--name", "small", f"runs_dir={tmp_path}"]
    done = subprocess.run(train, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    def chimera(command, *arguments):
        capsys.readouterr()
        assert not command.main([*arguments, f"runs_dir={tmp_path}"])
        return capsys.readouterr().out

    evaluate = ("--run", "small", "--stages", "final", "--limit", "4")
    chimera(evaluation, *evaluate)
    run = Run(tmp_path / "small")
    rows = [json.loads(line) for line in (run.path / "evaluation/labels.jsonl").read_text().splitlines()]
    tested = {task["id"] for task in report(run)["plan"]["tasks"]}
    assert rows
    assert not {row["task_id"] for row in rows} & tested
    assert report(run)["baselines"]["labels"]["answered"] == 4
    assert "labels" in report(run)["standing"]
    asked = chimera(ask, "--run", "small", "--task", rows[0]["task_id"])
    right = report(run)["stages"]["final"]["alignment"]["mean"]
    assert re.search(rf"measured +{100 * right:.1f} % right .* of 4 tasks", asked)
    weights = run.path / "models/junior/labels/model.safetensors"
    learned = weights.stat().st_mtime_ns
    said = chimera(evaluation, *evaluate, "--fresh")
    assert weights.stat().st_mtime_ns == learned, said
    assert sum(row["baseline"] == "labels" for row in read_lines(run.path / "evaluation/test/baselines.jsonl")) == 8
    assert "is the same" in chimera(evaluation, "--verify", str(run.path / "report"))


def report(run):
    return json.loads((run.path / "report/report.json").read_text())
