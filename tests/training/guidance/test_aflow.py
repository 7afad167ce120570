"""The search over graphs: valid edits, a Pareto set, and good graphs found with few rollouts."""

import asyncio
import random
from itertools import product

import pytest
from fake_bench import FakeBench
from hypothesis import given
from hypothesis import strategies as st
from lab_kit import task
from record_kit import answered

from agents.policies.graph import load
from agents.policies.society import of_versions
from chimera.config.sections.graph import GraphConfig
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from training.configuration import load_config
from training.guidance.aflow import Aflow, AflowSettings, frontier, neighbours
from training.learning.base import PhasePlan

TASKS = [task(f"t{number}") for number in range(120)]
DATASET = Dataset(tuple(TASKS), (), (), "generated", "test")
PLAN = PhasePlan("aflow", "aflow")
SETTINGS = AflowSettings(algorithm="aflow", tasks=48)
SUBSETS = [("Geneticist",), ("Pharmacologist",), ("Neurologist",), ("Geneticist", "Pharmacologist"),
           ("Geneticist", "Neurologist"), ("Pharmacologist", "Neurologist"),
           ("Geneticist", "Pharmacologist", "Neurologist")]  # fmt: skip
GRAPHS = [
    GraphConfig(juniors=juniors, choose=choose, refine=refine, debate=debate)
    for juniors, choose, refine, debate in product(SUBSETS, ("select", "vote"), (True, False), (0, 1, 2))
    if len(juniors) > 1 or debate == 0
]


def quality(graph):
    """How often a graph is right: what was planted."""
    debate = (0.0, 0.06, 0.02)[min(graph.debate, 2)]
    juniors = 0.08 * len(graph.juniors) + 0.05 * ("Neurologist" in graph.juniors)
    return 0.3 + juniors + 0.1 * (graph.choose == "vote") + debate + 0.12 * graph.refine


def cost(graph):
    return 100 * (len(graph.juniors) * (1 + graph.debate) + (graph.choose == "select") + graph.refine + 5)


class World(FakeBench):
    async def play(self, given, versions):
        graph = of_versions(self.run.path, versions).graph or GraphConfig()
        right = random.Random(given.task.id).random() < quality(graph)
        used = {"junior": {"prompt": cost(graph), "completion": 0}}
        return answered(f"{given.phase}/{given.task.id}", given.task.id, "yes" if right else "no", float(right),
                        phase=given.phase, tokens=used, policy_versions=versions)  # fmt: skip

    def episode(self, record):
        return type("Episode", (), {"record": record})


@pytest.fixture
def run(tmp_path):
    with Run.create("mine", load_config(None, [f"runs_dir={tmp_path}"])) as opened:
        yield opened


def learn(run, settings=SETTINGS):
    bench = World(run, config=load_config(), dataset=DATASET)
    return bench, asyncio.run(Aflow().learn(PLAN, settings, bench))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A run with a search, its bench, and what was learned."""
    with Run.create("mine", load_config(None, [f"runs_dir={tmp_path_factory.mktemp('runs')}"])) as opened:
        yield opened, *learn(opened)


def test_one_of_the_best_three_of_sixty_graphs_is_found_with_twenty_five(searched):
    run, bench, learned = searched
    assert len(GRAPHS) == 60
    best = sorted(GRAPHS, key=quality, reverse=True)[:3]
    assert load(run.path / learned.policy.folder) in best
    assert learned.figures["graphs"] <= 25
    assert bench.ran < 0.6 * 25 * SETTINGS.tasks
    assert learned.policy.place == ("graph", "society")


def test_a_search_that_is_done_again_plays_nothing_and_comes_to_the_same(searched):
    run, _, first = searched
    bench, second = learn(run)
    assert (bench.ran, second.policy, second.figures["pareto"]) == (0, first.policy, first.figures["pareto"])


def test_a_graph_that_is_right_as_often_with_fewer_tokens_is_better(run, monkeypatch):
    monkeypatch.setitem(globals(), "quality", lambda graph: 1.0)
    _, learned = learn(run)
    graph = load(run.path / learned.policy.folder)
    assert cost(graph) < cost(GraphConfig())
    assert learned.figures["right_before"] == learned.figures["right_best"] == 1.0


def test_a_budget_ends_it(run):
    few = SETTINGS.model_copy(update={"budget": SETTINGS.budget.model_copy(update={"rollouts": 60})})
    bench, learned = learn(run, few)
    assert bench.ran <= 60
    assert learned.figures["budget_spent"]


@given(st.sampled_from(GRAPHS))
def test_neighbours_are_other_valid_graphs_that_never_drop_the_safety_review(graph):
    around = list(neighbours(graph))
    assert around
    assert all(other != graph and other.reviewed for other in around)
    assert any(graph in neighbours(other) for other in around)


def test_what_is_waived_may_be_left_out():
    waived = GraphConfig(waives=("SafetyOfficer",))
    assert {(other.design, other.reviews) for other in neighbours(waived)} >= {(True, False), (False, True)}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-5, -1)), min_size=1, max_size=12))
def test_the_frontier_holds_what_no_other_beats(scores):
    graphs = [(GraphConfig(debate=at % 3), (float(right), float(used))) for at, (right, used) in enumerate(scores)]
    chosen = [score for _, score in frontier(graphs)]
    for score in (score for _, score in graphs):
        assert any(other[0] >= score[0] and other[1] >= score[1] for other in chosen)
    assert not any(a != b and a[0] >= b[0] and a[1] >= b[1] for a in chosen for b in chosen)
    assert [-used for _, used in chosen] == sorted(-used for _, used in chosen)
