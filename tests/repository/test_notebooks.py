"""The notebooks run, show what they promise and hold no logic; `make notebooks` makes their outputs again."""

import ast
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest
from message_kit import refused
from nbclient import NotebookClient

from agents.roles import ROLES
from chimera.config.roles import JUNIORS
from chimera.core.errors import ConfigError, RunError
from chimera.eval import main
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE, Policy
from chimera.show.markdown import render
from evaluation.report.content import PAGE_ONLY, SECTIONS, section
from evaluation.report.content import text as markdown
from evaluation.report.files import read_report
from evaluation.report.notebook import latest_report, open_report
from training.configuration import load_config

pytestmark = pytest.mark.whole

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SOCIETY, REPORT, TRAINING = ALL = tuple(sorted(NOTEBOOKS.glob("*.ipynb")))
EACH = pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
MACHINE_PATH = re.compile(r"/(?:work|tmp|root|home|Users)/")
COMMAND = re.compile("^!.*", re.MULTILINE)
"""A line that runs a command as a user does."""
LOGIC = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.comprehension, ast.BinOp, ast.BoolOp, ast.Compare),
)
KEYS = ("junior", "supervisor", "senior", "refiner", "board", "principal", "judge")
DESIGN = "an <b>open</b> trial"


def execute(path, folder, **replaced):
    """Run a notebook as it is committed, off the network, with `replaced` texts; returns it."""
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs = []
        for old, new in replaced.items():
            cell.source = cell.source.replace(old, new)
    dead = "http://127.0.0.1:9"
    offline = {"HTTP_PROXY": dead, "HTTPS_PROXY": dead, "HF_HUB_OFFLINE": "1", "IPYTHONDIR": str(folder / "ipython")}
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=None, allow_errors=False, resources={"metadata": {"path": path.parent}}
    )
    client.execute(env={**os.environ, **offline, "OMP_NUM_THREADS": "1"})
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook, source):
    """The data of all outputs of the one cell in which `source` occurs."""
    (cell,) = [cell for cell in code_cells(notebook) if source in cell.source]
    return [output.data for output in cell.outputs]


def check_society(notebook):
    (picture,) = outputs(notebook, "diagram()")
    assert ElementTree.fromstring(picture["image/svg+xml"]).tag.endswith("}svg")
    steps = [data["text/html"] for data in outputs(notebook, "society.answer")]
    for node in (*ROLES, "Evaluation"):
        assert any(f": {node} " in step for step in steps), node
    decided = r"(?:Decision: |Answer: (?:yes|no|maybe); protocol: )(?:GO|NO-GO|UNDECIDED)"
    assert any(re.search(decided, step) for step in steps)
    assert "generated tasks" in outputs(notebook, "task_card(task)")[0]["text/html"]
    assert "generated-0-" in outputs(notebook, "step.sources")[0]["text/html"]


def check_training(notebook):
    (command,) = [cell for cell in code_cells(notebook) if "chimera.train" in cell.source]
    said = "".join(output.text for output in command.outputs if output.name == "stdout")
    for policy in ("junior@sft", "refiner@ppo-1", "senior@design-1", "Supervisor@bandit"):
        assert re.search(rf"^gate: {policy} (is live|was rolled back)", said, re.MULTILINE)
    (trace,) = outputs(notebook, "HTML(render(")
    for role in ROLES:
        assert re.search(rf"<summary>(<b>)?{role}\b", trace["text/html"])
    for source, words in {
        "episode.conversations(": JUNIORS,
        "conversations[0].messages": ("'role': 'assistant'",),
        "episode.calls(": ("prompt_ids", *JUNIORS, "HypothesisRefiner", "ProtocolDesigner"),
        "'sft'": ("loss",),
        "'ppo', 'design'": ("branches/informative", "ppo", "design"),
        "'bandit'": ("gain",),
        "'gate'": ("verdict", "sft", "ppo", "design", "bandit"),
        "'went_live'": ("junior@sft", "refiner@ppo-1", "senior@design-1", "Supervisor@bandit"),
    }.items():
        (shown,) = outputs(notebook, source)
        assert all(word in shown["text/plain"] for word in words), source
    author, propensities, reward, hindsight = outputs(notebook, "episode.choices()")
    assert author["text/plain"].strip("'") in JUNIORS
    assert all(junior in data["text/plain"] for data in (propensities, hindsight) for junior in JUNIORS)
    assert float(reward["text/plain"]) > 0


