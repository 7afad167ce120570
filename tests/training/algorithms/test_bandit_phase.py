"""Who chooses in a rollout, the bandit phase from logged choices to a saved policy, and the society under a policy."""

import hashlib
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fake_bench import ADAPTER, FakeBench
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused
from record_kit import answered

from agents.context import Candidates, SupervisorChoice
from agents.findings import SEARCH_AGAIN, search_cues
from agents.policies.bandit import BanditPolicy, Settings, load_policy
from agents.policies.choice import SelectionSpec, draw, explored, make_selector
from agents.policies.features import features
from chimera.config.roles import JUNIORS
from chimera.config.tree import Config
from chimera.core.errors import ConfigError, RunError
from chimera.core.types import Option, abstract_text
from chimera.data.generated.tasks import generate
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutInput
from recipes.nano.transcripts import Habits, propose
from training.algorithms.bandit import Bandit, BanditSettings, draw_tasks
from training.configuration import load_config
from training.learning.base import PhasePlan
from training.phases import make_phases

TASKS = {item.task.id: item for item in generate(260, seed=7)}
TRAIN, VALIDATION = (tuple(item.task for item in TASKS.values())[part] for part in (slice(220), slice(220, None)))
DATASET = Dataset(TRAIN, VALIDATION, (), "generated", "test")
HALF = SelectionSpec(None, None, 0.5)


def candidates(task_id, seed=0):
    item, rng = TASKS[task_id], random.Random(f"{task_id}/{seed}")
    hypotheses = [{"author": name, **propose(item, name, rng, Habits()).model_dump()} for name in JUNIORS]
    return Candidates(item.task.goal, hypotheses, [{"id": task_id, "text": abstract_text(item.task.context)}])


def rollout(given_, spec, *, greedy=False, failed=False):
    """What the society would record: juniors with the small model's habits, a blind supervisor, a noisy reward."""
    task, rng = given_.task, random.Random(given_.seed)
    offered = candidates(task.id, given_.seed)
    selector = make_selector(spec, greedy=greedy)
    preferred = None
    choice = selector.propose(offered, given_.seed)
    if choice is None:
        preferred = rng.choice(JUNIORS)
        choice = selector.select(offered, preferred, given_.seed)
    answer = offered.hypotheses[JUNIORS.index(choice.author)]["answer"]
    outputs = {
        "research_goal": task.goal,
        "initial_hypotheses": list(offered.hypotheses),
        "selection": {
            "author": choice.author,
            "preferred": preferred,
            "policy": choice.policy,
            "propensities": choice.propensities,
            "sources": list(offered.sources),
        },
    }
    reward = 1.3 + 0.8 * (answer == task.label) + rng.gauss(0, 0.3)
    fields = {"phase": given_.phase, "repeat": given_.repeat, "seed": given_.seed, "level": task.level}
    fields |= {"error": "no answer"} if failed else {"outputs": outputs}
    name = f"{given_.phase}-{task.id}-{given_.repeat}"
    return answered(name, task.id, None if failed else answer, reward, label=task.label, **fields)


PLAN = PhasePlan("bandit", "bandit", ("Supervisor",), ("supervisor",))


async def learn(lab):
    return await Bandit().learn(PLAN, lab.settings, lab)


class FakeLab(FakeBench):
    """Runs `rollout` instead of the society."""

    def __init__(self, folder, settings, *, gathered=200, order=0, recorded=(), fail=()):
        folder.mkdir(exist_ok=True)
        earlier = [rollout(RolloutInput.of(task, "gather", 0, 0), HALF) for task in TRAIN[:gathered]]
        super().__init__(Run(folder, writable=True), dataset=DATASET, earlier=earlier, order=order)
        self.settings = settings
        self._fail = set(fail)
        for record in recorded:
            self.run.append_rollout(record.dump(), phase=record.phase)

    @property
    def live(self):
        return self.published[-1] if self.published else None

    async def play(self, given, versions):
        live = self.live
        spec = HALF if live is None else SelectionSpec(live.version, str(self.run.path / live.folder), 0.5)
        return rollout(given, spec, failed=given.task.id in self._fail)


