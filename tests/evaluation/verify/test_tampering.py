"""What `--verify` refuses: a finished run and its report, changed in every way that somebody might change them."""

import json
import shutil
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from tampering_kit import (
    REPORT,
    answered,
    appended,
    changed_lines,
    compact,
    everywhere,
    lines,
    read,
    rebuild,
    recorded,
    removed,
    replace,
    replaced,
    report,
    reported,
    rollouts,
    scored,
    side,
    stages,
    tasks,
    told,
    trace,
    trace_of,
    updated,
)

from chimera.config.sections.models import SLOTS
from chimera.eval import main
from chimera.run.chain import read_chain
from chimera.run.directory import Run
from chimera.run.policies import ROLLED_BACK, WENT_LIVE, Policy
from chimera.run.seals import seal
from evaluation.verify.check import find_run, verify
from training.algorithms.bandit import BanditSettings
from training.configuration import load_config

pytestmark = pytest.mark.whole


def evaluate(run, *arguments):
    return main(["--run", run.name, f"runs_dir={run.path.parent}", "--split=val", "rollouts.concurrency=2", *arguments])


@pytest.fixture(scope="module")
def finished(scripted_openai, tmp_path_factory):
    """A run with a policy that went live and one that was rolled back, evaluated; reviewers and judge are rubrics."""
    from agents.policies.bandit import BanditPolicy, Settings

    scripted_openai.hooks[:] = [scripted_openai.justified]
    folder = tmp_path_factory.mktemp("runs")
    slots = ("junior", "supervisor", "senior", "refiner")
    scripted = {"kind": "endpoint", "base_url": scripted_openai.url}
    models = [f"models.{slot}.{name}={value}" for slot in slots for name, value in scripted.items()]
    models += [f"models.{slot}.model=scripted-{slot}" for slot in slots]
    few = ["data.size=40", "gate.tasks=3", "society.node_retries=0"]
    few += ["evaluation.resamples=20", f"runs_dir={folder}"]
    with closing(Run.create("finished", load_config(None, [*models, *few]))) as run:
        began = {slot: f"scripted-{slot}" if slot in slots else "rubric" for slot in SLOTS}
        began = {**began, "selection": "supervisor's model"}
        run.ledger("phase_started", phase="bandit", policy_versions=began)
        run.append_metrics({"phase": "bandit", "step": 1, "loss": 0.5})
        supervisor = Policy("choice", "Supervisor", "Supervisor@bandit", "models/Supervisor/bandit")
        BanditPolicy(Settings.of(BanditSettings(), 0)).save(run.path / supervisor.folder)
        run.ledger(WENT_LIVE, phase="bandit", policy=supervisor.dump(), artifacts=[supervisor.folder])
        run.ledger("phase_finished", phase="bandit")
        for name in ("ppo/tokens-1.jsonl.gz", "ppo/checkpoints/1/state.json", "sft/examples.jsonl"):
            (run.path / name).parent.mkdir(parents=True, exist_ok=True)
            (run.path / name).write_text(f"{name}\n")
        run.ledger(ROLLED_BACK, phase="ppo", policy=Policy("weights", "senior", "senior@ppo", "models/x").dump())
        seal(run)
        (run.path / "ppo/checkpoints/1/state.json").unlink()
        seal(run)
    assert evaluate(run) == 0
    scripted_openai.hooks.clear()
    return Run(run.path)


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the run, elsewhere and under another name."""
    return Path(shutil.copytree(finished.path, tmp_path / "moved" / "copy"))


def problems_of(folder, **options):
    return verify(folder, find_run(folder), **options).problems


def test_an_untouched_report_is_accepted_wherever_its_run_was_moved(finished, folder):
    for place in (finished.path, folder):
        found = verify(place, find_run(place))
        assert found.problems == []
        assert (found.rollouts, found.replayed) == (6, 6)


def swap_traces(folder):
    one, other = (folder / trace_of(folder, at) for at in (0, 1))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def say_no(folder):
    answered(folder, "Geneticist", '"yes', '"no')


def resealed(folder):
    """The last entry gets the hash of a page that was changed."""
    old = (folder / "report/index.html").read_bytes()
    appended("report/index.html", "<b>better</b>")(folder)
    new = (folder / "report/index.html").read_bytes()
    replace(folder, "ledger.jsonl", sha256(old).hexdigest(), sha256(new).hexdigest())


def conversation(folder):
    return sorted((folder / "report" / "rollouts").glob("*.html"))[0].relative_to(folder).as_posix()


def drawn(folder):
    return next((folder / "report/plots").glob("*.svg")).relative_to(folder).as_posix()


def baselines(folder):
    return side(folder, "baselines")


baseline_says_maybe = updated(baselines, lambda row: row.update(answer="maybe"))


def weights(folder):
    return min(file for file in (folder / "models").rglob("*") if file.is_file()).relative_to(folder).as_posix()


def entries(change):
    return changed_lines("ledger.jsonl", change)


def rows(change):
    return changed_lines(rollouts, change)


ROLLOUTS = "rollouts/eval-val-base-at-0.3.jsonl"
PLAIN = {
    "ledger: an entry was removed": (entries(lambda given: given[:2] + given[3:]), "ledger.jsonl:3 does not follow"),
    "ledger: the first entry was removed": (entries(lambda given: given[1:]), "ledger.jsonl:1 does not follow"),
    "ledger: the last entry was removed": (entries(lambda given: given[:-1]), "report/index.html is a file that"),
    "ledger: two entries were swapped": (
        entries(lambda given: [given[0], given[2], given[1], *given[3:]]),
        "ledger.jsonl:2 does not follow",
    ),
    "ledger: an entry was repeated": (entries(lambda given: [*given, given[-1]]), "does not follow the line before"),
    "ledger: an entry was put in": (entries(lambda given: [*given, '{"event":"planned"}']), "has no hash"),
    "ledger: a version was changed": (
        replaced("ledger.jsonl", "Supervisor@bandit", "supervisor@better"),
        "ledger.jsonl:3 was changed",
    ),
    "ledger: what was rolled back went live": (
        replaced("ledger.jsonl", "rolled_back", "went_live"),
        "ledger.jsonl:5 was changed",
    ),
    "ledger: the last entry has the hash of a changed page": (resealed, "its hash is not that of what it says"),
    "ledger: gone": (removed("ledger.jsonl"), "ledger.jsonl is missing"),
    "rollouts: a decision was changed": (recorded("decision", to="UNDECIDED"), f"{ROLLOUTS} was changed"),
    "rollouts: a line was removed": (rows(lambda given: given[1:]), f"{ROLLOUTS} was changed"),
    "rollouts: a line was repeated": (rows(lambda given: [*given, given[0]]), f"{ROLLOUTS} has lines after"),
    "rollouts: two lines were swapped": (
        rows(lambda given: [given[1], given[0], *given[2:]]),
        f"{ROLLOUTS} was changed",
    ),
    "rollouts: a file was added": (
        appended("rollouts/eval-val-better-at-0.3.jsonl"),
        "rollouts/eval-val-better-at-0.3.jsonl is a file that",
    ),
    "rollouts: a file is gone": (removed(rollouts), f"{ROLLOUTS} is missing"),
    "traces: an answer was changed": (say_no, "traces/eval-val-base-at-0.3/"),
    "traces: one is gone": (removed(trace_of), "jsonl.gz is missing"),
    "traces: one was added": (appended("traces/eval-val-base-at-0.3/ev-0.jsonl.gz"), "ev-0.jsonl.gz is a file that"),
    "traces: two were swapped": (swap_traces, "jsonl.gz was changed"),
    "metrics: a value was changed": (replaced("metrics.jsonl", "0.5", "0.1"), "metrics.jsonl was changed"),
    "metrics: a line was added": (appended("metrics.jsonl", '{"phase":"bandit"}\n'), "metrics.jsonl has lines after"),
    "metrics: gone": (removed("metrics.jsonl"), "metrics.jsonl is missing"),
    "models: weights were changed": (appended(weights, "x"), "models/Supervisor/bandit"),
    "models: a file is gone": (removed(weights), "models/Supervisor/bandit"),
    "models: a file was added": (
        appended("models/Supervisor/bandit/extra.json"),
        "models/Supervisor/bandit is not the policy that went live",
    ),
    "config: a setting was changed": (replaced("config.yaml", "tasks: 4", "tasks: 3"), "config.yaml was changed"),
    "environment: the date was changed": (
        replaced("environment.json", '"created": "2', '"created": "1'),
        "environment.json was changed",
    ),
    "ppo: tokens were changed": (appended("ppo/tokens-1.jsonl.gz"), "ppo/tokens-1.jsonl.gz was changed"),
    "ppo: a checkpoint that was removed is back": (
        appended("ppo/checkpoints/1/state.json"),
        "state.json was removed during the run, and now",
    ),
    "sft: examples were changed": (appended("sft/examples.jsonl"), "sft/examples.jsonl was changed"),
    "evaluation: a second judge's score was changed": (scored("audit", 1.0), "evaluation/val/audit.jsonl was changed"),
    "evaluation: a canary's score was changed": (
        scored("canaries", 0.777),
        "evaluation/val/canaries.jsonl was changed",
    ),
    "evaluation: a baseline's answer was changed": (baseline_says_maybe, "evaluation/val/baselines.jsonl was changed"),
    "report: only its layout": (
        lambda folder: (folder / REPORT).write_text(json.dumps(read(folder))),
        "report.json was changed",
    ),
    "report: no JSON": (lambda folder: (folder / REPORT).write_text("{"), "is not JSON"),
    "report: another number in Markdown": (appended("report/report.md", "alignment 99 %"), "report.md was changed"),
    "report: one file more": (appended("report/predictions.json"), "predictions.json is no file of the report"),
    "page: a script": (
        replaced("report/index.html", "</body>", "<script>alert(1)</script></body>"),
        "index.html was changed",
    ),
    "page: gone": (removed("report/index.html"), "index.html is missing"),
    "plots: one was changed": (replaced(drawn, "<path", "<path transform='scale(2)'"), ".svg was changed"),
    "plots: one is gone": (removed(drawn), ".svg is missing"),
    "csv: another number": (appended("report/metrics.csv", "stage,final,,reward,9\n"), "metrics.csv was changed"),
    "conversation: changed": (replaced(conversation, "</body>", "<p>better</p></body>"), ".html was changed"),
    "conversation: gone": (removed(conversation), ".html is missing"),
    "conversation: one was added": (appended("report/rollouts/better.html"), "better.html is no file of the report"),
    "plots: one was added": (appended("report/plots/better.svg"), "better.svg is no file of the report"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_whoever_tampers_is_found_by_the_ledger(folder, name):
    tamper, words = PLAIN[name]
    tamper(folder)
    problems = problems_of(folder)
    assert any(words in problem for problem in problems), problems


def lower(name):
    def change(record):
        record["parts"][name] += 0.25
        record["reward"] += 0.25

    return lambda folder: everywhere(folder, change)


def in_place_of(given):
    first, second = map(json.loads, given[:2])
    other = {**second, **{key: first[key] for key in ("task_id", "label", "level", "seed")}}
    return [json.dumps(other), *given[1:]]


def twice(given):
    first, second = map(json.loads, given[:2])
    return [given[0], json.dumps({**second, "rollout_id": first["rollout_id"]}), *given[2:]]


def lost(spans):
    form = "llm.hosted_vllm.response_format"
    return [span for span in spans if "PeerReview" not in span["attributes"].get(form, "")]


def judged(folder):
    """The judge's answer, and every place that it went to."""
    found = json.loads((folder / rollouts(folder)).read_text().splitlines()[0])
    old = found["outputs"]["final_evaluation"]["scores"]["impact"]
    answered(folder, "Judge", f'"impact":{json.dumps(old)}', '"impact":0.123')

    def change(record):
        gain = (0.123 - old) * 0.3
        record["outputs"]["final_evaluation"]["scores"]["impact"] = 0.123
        record["parts"]["impact"] += gain
        record["reward"] += gain

    everywhere(folder, change)