def check_report(notebook, curves, without=()):
    for name in curves:
        drawing, caption = outputs(notebook, f'report.plot("{name}")')
        assert ElementTree.fromstring(drawing["image/svg+xml"]).tag.endswith("}svg")
        assert len(caption["text/markdown"]) > 60
    for table, words in {
        "report.stages(": "| reward |",
        "report.ablation": "| phase |",
        "report.baselines": "f1",
    }.items():
        assert words in outputs(notebook, table)[0]["text/markdown"].lower()
    assert "**" in outputs(notebook, "report.about")[0]["text/markdown"]
    pairs = outputs(notebook, "report.pairs)")
    assert any("<ins>" in pair["text/html"] for pair in pairs)
    (trace,) = outputs(notebook, "report.trace(")
    for role in set(ROLES) - set(without):
        assert re.search(rf"<summary>(<b>)?{role}\b", trace["text/html"])


def test_the_society_answers_in_the_notebook(tmp_path):
    check_society(execute(SOCIETY, tmp_path))


def test_a_run_is_trained_in_the_notebook(tmp_path):
    check_training(execute(TRAINING, tmp_path, **{"../runs": str(tmp_path / "runs")}))


@pytest.fixture(scope="module")
def run(scripted_openai, society_kit, tmp_path_factory):
    """A run of two stages whose models are scripted; after training the designer and the decision are others."""
    from agents.policies.bandit import BanditPolicy, Settings

    runs = tmp_path_factory.mktemp("runs")
    settings = {"kind": "endpoint", "base_url": scripted_openai.url}
    models = [f"models.{key}.{name}={value}" for key in KEYS for name, value in settings.items()]
    names = [f"models.{key}.model=scripted-{key}" for key in KEYS]
    few = [
        "society.node_retries=0",
        "data.size=40",
        "gate.tasks=4",
        "society.quotes=free",
        "society.refiner_max_chars=0",
        "evaluation.resamples=200",
    ]
    config = load_config(None, [*models, *names, *few, f"runs_dir={runs}"])
    with Run.create("scripted", config) as run:
        began = {**{key: f"scripted-{key}" for key in KEYS}, "selection": "supervisor's model"}
        run.ledger("phase_started", phase="gather", policy_versions=began)
        policy = Policy("choice", "Supervisor", "Supervisor@bandit", "models/Supervisor/bandit")
        BanditPolicy(Settings.of(config.pipeline["bandit"], 0)).save(run.path / policy.folder)
        run.ledger(WENT_LIVE, phase="bandit", policy=policy.dump())
        for number in range(1, 41):
            run.append_metrics(
                {"phase": "rollout", "step": number, "of": "gather", "reward": 1.0, "parts": {"parsed": 0.05}}
            )

    def trained(request):
        role = scripted_openai.role(request)
        if role == "Supervisor":  # The policy has chosen, and only its choice may be justified.
            choice = request["response_format"]["json_schema"]["schema"]["properties"]["choice"]
            return {**society_kit.answers[role], "choice": choice["const"]}
        return {"ProtocolDesigner": designed, "PrincipalInvestigator": decided}.get(role)

    designed = {**society_kit.answers["ProtocolDesigner"], "design": DESIGN}
    decided = {**society_kit.answers["PrincipalInvestigator"], "answer": "no", "decision": "NO-GO"}
    arguments = ["--run", run.name, f"runs_dir={runs}"]
    main([*arguments, "--stages", "base"])
    scripted_openai.hooks[:] = [trained]
    main(arguments)
    scripted_openai.hooks.clear()
    return Run(run.path)


def test_the_latest_report_is_that_of_the_latest_run_that_has_one(run, tmp_path):
    with Run.create("newer", load_config(None, [f"runs_dir={run.path.parent}"])) as newer:
        pass
    assert Run.latest(run.path.parent).name == newer.name
    assert latest_report(run.path.parent).about == open_report(run).about
    with refused(RunError, "python -m chimera.eval"):
        latest_report(tmp_path)


def test_a_finished_run_is_read_in_the_notebook(run, tmp_path):
    notebook = execute(REPORT, tmp_path, **{"../runs": str(run.path.parent)})
    check_report(notebook, ["reward", "stages", "confusion"])
    reasons = [output["text/markdown"] for output in outputs(notebook, "report.learning")]
    assert any("ppo has not run" in reason for reason in reasons)


@EACH
def test_what_is_committed_was_executed_in_order_and_names_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code_cells(notebook)] == list(range(1, len(code_cells(notebook)) + 1))
    printed = [cell for cell in code_cells(notebook) if any(output.output_type == "stream" for output in cell.outputs)]
    assert all(COMMAND.search(cell.source) for cell in printed), "no warnings"
    kinds = {output.output_type for cell in code_cells(notebook) for output in cell.outputs}
    assert kinds <= {"display_data", "execute_result", "stream"}, "no errors"
    text = path.read_text(encoding="utf-8")
    assert not MACHINE_PATH.findall(text)
    assert len(text.encode()) < 1_500_000


