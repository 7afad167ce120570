"""A report's plots: what they show, files for light and dark pages, and a sentence where there is nothing to draw."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from matplotlib.text import Text
from record_kit import answered

from chimera.config.tree import Config
from chimera.run.directory import Run
from chimera.run.policies import WENT_LIVE, Policy
from evaluation.measures.comparison import adjust, compare
from evaluation.measures.metrics import stage_metrics
from evaluation.measures.statistics import Mean
from evaluation.records.study import BaselineAnswer, Place, Plan, PlannedTask, Stage, StageAnswers, Study
from evaluation.report.plots import training as plots_training
from evaluation.report.plots.bandit import reliability
from evaluation.report.plots.base import TITLES, draw_all
from evaluation.report.plots.paper import Drawing, panels, paper, save
from evaluation.report.plots.stages import confusion, stages
from evaluation.report.plots.tokens import PricedAnswers, frontier, tokens
from evaluation.report.plots.tokens import studies as studies_plot

SVG = "{http://www.w3.org/2000/svg}"
TASKS = tuple(PlannedTask(f"t{number}", "goal", ("yes", "no", "maybe")[number % 3]) for number in range(12))
STAGES = ("base", "ppo", "bandit")
REWARDS = {"base": 1.0, "ppo": 1.25, "bandit": 1.75}


def record(stage, number, task, reward, answer):
    counts = {"model_calls": 3, "prompt_tokens": 900, "completion_tokens": 100}
    changes = {"phase": f"gate-{stage}", "label": task.label, "counts": counts}
    return answered(f"{stage}-{number}", task.id, answer, reward, **changes)


def answers_of(name, kind="sequence"):
    answers = ["yes", "no", "maybe"] if name == "bandit" else ["yes", "yes", None]
    rows = [
        record(name, number, task, REWARDS[name.removeprefix("only-")] + number % 4 / 8, answers[number % 3])
        for number, task in enumerate(TASKS)
    ]
    places = tuple(Place("rollouts/x.jsonl", number + 1) for number in range(len(rows)))
    return StageAnswers(Stage(name, name, kind, (), {}), tuple(rows), places)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    phases = {
        "gather": {},
        "sft": {"algorithm": "sft", "roles": ["juniors"]},
        "ppo": {"roles": ["HypothesisRefiner"]},
        "bandit": {"roles": ["Supervisor"]},
    }
    config = Config.model_validate(
        {"runs_dir": tmp_path_factory.mktemp("runs"), "evaluation": {"resamples": 200}, "pipeline": phases}
    )
    answers = {name: answers_of(name) for name in STAGES}
    plan = Plan("val", "generated", "generated tasks", TASKS, 1, tuple(one.stage for one in answers.values()))
    with Run.create("made", config) as run:
        run.ledger(WENT_LIVE, phase="bandit", policy=Policy.made("choice", "Supervisor", "bandit").dump())
        return Study(run, plan, answers, (), {}, ())


def comparisons_of(study):
    pairs = [("base", name) for name in study.answers if name != "base"] + [("ppo", "bandit")]
    found = {
        f"{old}:{new}": compare(study.answers[old], study.answers[new], study.plan, study.config)
        for old, new in pairs
        if old in study.answers and new in study.answers
    }
    return adjust(found, study.config)


def rollouts(phase, count, start, reward):
    for number in range(start, start + count):
        value = reward + number % 5 / 10
        parts = {"alignment": value - 0.25, "clarity": 0.25}
        yield {"time": "t", "phase": "rollout", "step": number, "of": phase, "reward": value, "parts": parts}


def estimate(step, gain):
    figures = {"ips": 1.5, "snips": 1.6, "dr": 1.55, "logged": 1.2, "gain": gain}
    ends = {
        f"{name}_{end}": value + by for name, value in figures.items() for end, by in (("low", -0.1), ("high", 0.1))
    }
    return {"time": "t", "phase": "bandit", "step": step, "choices": 40 + step, "ess": 9.6, **figures, **ends}


LINES = [
    *rollouts("gather", 40, 1, 1.0),
    *rollouts("gate-base", 12, 41, 1.0),
    *({"time": "t", "phase": "sft", "step": step, "loss": 1 / step} for step in range(1, 9)),
    *(
        {"time": "t", "phase": "ppo", "step": step, "actor/ppo_kl": 0.0, "actor/pg_clipfrac": 0.0, "reward/mean": step}
        for step in (1, 2)
    ),
    *rollouts("bandit", 15, 53, 1.5),
    estimate(0, 0.25),
    estimate(1, 0.5),
    *rollouts("gate-bandit", 12, 68, 1.5),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plots")


@pytest.fixture(scope="module")
def plots(study, folder):
    return {plot.name: plot for plot in draw_all(study, LINES, comparisons_of(study), folder)}


def means_of(study):
    return {name: stage_metrics(answers, study.plan, study.config) for name, answers in study.answers.items()}


def reliability_of(study, lines):
    return reliability(study, "bandit", lines, means_of(study), comparisons_of(study))


def texts(drawing):
    return [text.get_text() for text in drawing.figure.findobj(Text)]


def words(folder, plot):
    """The texts of an SVG in the order of drawing."""
    root = ElementTree.parse(folder / plot.files["svg"]).getroot()
    return ["".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")]


def test_every_plot_is_drawn_as_png_and_svg_and_has_a_caption(plots, folder):
    assert list(plots) == [*TITLES, "sft", "ppo", "bandit"]
    for plot in plots.values():
        assert (plot.missing, bool(plot.caption), set(plot.files)) == (None, True, {"png", "svg"})
        assert (imread(folder / plot.files["png"])[0, 0, :3] == 1).all()


def test_svgs_take_the_colour_of_their_page_and_can_share_it(plots, folder):
    seen = set()
    for plot in plots.values():
        text = (folder / plot.files["svg"]).read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        colours = {colour.lower() for colour in re.findall(r"(?:fill|stroke): *(#\w+)", text)}
        assert colours <= {"#2a7fc1", "#d9661f"}
        assert "currentColor" in text
        assert "<style" not in text
        assert root.find(f"{SVG}title").text == plot.title
        assert root.get("role") == "img"
        identities = re.findall(r'\bid="([^"]+)"', text)
        assert len(identities) == len(set(identities))
        assert not seen & set(identities)
        seen |= set(identities)
        assert set(re.findall(r'(?:href="|url\()#([\w-]+)', text)) <= set(identities)


def test_the_same_data_give_the_same_bytes(plots, folder, study, tmp_path):
    name = "confusion"
    with paper():
        save(confusion(study), name, plots[name].title, tmp_path)
    for file in plots[name].files.values():
        assert (tmp_path / file).read_bytes() == (folder / file).read_bytes()


def test_a_label_may_hold_dollar_signs(tmp_path):
    with paper():
        figure, (axes,) = panels(1, 1, 1)
        axes.set_xticks([0], ["$5 & $10_$"])
        save(Drawing(figure, ""), "x", "", tmp_path)
    assert "$5 &amp; $10_$" in (tmp_path / "x.svg").read_text()


def test_phases_are_marked_and_stages_of_validation_have_their_mean(plots, folder):
    found = words(folder, plots["reward"])
    assert {"training", "gather", "bandit", "validation", "base"} <= set(found)
    rewards = [line["reward"] for line in LINES if line.get("of") == "gate-base"]
    assert f"{sum(rewards) / len(rewards):.2f}" in found


def test_parts_that_never_change_are_named_and_not_drawn(plots, folder):
    assert "right answer" in words(folder, plots["parts"])
    assert "clarity" not in words(folder, plots["parts"])
    assert "the same in every rollout: clarity." in plots["parts"].caption


def test_right_answers_stand_against_their_tokens_with_a_frontier(study, plots, folder):
    shown = words(folder, plots["tokens"])
    assert {"1  the society, base", "2  the society, bandit", "tokens a task", "1,000"} <= set(shown)
    without = replace(study, answers={name: _uncounted(answers) for name, answers in study.answers.items()})
    assert "tokens" in str(tokens(without, means_of(study)))


@pytest.fixture(scope="module")
def several(study):
    """The study on tasks of four and of eight studies."""
    tasks = tuple(replace(task, studies=4 + 4 * (place % 2)) for place, task in enumerate(TASKS))
    answers = [BaselineAnswer("mapreduce@base", task.id, 0, task.label, None, 5, 100, 10) for task in TASKS]
    return replace(study, plan=replace(study.plan, tasks=tasks), baselines=tuple(answers))


@pytest.fixture(scope="module")
def without_metrics(several, tmp_path_factory):
    folder = tmp_path_factory.mktemp("without") / "new" / "plots"
    return folder, {plot.name: plot for plot in draw_all(several, [], comparisons_of(several), folder)}


def test_right_answers_are_drawn_against_the_number_of_studies_where_it_differs(study, several, without_metrics):
    folder, drawn = without_metrics
    plot = drawn["studies"]
    shown = words(folder, plot)
    assert {"the society, bandit", "a call for each study, one to combine, base", "4", "8"} <= set(shown)
    assert "95 % intervals" in plot.caption
    axes = studies_plot(several).figure.axes[0]
    lines = {line.get_label(): line.get_ydata() for line in axes.lines if "@" not in line.get_label()}
    assert list(lines["a call for each study, one to combine, base"]) == [100, 100]
    assert list(lines["the society, bandit"]) == [100, 100]
    assert studies_plot(study) is None


def _uncounted(answers):
    return replace(answers, records=tuple(replace(record, counts={}) for record in answers.records))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=12))
def test_the_frontier_is_what_no_cheaper_way_equals(pairs):
    points = [PricedAnswers("x", cost, Mean(right / 50, None, None, 9), society=False) for cost, right in sorted(pairs)]
    best = frontier(points)
    for point in points:
        cheaper = [other for other in points[: points.index(point)] if other.right.mean >= point.right.mean]
        assert (point in best) == (not cheaper)


def test_confusion_counts_every_rollout_by_label_and_answer_or_none(plots, folder):
    found = words(folder, plots["confusion"])
    assert [text for text in found if text in STAGES] == list(STAGES)
    counts = [int(text) for text in found if text.isdigit()]
    assert counts[:12] == [4, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 4]
    assert counts[24:] == [4, 0, 0, 0, 0, 4, 0, 0, 0, 0, 4, 0]
    assert "'none' is a rollout that failed" in plots["confusion"].caption


def test_stages_are_drawn_where_their_means_and_differences_are(study):
    drawn = stages(study, means_of(study), comparisons_of(study))
    left, right = drawn.figure.axes[:2]
    assert [label.get_text() for label in left.get_yticklabels()] == list(STAGES)
    points = [[line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"] for axes in (left, right)]
    assert points[0] == pytest.approx([1.1875, 1.4375, 1.9375])
    assert points[1] == pytest.approx([0.25, 0.75])


def test_what_is_constant_by_design_is_not_drawn_and_explained(plots, folder):
    still = "Not drawn, because the same in every step: KL to the sampling policy 0, clip fraction 0."
    assert f"{still} KL to the sampling policy and clip fraction are 0 because" in plots["ppo"].caption
    assert "clip fraction" not in words(folder, plots["ppo"])
    moving = [{**line, "actor/ppo_kl": line["step"]} if line["phase"] == "ppo" else line for line in LINES]
    assert "0 because" not in plots_training.steps(moving, "ppo").caption
    one_step = [line for line in LINES if line["phase"] == "ppo" and line["step"] == 1]
    assert plots_training.steps(one_step, "ppo") == "ppo has no curve: it made one step."


def test_the_bandits_last_estimate_is_held_against_what_happened(plots, folder, study):
    rows = words(folder, plots["bandit"])
    for name in ("IPS", "SNIPS", "doubly robust", "its own rollouts", "validation, ppo to bandit"):
        assert name in rows
    caption = plots["bandit"].caption
    assert "41 choices, worth 10 of the policy's own" in caption
    assert "+0.500 (+0.400 to +0.600), on validation tasks it was +0.500 (+0.500 to +0.500)" in caption
    assert "the intervals overlap." in caption
    on_test = reliability_of(replace(study, plan=replace(study.plan, split="test")), LINES)
    assert "test, ppo to bandit" in texts(on_test)
    assert "orange was earned. Test tasks are other tasks" in on_test.caption
    far = reliability_of(study, [*LINES, estimate(2, -0.5)])
    assert "do not overlap, so the estimate cannot be relied on." in far.caption


def test_stages_of_one_policy_alone_are_drawn_too(study):
    alone = answers_of("only-bandit", "alone")
    wider = replace(
        study,
        answers={**study.answers, "only-bandit": alone},
        plan=replace(study.plan, stages=(*study.plan.stages, alone.stage)),
    )
    drawn = stages(wider, means_of(wider), comparisons_of(wider))
    assert "only-bandit" in texts(drawn)
    assert "one learned policy alone" in drawn.caption
    assert "validation, base to only-bandit" in texts(reliability_of(wider, LINES))


def test_without_metrics_there_are_sentences_and_only_the_plots_of_the_rollouts(without_metrics):
    folder, drawn = without_metrics
    for name in ("reward", "parts", "sft", "ppo", "bandit"):
        assert drawn[name].files == {}
        assert drawn[name].missing.endswith(".")
    assert sorted(file.stem for file in folder.glob("*.png")) == ["confusion", "stages", "studies", "tokens"]


def test_data_that_show_nothing_are_told_apart_from_no_data(study):
    failed = [{"phase": "rollout", "step": 1, "of": "gather", "reward": None, "parts": {}}]
    assert plots_training.reward(failed) == "None of the 1 rollouts in the run's metrics has a reward."
    still = plots_training.parts(list(rollouts("gather", 1, 1, 1.0)))
    assert still == "No part of the reward ever changed: right answer, clarity had the same value in every rollout."
    unknown = reliability_of(study, [{"phase": "bandit", "step": 0, "choices": 3, "ess": 0.0}])
    assert unknown.startswith("bandit could estimate nothing: ")


def test_a_bandit_that_was_stopped_early_or_is_not_evaluated_is_still_drawn(study):
    plan = replace(study.plan, stages=study.plan.stages[:1])
    only_base = replace(study, plan=plan, answers={"base": study.answers["base"]})
    bare = {key: value for key, value in estimate(0, 0.0).items() if not key.startswith("gain")}
    drawn = reliability_of(only_base, [bare])
    (axes,) = drawn.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "IPS",
        "SNIPS",
        "doubly robust",
        "all logged choices",
    ]
    assert "on validation tasks it was" not in drawn.caption
