"""Data or base weights that were changed after a run was made: every command that reads both refuses them by name."""

import shutil
from pathlib import Path

import pytest
from message_kit import refused

from chimera import ask, export, study, train
from chimera import eval as evaluation
from chimera.core.errors import RunError
from chimera.run.directory import Run
from chimera.run.inputs import changed_inputs, check_inputs, hash_inputs
from evaluation.verify.asked import AskedEvaluation, Evaluated
from training.configuration import load_config

FEW = ["gate.tasks=0", "data.validation_share=0.3", "data.test_share=0.3", "gather.tasks=6"]


def rows(flipped=False, inserted=False) -> str:
    labels = ("no", "yes", "yes") if flipped else ("yes", "no", "no")
    lines = [f"Does drug {number} help?,In {number} it fell.,{labels[number % 3]}" for number in range(30)]
    first = ["Does a new drug help?,It did.,yes"] if inserted else []
    return "\n".join(["question,context,label", *first, *lines, ""])


@pytest.fixture
def settings(tmp_path, serving_model):
    (tmp_path / "data.csv").write_text(rows())
    shutil.copytree(serving_model(), tmp_path / "base")
    return [f"data.path={tmp_path / 'data.csv'}", f"models.junior.path={tmp_path / 'base'}", *FEW]


@pytest.fixture
def run(settings, tmp_path):
    """A run of a study that has finished `gather` and was evaluated."""
    config = load_config(None, [*settings, f"runs_dir={tmp_path / 'study'}"])
    with Run.create("data0-seed0", config) as made:
        made.ledger("planned", phases=["gather"])
        made.ledger("phase_started", phase="gather", policy_versions={"junior": "base@0"})
        made.ledger("phase_finished", phase="gather")
        asked = AskedEvaluation.of("test", None, 1, None, config.data)
        Evaluated(asked, config.evaluation, {"time": "now"}, made.name, "report", {}).record(made)
    return made


def flipped_labels(folder: Path) -> str:
    (folder / "data.csv").write_text(rows(flipped=True))
    return f"data.path={folder / 'data.csv'}"


def swapped_weights(folder: Path) -> str:
    file = folder / "base" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    return f"models.junior.path={folder / 'base'}"


CHANGES = pytest.mark.parametrize("change", [flipped_labels, swapped_weights])


@pytest.mark.parametrize("command", ["eval", "eval of other data", "ask", "export", "resume", "study"])
@CHANGES
def test_a_command_refuses_changed_inputs_with_file_setting_and_remedy(run, settings, tmp_path, command, change):
    where, folder = f"runs_dir={run.path.parent}", tmp_path
    commands = {
        "eval": (evaluation.main, ["--run", run.name, where]),
        "eval of other data": (evaluation.main, ["--run", run.name, where, "data.seed=3"]),
        "ask": (ask.main, ["--task", "any", "--run", run.name, where]),
        "export": (export.main, [str(run.path), "--role", "Geneticist", "--out", str(tmp_path / "out")]),
        "resume": (train.main, ["--resume", "--name", run.name, where]),
        "study": (
            study.main,
            ["--name", "study", "--seeds", "1", "--phases", "gather", f"runs_dir={tmp_path}", *settings],
        ),
    }
    changed = change(folder)
    main, arguments = commands[command]
    with pytest.raises(RunError) as caught:
        main(arguments)
    assert str(caught.value).startswith(f"{changed} is not what the run was made with")
    assert "restore it, or make a new run" in str(caught.value)


@CHANGES
def test_a_verification_names_the_changed_file_and_ends_with_1(run, tmp_path, capsys, change):
    changed = change(tmp_path)
    report = run.path / "report"
    assert evaluation.main(["--verify", str(report), "--run", run.name, f"runs_dir={run.path.parent}"]) == 1
    assert f"refused: {changed} is not what the run was made with" in capsys.readouterr().out


def test_unchanged_and_moved_inputs_pass_and_another_path_is_another_input(run, tmp_path):
    own = run.config
    assert list(changed_inputs(run.events(), own)) == []
    (tmp_path / "data.csv").write_text(rows(inserted=True))
    other = own.model_copy(update={"data": own.data.model_copy(update={"path": str(tmp_path / "other.csv")})})
    assert list(changed_inputs(run.events(), own, other)) == []
    with refused(RunError, "data.path=", "hash", "restore it"):
        check_inputs(run.events(), own, own)
    (tmp_path / "data.csv").unlink()
    assert list(changed_inputs(run.events(), own)) == [], "what reads a missing file names it"


def test_a_run_is_continued_with_inputs_that_were_moved_and_not_with_changed_ones(settings, tmp_path):
    """On another machine they have other paths; that they are the same is seen by their hashes."""

    def config(data, model):
        paths = [f"data.path={data}", f"models.junior.path={model}", f"runs_dir={tmp_path / 'runs'}"]
        return load_config(None, [*settings, *paths])

    data, model = tmp_path / "data.csv", tmp_path / "base"
    Run.create("mine", config(data, model)).close()
    moved, other = data.rename(tmp_path / "moved.csv"), shutil.copytree(model, tmp_path / "other")
    with Run.create("mine", config(moved, other), resume=True) as run:
        heirs = {f"models.{name}.path" for name in ("junior", "supervisor", "senior", "refiner")}
        assert set(list(run.events())[-1]["changed"]) == {"data.path", *heirs}
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    with refused(RunError, "models.junior.path=", "other", "hash", "restore it"):
        Run.create("mine", config(moved, other), resume=True)
    moved.write_text(rows(flipped=True))
    with refused(RunError, "data.path=", "moved.csv", "hash", "restore it"):
        Run.create("mine", config(moved, model), resume=True)


def test_every_file_of_a_folder_of_data_counts(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.json").write_text("[1]")
    config = load_config(None, [f"data.path={tmp_path / 'data'}"])
    before = hash_inputs(config)
    (tmp_path / "data" / "train.json").write_text("[2]")
    assert hash_inputs(config)["data.path"] != before["data.path"]