NOTHING = {
    **{"status": "failed", "error": "x", "trace": None, "seconds": None, "outputs": {}},
    **dict.fromkeys(("answer", "decision", "veto")),
}
FORGED = {
    "data": "PubMedQA, official test",
    "plan.split": "test",
    "plan.stages.1.title": "after PPO",
    "plan.stages.1.kind": "alone",
    "plan.stages.1.versions.junior": "gpt-9",
    "plan.stages.1.policies.0.folder": "models/best",
    "players.auditor.model": "gpt-9",
    "run.commit": "0" * 40,
    "run.created": "2020-01-01",
    "run.name": "better",
    "run.phases": ["sft", "ppo"],
    "run.rolled_back": [],
    "settings.confidence": 0.5,
    "stages.base.reward.mean": 2.5,
    "verdict.text": "much better",
}
"""Values of the report by their place."""
REBUILT = {
    **{
        f"report: {place}": (
            reported(*(int(key) if key.isdigit() else key for key in place.split(".")), to=value),
            f"{place} is",
        )
        for place, value in FORGED.items()
    },
    "tasks: dropped": (tasks(lambda given: given[:2]), "plan.tasks is"),
    "tasks: cherry-picked": (tasks(lambda given: given[2:]), "plan.tasks is"),
    "tasks: repeated": (tasks(lambda given: [*given[:2], given[0]]), "plan.tasks.2.id is"),
    "tasks: reordered": (tasks(lambda given: given[::-1]), "plan.tasks.0.id is"),
    "tasks: others than the data's": (
        lambda folder: report(
            folder, lambda found: found["plan"]["tasks"].__setitem__(0, {**found["plan"]["tasks"][0], "goal": "?"})
        ),
        "plan.tasks.0.goal is",
    ),
    "stages: swapped": (stages(lambda given: given[::-1]), "plan.stages.0.name is"),
    "stages: one dropped": (stages(lambda given: given[:1]), "plan.stages is"),
    "report: the date": (reported("written", "time", to="2020-01-01T00:00:00+00:00"), "written is"),
    "report: a note was taken out": (lambda folder: report(folder, lambda found: found["notes"].pop()), "notes is"),
    "csv: another number": (
        replaced("report/metrics.csv", "stage,base,,success,share", "stage,base,,failure,share"),
        "metrics.csv does",
    ),
    "csv: another answer": (replaced("report/rollouts.csv", ",GO,", ",NO-GO,"), "rollouts.csv does not show"),
    "rollouts: the decision beside its outputs": (recorded("decision", to="UNDECIDED"), "its decision is 'UNDECIDED'"),
    "rollouts: the answer beside its outputs": (
        recorded("answer", to="maybe"),
        "its answer is 'maybe', but its outputs",
    ),
    "rollouts: a veto beside its outputs": (recorded("veto", to="safety review: harm"), "its veto is"),
    "rollouts: an output beside its trace": (
        recorded("outputs", "final_rationale", to="so it is"),
        "its outputs differs from that in traces",
    ),
    "rollouts: a reward beside its trace": (recorded("reward", to=2.0), "its reward differs from that in traces"),
    "rollouts: failed without an error": (recorded("status", to="failed"), "is 'failed', but its error is None"),
    "rollouts: failed without a trace": (updated(rollouts, lambda record: record.update(NOTHING)), "it has no trace"),
    "rollouts: a failure that was none": (
        updated(rollouts, lambda record: record.update(status="failed", error="x")),
        "its error differs from that in traces",
    ),
    "rollouts: a label": (recorded("label", to="maybe"), "the label of task"),
    "rollouts: a seed": (recorded("seed", to=1), "its seed is 1, but must be"),
    "rollouts: a level": (recorded("level", to=9), "its level is 9, but must be"),
    "rollouts: one in place of another": (rows(in_place_of), "lacks 1 of 3 rollouts"),
    "rollouts: one that counts twice": (rows(twice), "a rollout counts once"),
    "rollouts: no trace": (recorded("trace", to=None), "it has no trace"),
    "rollouts: outputs and trace's outcome, not the answers": (
        told("outputs", "refined_hypothesis", "claim", to="it cures"),
        "outputs.refined_hypothesis.claim is 'it cures'",
    ),
    "rollouts: parts and trace's outcome, not the answers": (lower("parsed"), "parts.parsed is"),
    "rollouts: who selected": (
        recorded("outputs", "selection", "policy", to="Supervisor@bandit"),
        "its selection was made by 'Supervisor@bandit', but must be by 'supervisor'",
    ),
    "rollouts: a selection at random": (
        recorded("outputs", "selection", "propensities", to={"Geneticist": 1.0}),
        "its selection was explored, which only training does",
    ),
    "rollouts: the selected hypothesis": (
        told("outputs", "selected_hypothesis", "claim", to="it cures"),
        "outputs.selected_hypothesis.claim is",
    ),
    "traces: a model's answer": (say_no, "replayed: "),
    "traces: a rubric's answer, and all that follows": (judged, "the rubric does not answer what its trace holds"),
    "traces: one without an answer": (lambda folder: trace(folder, lost), " model calls"),
    "traces: two swapped": (swap_traces, "differs from that in traces"),
    "evaluation: a second judge's score": (scored("audit", 0.001), "audit: the scores of"),
    "evaluation: a canary's score": (scored("canaries", 0.001), "canaries: the scores of"),
    "evaluation: a baseline's answer": (baseline_says_maybe, "baseline majority answers"),
}


