"""A run that somebody else sent: its configuration names code in every place that can, and no command runs it.

The run lies in `runs/evil` of the current folder, which is on Python's path, as `python -m` puts it there; the code is
`runs/evil/payload.py`, whose first line leaves a file behind.
"""

import importlib
import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from lab_kit import choice_goes_live
from message_kit import refused
from starlette.testclient import TestClient

from chimera import ask, export, study, trace, train
from chimera import eval as evaluation_command
from chimera.config.sections.models import ServingConfig
from chimera.core.errors import ChimeraError, ConfigError, RunError
from chimera.core.imports import is_installed
from chimera.data.tasks import load
from chimera.run.directory import Run
from chimera.run.seals import seal
from chimera.serving.embedded.checkpoint import load_checkpoint
from chimera.serving.embedded.completion import TextSide
from evaluation.conduct.kept import Kept
from evaluation.view.app import make_app

MODULE = "runs.evil.payload"
PROGRAM = [sys.executable, "runs/evil/payload.py"]
TASK = "generated-0-5"
OUTSIDE = "the text of a file outside of the run"
VIEW_KEY, VIEW_PORT = "a-key-of-this-test", 8765

MINE = {"roles": ["juniors"], "epochs": 3, "reward": {"alignment": 1.0}, "layers": {}}
"""Settings of an algorithm of somebody's own."""
VLLM = {"kind": "vllm", "path": "nano", "python": "runs/evil/payload.sh", "args": ["--enforce-eager"]}
PLACES = {
    "pipeline.mine.algorithm": ({"pipeline": {"mine": {"algorithm": f"{MODULE}:Evil", **MINE}}}, f"{MODULE}:Evil"),
    "pipeline.ppo.verl.optim.optimizer_impl": (
        {"pipeline": {"ppo": {"verl": {"optim": {"optimizer_impl": MODULE}}}}},
        MODULE,
    ),
    "roles.Geneticist.tools": ({"roles": {"Geneticist": {"tools": [f"{MODULE}:evil"]}}}, f"{MODULE}:evil"),
    "tools.mcp.lab.command": (
        {"roles": {"Neurologist": {"tools": ["mcp:lab/dose"]}}, "tools": {"mcp": {"lab": {"command": PROGRAM}}}},
        shlex.join(PROGRAM),
    ),
    "models.junior.python": ({"models": {"junior": VLLM}}, "runs/evil/payload.sh --enforce-eager"),
}
"""What a run's configuration may hold, and what would run, by the setting that names it."""
PROVIDER = {"provider": "payload", "base_url": None}
TEMPLATES = (
    "{{ cycler.__init__.__globals__.os.system('touch executed') }}",
    "{{ raise_exception.__globals__.json.codecs.open('executed', 'w') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% include 'outside.txt' %}",
)
OF_TRAINING = ("pipeline.mine.algorithm", "pipeline.ppo.verl.optim.optimizer_impl")
OF_ANSWERS = ("roles.Geneticist.tools", "tools.mcp.lab.command", "models.junior.python")


def remedy(places):
    values = (PLACES[place][1] for place in places)
    names = dict.fromkeys(MODULE if value.startswith(MODULE) else shlex.quote(value) for value in values)
    return f"add {' '.join(f'--trust {name}' for name in names)}"