def test_what_is_committed_shows_what_it_promises():
    check_society(nbformat.read(SOCIETY, as_version=4))
    check_training(nbformat.read(TRAINING, as_version=4))
    report = nbformat.read(REPORT, as_version=4)
    check_report(report, ["reward", "parts", "stages", "confusion"], without=["Neurologist", "Supervisor"])
    assert sum("image/svg+xml" in output for output in outputs(report, "report.learning")) == 3


@EACH
def test_cells_are_short_and_hold_no_logic(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert len(cell.source.splitlines()) <= 6
        tree = ast.parse(COMMAND.sub("", cell.source))
        assert [type(node).__name__ for node in ast.walk(tree) if isinstance(node, LOGIC)] == []
        for loop in (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFor)):
            assert [ast.unparse(line) for line in loop.body] == ["display(step)"]


def test_pieces_of_a_report_are_those_of_its_document(run):
    report, whole = read_report(run.path / "report"), (run.path / "report" / "report.md").read_text()
    assert markdown(report) == whole
    for name in set(SECTIONS).difference(PAGE_ONLY):
        blocks = section(report, name)
        assert not blocks or render(blocks) in whole
    view = open_report(run)
    assert view.about._repr_markdown_() == render(section(report, "about"))
    assert "| Phase |" in view.ablation
    assert section({**report, "ablation": []}, "ablation") == []


def test_stages_can_be_shown_by_some_metrics(run):
    view = open_report(run)
    titles = [line.split(" | ")[0] for line in view.stages("alignment", "turns").splitlines() if line.startswith("| ")]
    assert titles == ["| Metric", "| ---", "| **Outcome**", "| answers right (accuracy), %", "| **Work**", "| turns"]
    assert len(view.stages().splitlines()) > 20
    with refused(RunError, "'rewards'", "success, reward"):
        view.stages("rewards")


def test_a_pair_shows_what_differs_and_text_is_text(run):
    (pair, *_) = open_report(run).pairs
    table = ElementTree.fromstring(f"<div>{pair._repr_html_()}</div>")
    rows = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
    assert rows[0] == ["", "base", "after bandit"]
    assert ["design", "randomised trial", DESIGN] in rows
    assert ["answer", "yes", "no"] in rows
    assert ["decision", "GO", "NO-GO"] in rows
    assert not [row for row in rows if row[0] == "population"], "it is the same in both"
    assert "randomised" in [mark.text for mark in table.iter("del")]
    assert not list(table.iter("open")), "what a model wrote is no markup"
    assert re.search(r"\d+ of \d+ fields are the same", "".join(table.itertext()))
    assert repr(pair).startswith(("largest gain, +", "largest loss, −"))


def test_a_trace_folds_by_visit(run):
    view = open_report(run)
    trace = view.trace(view.pairs[0].after)
    assert repr(view.trace()) == repr(trace)
    shown = ElementTree.fromstring(f"<div>{trace._repr_html_()}</div>")
    visits = ["".join(one.find("summary").itertext()) for one in shown.findall("details")]
    assert visits[3].startswith("Supervisor")
    assert view.pairs[0].after in repr(trace).splitlines()[0]
    with pytest.raises(RunError, match="no rollout and no task"):
        view.trace("nothing")


def test_plots_that_cannot_be_shown_are_named(run, tmp_path):
    view = open_report(run)
    assert view.plot("ppo").drawing is None
    with refused(RunError, "'rewards'", "reward, parts"):
        view.plot("rewards")
    file = run.path / "report" / "plots" / "reward.svg"
    moved = file.rename(tmp_path / "away.svg")
    with refused(RunError, "reward.svg", "No such file"):
        view.plot("reward")
    moved.rename(file)


def test_a_run_without_a_report_says_what_to_run(tmp_path):
    with Run.create("fresh", load_config(None, [f"runs_dir={tmp_path}"])) as run:
        pass
    with refused(RunError, "'fresh'", "python -m chimera.eval --run fresh"):
        open_report(run)


def test_an_error_of_ours_is_one_line_without_secrets(monkeypatch):
    from chimera.core.secrets import register_secret

    register_secret("MADE_KEY", "sk-made-for-this-test-4711")
    assert ConfigError("wrong sk-made-for-this-test-4711")._render_traceback_() == ["error: wrong [MADE_KEY]"]