@pytest.mark.parametrize("name", REBUILT)
def test_whoever_rebuilds_the_ledger_too_is_found_where_what_is_computed_again_differs(folder, name):
    tamper, words = REBUILT[name]
    tamper(folder)
    rebuild(folder)
    problems = problems_of(folder)
    assert any(words in problem for problem in problems), problems


def test_a_ledger_that_was_rebuilt_is_seen_by_whoever_has_a_hash_of_it(folder):
    entries = read_chain(folder / "ledger.jsonl")
    for entry in (entries[0], entries[-1]):
        assert problems_of(folder, expect=entry.hash) == []
    rebuild(folder, lambda events: [{**event, "time": "2020-01-01T00:00:00+00:00"} for event in events])
    assert problems_of(folder) == []
    (problem,) = problems_of(folder, expect=entries[-1].hash)
    assert f"ledger.jsonl has no entry with the hash {entries[-1].hash}" in problem


def test_the_command_prints_the_last_hash_and_refuses_another(folder, capsys):
    last = read_chain(folder / "ledger.jsonl")[-1].hash
    assert main(["--verify", str(folder), "--expect", last]) == 0
    said = capsys.readouterr().out
    assert f"ledger: {len(read_chain(folder / 'ledger.jsonl'))} entries, last hash {last}" in said
    assert "6 of 6 rollouts were replayed" in said
    assert main(["--verify", str(folder), "--expect", "0" * 64]) == 1
    assert "history was rebuilt" in capsys.readouterr().out