@pytest.fixture(scope="module")
def recorded(scripted_openai, scripted_run_in, tmp_path_factory):
    """A run whose supervisor has learned, with its report on the base stage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_KEY", "sk-a-users-own-key-4242")
        scripted_openai.hooks.clear()
        own = scripted_run_in(tmp_path_factory.mktemp("recorded"), scripted_openai)
        with own.own() as run:
            choice_goes_live(run)
            seal(run)
        assert evaluation_command.main([*EVAL, "--run", own.name, f"runs_dir={own.path.parent}"]) == 0
    return own


EVAL = ["--split=val", "--stages=base", "--limit=2", "rollouts.concurrency=2"]


@pytest.fixture
def here(recorded, tmp_path, monkeypatch, scripted_key, scripted_openai):
    """The current folder, with the run in `runs/evil` and its code beside."""
    scripted_openai.hooks[:] = [scripted_openai.justified]
    scripted_openai.requests.clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    evil = Path(shutil.copytree(recorded.path, tmp_path / "runs" / "evil"))
    plant(evil, {"runs_dir": "runs"})
    first = f"open({str(tmp_path / 'executed')!r}, 'a').close()\n"
    for file in (evil / "payload.py", tmp_path / "payload.py"):
        file.write_text(first)
    (evil / "payload.sh").write_text(f"#!/bin/sh\ntouch {tmp_path / 'executed'}\n")
    (evil / "payload.sh").chmod(0o755)
    yield tmp_path
    scripted_openai.hooks.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("runs", "payload")]:
        del sys.modules[name]


def merged(below, above):
    both = isinstance(below, dict) and isinstance(above, dict)
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}} if both else above


def plant(folder, settings):
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(merged(yaml.safe_load(file.read_text()), settings), sort_keys=False))


def local_model(here, serving_model, template):
    """Put a model with a chat template into the run; returns the settings of a slot that it plays."""
    model = Path(shutil.copytree(serving_model(), here / "runs/evil/model"))
    (model / "chat_template.jinja").write_text(template)
    return {"kind": "embedded", "path": "runs/evil/model", "base_url": None, "api_key_env": None, "model": None}


def plant_code(here, places):
    for place in places:
        plant(here / "runs/evil", PLACES[place][0])


def executed(here):
    return (here / "executed").exists()


def list_rollouts(here):
    assert trace.main(["evil"]) is None


def show_rollout(here):
    record = next(iter(Run.open("evil").rollouts("eval-val-base-at-0.3")))
    assert trace.main(["evil", record["rollout_id"], "--tokens", "--html", "page.html"]) is None


def view(here):
    keep(here)
    app = make_app(here / "runs", key=VIEW_KEY, port=VIEW_PORT)
    with TestClient(app, base_url=f"http://127.0.0.1:{VIEW_PORT}") as client:
        client.get(f"/?key={VIEW_KEY}")
        for page in ("/", "/runs/evil", "/runs/evil/rollouts", "/seat", "/seat/one"):
            assert client.get(page).status_code == 200, page


def verify(here):
    assert evaluation_command.main(["--verify", "runs/evil/report"]) == 1  # config.yaml is not as it was sealed.


def write_out(here):
    assert export.main(["evil", "--role", "Supervisor", "--out", "out"]) is None


def evaluate(here):
    assert evaluation_command.main([*EVAL, "--run", "evil"]) == 0


def ask_run(here):
    assert ask.main(["--run", "evil", "--task", TASK]) in (0, ask.WITHHELD)


def keep(here):
    """Keep a question in a folder of the runs, with the run's settings."""
    run = Run.open("evil")
    task = next(task for task in load(run.config.data).tasks if task.id == TASK)
    kept = Kept.create(run.config, task.brief(), run.name)
    kept.path.rename(kept.path.with_name("one"))


def go_on(here):
    keep(here)
    assert ask.main(["--continue", "one"]) in (0, ask.WITHHELD)


def resume(here):
    train.main(["--resume", "--name", "evil"])


def go_on_with_study(here):
    shutil.copytree("runs/evil", "runs/mine/data0-seed0")
    study.main(["--name", "mine", "--seeds", "1", "--phases", "gather,bandit"])


READERS = (list_rollouts, show_rollout, view, verify, write_out)
ANSWERERS = (evaluate, ask_run, go_on)


@pytest.mark.parametrize("command", READERS)
def test_reading_a_run_runs_nothing_of_it(here, serving_model, command):
    plant_code(here, PLACES)
    plant(here / "runs/evil", {"models": {"senior": local_model(here, serving_model, TEMPLATES[0]), "board": PROVIDER}})
    command(here)
    assert not executed(here)


@pytest.mark.parametrize("command", ANSWERERS)
def test_answers_of_a_run_import_nothing_that_only_its_training_names(here, command):
    plant_code(here, OF_TRAINING)
    command(here)
    assert not executed(here)


@pytest.mark.parametrize("command", ANSWERERS)
def test_answers_of_a_run_start_no_tool_or_model_that_only_the_run_names(here, command):
    asks_for_trust(command, here, OF_ANSWERS)


def test_the_baseline_of_labels_alone_loads_no_algorithm_that_only_the_run_names(here):
    plant(here / "runs/evil", {"evaluation": {"labels": True}})
    asks_for_trust(evaluate, here, OF_TRAINING)


@pytest.mark.parametrize("place", PLACES)
def test_a_run_goes_on_with_code_that_the_user_names_only(here, place):
    asks_for_trust(resume, here, [place])


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_study_goes_on_with_no_code_of_a_run_in_its_folder(here):
    plant_code(here, PLACES)
    with pytest.raises(RunError) as caught:
        go_on_with_study(here)
    log = (here / "runs/mine/logs/data0-seed0.training.log").read_text()
    for place, (_, value) in PLACES.items():
        assert f"{value} ({place})" in log
    assert "add --trust" in str(caught.value)
    assert not executed(here)