def config_of(**bandit):
    return BanditSettings(**{"update": "direct", "rounds": 1, "tasks": 30, **bandit})


async def test_the_phase_learns_saves_and_lets_the_policy_choose(tmp_path):
    lab = FakeLab(tmp_path, config_of(rounds=2))
    result = await learn(lab)
    assert result.policy == Policy("choice", "Supervisor", "Supervisor@bandit", "models/Supervisor/bandit")
    assert lab.live.version == "Supervisor@bandit-1", "the last one is for the gate to put live"
    first, second = (load_policy(tmp_path / "models/Supervisor" / f"bandit-{number}") for number in (0, 1))
    final = load_policy(tmp_path / result.policy.folder)
    assert [policy.events for policy in (first, second, final)] == [200, 230, 260]
    logged = [(phase, step, values["choices"]) for phase, step, values in lab.logged]
    assert logged == [("bandit", 0, 200), ("bandit", 1, 230), ("bandit", 2, 260)]
    assert lab.metrics.shown == [("bandit", 60)]
    policies = Counter(r.outputs["selection"]["policy"] for r in lab.recorded.values())
    assert policies == {"Supervisor@bandit-0": 30, "Supervisor@bandit-1": 30}
    assert all(r.outputs["selection"]["preferred"] is None for r in lab.recorded.values())
    assert result.figures["choices"] == 260
    assert result.figures["rollouts"] == 60
    assert result.figures["dr"] > result.figures["logged"]
    assert "estimated gain over the choice without it +" in lab.view.lines[-1]
    assert {given.phase for _, given in lab.asked} == {"bandit"}
    drawn = [{given.task.id for _, given in lab.asked if given.repeat == number} for number in (0, 1)]
    assert [len(tasks) for tasks in drawn] == [30, 30]
    assert drawn[0] != drawn[1]