def test_a_report_stays_true_when_its_run_goes_on(folder, tmp_path):
    """A phase follows, and an evaluation that makes its own rollouts; the old report lies elsewhere."""
    old = Path(shutil.copytree(folder / "report", tmp_path / "old"))
    with Run(folder).own() as run:
        run.ledger("resumed")
        run.append_metrics({"phase": "ppo", "step": 1})
        run.ledger(WENT_LIVE, phase="ppo", policy=Policy("weights", "senior", "senior@ppo", "models/senior").dump())
        run.ledger("phase_finished", phase="ppo")
        seal(run)
    assert evaluate(Run(folder), "--stages", "base", "--limit", "3", "--fresh") == 0
    for report_of in (old, folder / "report"):
        assert verify(report_of, Run(folder)).problems == []
    assert len(read(folder)["plan"]["tasks"]) == 3


def test_a_report_can_be_written_again(folder):
    before = read(folder)["written"]
    assert evaluate(Run(folder)) == 0
    assert read(folder)["written"] != before
    assert problems_of(folder) == []


def test_a_ledger_without_hashes_is_named_in_one_sentence(folder):
    def unchained(line):
        return compact({key: value for key, value in json.loads(line).items() if key not in ("previous", "hash")})

    entries(lambda given: [unchained(line) for line in given])(folder)
    (problem,) = problems_of(folder)
    assert "ledger.jsonl:1 has no hash" in problem


def test_what_was_changed_is_not_blessed_by_the_next_seal(folder):
    lines(folder, "metrics.jsonl", lambda given: [given[0].replace("0.5", "0.1")])
    appended(trace_of(folder), "x")(folder)
    with Run(folder).own() as run:
        assert seal(run) == ["metrics.jsonl", trace_of(folder)]
    assert len([problem for problem in problems_of(folder) if "was changed" in problem]) == 2
