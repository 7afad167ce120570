"""`python -m chimera.train --check`: it refuses what the run itself would refuse, and makes nothing."""

import json
import shutil

import pytest
from message_kit import refused

from chimera.config.sections.bundled import NANO
from chimera.config.tree import load_config
from chimera.core.errors import ConfigError, RunError
from chimera.run.directory import Run
from chimera.serving.embedded.checkpoint import load_checkpoint
from chimera.train import main


@pytest.fixture
def check(tmp_path):
    def run(*arguments):
        return main(["--check", *arguments, f"runs_dir={tmp_path / 'runs'}"])

    return run


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(NANO, tmp_path / "model")


def test_a_name_that_no_run_can_have_is_refused_before_anything_else(check, tmp_path):
    with refused(RunError, "'../../x'", "cannot name a run"):
        check("--name", "../../x", "data.path=nofile.csv")
    assert not (tmp_path / "runs").exists()


def test_a_resumed_run_keeps_its_settings_in_the_check_too(check, tmp_path):
    Run.create("mine", load_config(None, [f"runs_dir={tmp_path / 'runs'}"])).close()
    with refused(RunError, "seed=0 (not 3)", "another name"):
        check("--resume", "--name", "mine", "seed=3")


def test_a_run_that_is_not_there_is_not_begun_by_resume(check, tmp_path):
    Run.create("disturbed", load_config(None, [f"runs_dir={tmp_path / 'runs'}"])).close()
    with refused(RunError, "'distrubed'", "'disturbed'"):
        check("--resume", "--name", "distrubed")
    assert not (tmp_path / "runs" / "distrubed").exists()


def test_a_name_that_a_run_has_is_refused(check, tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "notes.txt").touch()
    with refused(RunError, "'mine'", "choose another name"):
        check("--name", "mine")


@pytest.mark.parametrize("slot", ["junior", "judge"])
def test_a_folder_without_a_model_is_refused_as_the_run_does_it(check, slot, tmp_path):
    with pytest.raises(ConfigError) as caught:
        check(f"models.{slot}.kind=embedded", f"models.{slot}.path={tmp_path}")
    with pytest.raises(ConfigError) as of_run:
        load_checkpoint(str(tmp_path))
    assert str(caught.value) == str(of_run.value)
    assert f"{tmp_path / 'config.json'} is missing" in str(caught.value)


def without(name):
    return lambda folder: (folder / name).unlink()


def of_another_size(folder):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "intermediate_size": 8, "num_hidden_layers": 99}))


def cut(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])


@pytest.mark.parametrize("break_it", [without("tokenizer.json"), without("model.safetensors"), of_another_size, cut])
def test_a_broken_model_is_refused_as_the_run_does_it(check, model, break_it):
    assert check(f"models.junior.path={model}") == 0
    break_it(model)
    with pytest.raises(ConfigError) as caught:
        check(f"models.junior.path={model}")
    with pytest.raises(ConfigError) as of_run:
        load_checkpoint(str(model))
    assert str(caught.value) == str(of_run.value)


def test_weights_that_training_could_not_find_are_refused(check, model):
    (model / "model.safetensors").rename(model / "other.safetensors")
    assert check(f"models.judge.path={model}", "models.judge.kind=embedded") == 0
    with refused(ConfigError, "*.safetensors", "save_pretrained"):
        check(f"models.junior.path={model}")


def test_a_good_name_is_free_after_the_check(check, tmp_path, capsys):
    assert check("--name", "mine") == 0
    assert "nothing was started" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