def fingerprint(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


async def test_a_resumed_phase_ends_as_the_uninterrupted_one(tmp_path):
    """Recorded rollouts come back in another order, and the rest are run; the files are the same to the byte."""
    whole = FakeLab(tmp_path / "whole", config_of())
    await learn(whole)
    half = [record for number, record in enumerate(whole.recorded.values()) if number % 2]
    resumed = FakeLab(tmp_path / "resumed", config_of(), order=1, recorded=half)
    await learn(resumed)
    assert resumed.ran == whole.ran - len(half) == 15
    assert fingerprint(tmp_path / "resumed/models") == fingerprint(tmp_path / "whole/models")
    assert [step for _, step, _ in resumed.logged] == [0, 1]


async def test_without_rounds_the_log_alone_teaches(tmp_path):
    lab = FakeLab(tmp_path, config_of(rounds=0), gathered=60)
    result = await learn(lab)
    assert lab.live is None
    assert lab.ran == 0
    assert load_policy(tmp_path / result.policy.folder).events == 60
    assert "rollouts" not in result.figures


async def test_failed_rollouts_teach_nothing_and_a_round_of_them_is_an_error(tmp_path):
    inputs = draw_tasks("bandit", config_of(), DATASET, 0, 0)
    some = FakeLab(tmp_path / "some", config_of(), fail={one.task.id for one in inputs[:10]})
    assert (await learn(some)).figures["choices"] == 220
    none = FakeLab(tmp_path / "none", config_of(), fail={one.task.id for one in inputs})
    with refused(RunError, "30 rollouts", "no answer"):
        await learn(none)


async def test_without_a_choice_the_error_says_what_to_do(tmp_path):
    with refused(RunError, "bandit", "no scored choice", "gather"):
        await learn(FakeLab(tmp_path, config_of(), gathered=0))


COMBINE = ["society.graph.choose=combine", "bandit.update=direct", "tools.results=4"]


@pytest.mark.parametrize(
    ("settings", "pieces"),
    [
        (["rollouts.exploration=0", "bandit.update=direct"], ("rollouts.exploration=0", "bandit", "set it above 0")),
        (["reward.alignment=0"], ("bandit.update=hindsight", "reward.alignment=0", "set bandit.update")),
        (["bandit.tasks=221"], ("bandit.tasks=221", "220 training tasks")),
        (["society.graph.choose=vote"], ("pipeline.bandit.roles", "society.graph")),
        ([*COMBINE, "society.graph.searches=1"], ("society.graph.searches=1", "bandit", "2 or more")),
        ([*COMBINE, "bandit.update=hindsight"], ("bandit.update=hindsight", "choose=combine", "to direct")),
        ([*COMBINE, "rollouts.exploration=0"], ("rollouts.exploration=0", "set it above 0")),
    ],
)
def test_a_phase_that_cannot_work_is_refused_before_anything_starts(settings, pieces):
    with refused(ConfigError, pieces):
        make_phases(["bandit"], load_config(None, settings), DATASET)


@pytest.mark.parametrize("settings", [[], COMBINE])
def test_the_supervisor_can_learn_to_choose_and_whether_to_search_again(settings):
    (phase,) = make_phases(["bandit"], load_config(None, settings), DATASET)
    assert phase.plan.roles == ("Supervisor",)


def test_without_rounds_no_tasks_are_needed():
    Bandit().check(PLAN, BanditSettings(rounds=0, tasks=1000), Config(), DATASET)


def test_findings_answer_no_tasks_with_options():
    tasks = tuple(replace(task, options=(Option("A", "it does"), Option("B", "not"))) for task in TRAIN)
    with refused(ConfigError, "society.graph.choose=combine", "A, B", "set it to select"):
        make_phases(["gather"], load_config(None, COMBINE), replace(DATASET, train=tasks))


class SearchLab(FakeLab):
    """Juniors search once more in every other rollout, which costs 1,000 tokens and brings nothing."""

    def __init__(self, folder, settings):
        super().__init__(folder, settings, gathered=0)
        self.config, self.versions = load_config(None, COMBINE), {"refiner": "ppo-2", "selection": "bandit"}

    def searched(self, task, number, phase, refiner="ppo-2"):
        author = ("again", "combined")[number % 2]
        share = {"preferred": "again", "policy": "supervisor", "propensities": {"again": 0.5, "combined": 0.5}}
        selection = {"author": "combined", "preferred": None, "policy": "combined", "propensities": None, "sources": []}
        chosen = [{"author": author, **share, "cues": search_cues([], 1, 2)}]
        outputs = {"research_goal": task.goal, "selection": selection, "choices": chosen}
        tokens = {"junior": {"prompt": 1500 if author == "again" else 500, "completion": 500}}
        record = answered(f"{phase}{number}", task.id, "yes", 1.0, label=task.label, phase=phase, outputs=outputs)
        return replace(record, tokens=tokens, policy_versions={"refiner": refiner, "selection": "nobody"})

    async def play(self, given, versions):
        return self.searched(given.task, self.ran, given.phase)


async def test_the_phase_learns_from_choices_to_search_once_more_and_their_tokens(tmp_path):
    lab, cues = SearchLab(tmp_path, config_of(rounds=0, token_price=0.5)), search_cues([], 1, 2)
    tasks = list(enumerate(TRAIN[:60]))
    lab.earlier = [lab.searched(task, number, "gather") for number, task in tasks]
    lab.earlier += [lab.searched(task, 0, f"old{number}", refiner="ppo-1") for number, task in tasks]
    result = await learn(lab)
    policy = load_policy(tmp_path / result.policy.folder)
    assert policy.events == 60
    assert result.figures["logged"] == pytest.approx(0.25)
    assert result.figures["dr"] == pytest.approx(0.5, abs=0.05)
    best = policy.probabilities(Candidates("Q?", SEARCH_AGAIN, (), cues), greedy=True)
    assert best.tolist() == [0, 1]


@pytest.mark.parametrize("rounds", [0, 1])
async def test_without_a_choice_by_the_live_weights_rounds_alone_teach_whether_to_search(tmp_path, rounds):
    lab = SearchLab(tmp_path, config_of(rounds=rounds))
    lab.earlier = [lab.searched(TRAIN[0], 0, "old", refiner="ppo-1")]
    if rounds:
        assert (await learn(lab)).figures["choices"] == 30
    else:
        with refused(RunError, "bandit", "no scored choice", "gather"):
            await learn(lab)


@given(weights=st.lists(st.floats(0, 1), min_size=2, max_size=5).filter(lambda w: sum(w) > 0), share=st.floats(0, 1))
def test_exploration_mixes_with_even_chances(weights, share):
    before = {str(at): weight / sum(weights) for at, weight in enumerate(weights)}
    after = explored(before, share)
    assert sum(after.values()) == pytest.approx(1)
    for author, probability in before.items():
        assert after[author] == pytest.approx(share / len(before) + (1 - share) * probability)


def test_choices_are_drawn_with_exactly_the_logged_probabilities():
    propensities = {"a": 0.5, "b": 0.0, "c": 0.2, "d": 0.3}
    counts = Counter(draw(propensities, "p", seed).author for seed in range(8000))
    assert counts["b"] == 0
    for author, probability in propensities.items():
        assert abs(counts[author] / 8000 - probability) < 4 * (0.25 / 8000) ** 0.5
    assert draw(propensities, "p", 5) == draw(propensities, "p", 5)
    assert {draw(propensities, "p", None).author for _ in range(200)} == {"a", "c", "d"}


def test_before_training_the_supervisors_choice_is_mixed_in_training_rollouts_only():
    offered = candidates("generated-7-3")
    selector = make_selector(HALF)
    assert selector.propose(offered, 1) is None
    chosen = [selector.select(offered, "Neurologist", seed) for seed in range(300)]
    assert chosen[0].policy == "supervisor"
    assert chosen[0].propensities == pytest.approx({"Geneticist": 1 / 6, "Pharmacologist": 1 / 6, "Neurologist": 2 / 3})
    assert 170 < sum(choice.author == "Neurologist" for choice in chosen) < 230
    assert isinstance(make_selector(HALF, greedy=True), SupervisorChoice)


@pytest.fixture
def spec(tmp_path):
    policy = BanditPolicy(Settings.of(BanditSettings(update="direct"), 0))
    inputs = [RolloutInput.of(task, "gather", 0, 0) for task in TRAIN[:60]]
    policy.learn(policy.examples([ADAPTER.adapt_for_bandit(rollout(one, HALF))[0] for one in inputs]))
    policy.save(tmp_path)
    return SelectionSpec("Supervisor@bandit-3", str(tmp_path), 0.3)


def test_a_learned_policy_draws_in_training_and_takes_the_best_on_held_out_tasks(spec):
    offered = candidates("generated-7-200")
    policy = load_policy(Path(spec.folder))
    draws = policy.probabilities(offered, greedy=False)
    choice = make_selector(spec).propose(offered, 4)
    assert choice == make_selector(spec).propose(offered, 4)
    assert choice.policy == "Supervisor@bandit-3"
    assert list(choice.propensities.values()) == pytest.approx([0.1 + 0.7 * float(weight) for weight in draws])
    best = make_selector(spec, greedy=True).propose(offered, 4)
    assert best.propensities == {name: float(name == best.author) for name in JUNIORS}
    assert best.author == JUNIORS[int(policy.expected(features(offered, 256)).argmax())]


async def test_a_seeded_society_repeats_its_choice_and_its_propensities(society_kit, spec):
    async def play(select, seed):
        scripted = society_kit.Model(Supervisor=[justify])
        complete = scripted.complete

        async def obedient(key, messages, **options):
            form = options["response_format"]["json_schema"]
            if form["name"] == "Selection" and "const" in form["schema"]["properties"]["choice"]:
                only = form["schema"]["properties"]["choice"]["const"]
                scripted.scripts["Supervisor"] = [{"choice": only, "justification": f"{only} is right"}]
            return await complete(key, messages, **options)

        scripted.complete = obedient
        state = await society_kit.make(scripted).run(society_kit.brief, seed, select=select)
        return state["selection"], state["supervisor_justification"]

    justify = society_kit.answers["Supervisor"]
    for select in (make_selector(HALF), make_selector(spec)):
        seen = [await play(select, seed) for seed in (3, 3, *range(10, 22))]
        assert seen[0] == seen[1]
        assert len({selection["author"] for selection, _ in seen}) > 1
        for selection, justification in seen:
            assert sum(selection["propensities"].values()) == pytest.approx(1)
            if selection["author"] != selection["preferred"]:
                assert justification == f"{selection['author']} is right"