def asks_for_trust(command, here, places):
    """The command refuses in one sentence: what would have run, where it is named, and what to do."""
    plant_code(here, places)
    with refused(ConfigError, *(f"{PLACES[place][1]} ({place})" for place in places)) as caught:
        command(here)
    assert str(caught.value).startswith("runs/")
    assert str(caught.value).endswith(remedy(places))
    assert not executed(here)


def test_what_the_user_names_now_is_imported(here):
    plant(here / "runs/evil", PLACES["pipeline.mine.algorithm"][0])
    with refused(ConfigError, MODULE, "Evil"):
        train.main(["--resume", "--name", "evil", "--trust", MODULE])
    assert executed(here)


def test_the_settings_of_a_new_run_are_the_user_s_own(here):
    """And the proof that all tests here would see it if the code ran."""
    assert not executed(here)
    with refused(ConfigError, MODULE, "Evil"):
        train.main(["--check", f"pipeline.mine.algorithm={MODULE}:Evil"])
    assert executed(here)


def test_a_tool_that_the_command_line_names_is_the_user_s_own(here):
    plant(here / "runs/evil", PLACES["roles.Geneticist.tools"][0])
    with refused(ConfigError, "roles.Geneticist.tools", "no_such_module"):
        ask.main(["--run", "evil", "--task", TASK, "roles.Geneticist.tools=[no_such_module:tool]"])
    assert not executed(here)


def test_a_program_is_trusted_with_its_arguments(here):
    plant(here / "runs/evil", PLACES["tools.mcp.lab.command"][0])
    for name in (sys.executable, "runs/evil/payload.py", "lab", f"{shlex.join(PROGRAM)} --more"):
        with refused(ConfigError, "tools.mcp.lab.command", "--trust"):
            ask.main(["--run", "evil", "--task", TASK, "--trust", name])
    assert not executed(here)
    with refused(ConfigError, "tools.mcp.lab", "MCP server"):
        ask.main(["--run", "evil", "--task", TASK, "--trust", shlex.join(PROGRAM)])
    assert executed(here)


def test_arguments_of_the_run_are_not_trusted_with_a_program_of_the_user_s_own(here):
    plant(here / "runs/evil", PLACES["models.junior.python"][0])
    with refused(ConfigError, "/my/python --enforce-eager", "models.junior.python", "--trust"):
        train.main(["--resume", "--name", "evil", "models.junior.kind=vllm", "models.junior.python=/my/python"])


def test_only_installed_packages_need_no_trust(here, monkeypatch):
    assert is_installed("yaml.loader")
    assert is_installed("json")
    assert not is_installed(MODULE)
    assert not is_installed("payload")
    assert not is_installed("")
    assert not is_installed("no_such_module")
    (here / "yaml").mkdir()
    assert is_installed("yaml")  # A folder without code does not hide a package.
    (here / "yaml" / "__init__.py").write_text("")
    importlib.invalidate_caches()
    assert not is_installed("yaml.loader")  # What the current folder has under the same name would be imported.
    assert not executed(here)


def test_the_settings_of_an_algorithm_that_is_not_imported_are_plain_data(here):
    plant(here / "runs/evil", PLACES["pipeline.mine.algorithm"][0])
    phase = Run.open("evil").config.pipeline["mine"]
    assert phase.roles == ("juniors",)
    assert phase.model_extra == {key: value for key, value in MINE.items() if key != "roles"}
    assert not executed(here)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_runs_nothing_and_reads_nothing(here, serving_model, template):
    local_model(here, serving_model, template)
    (here / "outside.txt").write_text(OUTSIDE)
    checkpoint = load_checkpoint("runs/evil/model", "float32")
    with refused(ConfigError, "chat template"):
        TextSide(checkpoint, ServingConfig())
    assert not executed(here)


def test_a_provider_is_no_module(here):
    plant(here / "runs/evil", {"models": {"junior": PROVIDER}})
    with refused(ChimeraError, "provider='payload'", lines=None):
        ask_run(here)
    assert not executed(here)


def test_guidance_that_looks_like_a_path_is_not_opened(here, scripted_openai):
    (here / "outside.txt").write_text(OUTSIDE)
    paths = [str(here / "outside.txt"), "../../outside.txt", f"file://{here}/outside.txt", "@outside.txt"]
    examples = [{"goal": path, "claim": path, "answer": "yes", "evidence": [path]} for path in paths]
    plant(here / "runs/evil", {"society": {"guidance": {"juniors": {"examples": examples, "lessons": paths}}}})
    for command in (list_rollouts, view, write_out, ask_run):
        command(here)
    sent = json.dumps(scripted_openai.requests)
    assert "../../outside.txt" in sent
    assert OUTSIDE not in sent
    assert all(OUTSIDE not in file.read_text() for file in (here / "out").iterdir() if file.suffix == ".json")
