"""The bandit's reward models, learning from logged choices, and folder on disk."""

import json
import random
from dataclasses import replace
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_kit import refused

from agents.context import Candidates
from agents.findings import SEARCH_AGAIN, search_cues
from agents.policies.bandit import BanditPolicy, Settings, folds, load_policy
from agents.policies.events import BanditEvent
from agents.policies.features import feature_names, search_features, search_names
from agents.policies.models import DRAWS, LinearThompson, SoftLogistic
from chimera.config.roles import JUNIORS
from chimera.core.errors import RunError
from chimera.core.types import abstract_text
from chimera.data.generated.tasks import generate
from recipes.nano.transcripts import EXPERT, Habits, propose
from training.algorithms.bandit import BanditSettings
from training.algorithms.bandit_value import estimate


def settings_for(*, hashed_features=256, **changes):
    settings = Settings.of(BanditSettings(**{"update": "direct", **changes}), seed=0)
    return replace(settings, hashed_features=hashed_features)


# A small world: three authors, one of them good on each kind of question.
KINDS = {"drug": "Does nevodezin lower pain?", "gene": "Does the VENIM5 variant lower pain?"}
GOOD = {"drug": "Pharmacologist", "gene": "Geneticist"}


def hypothesis(author, answer="yes"):
    return {
        "author": author,
        "evidence": ["Pain was lower (p=0.01)."],
        "comparison": "asked lower; found lower, p=0.01, significant",
        "claim": "it lowers pain",
        "answer": answer,
    }


def event(kind, author, propensities, reward, task_id, preferred=None):
    hypotheses = [hypothesis(name) for name in JUNIORS]
    return BanditEvent(KINDS[kind], hypotheses, author, preferred, propensities, "old", reward, (), task_id)


def badly_logged(size, seed, noise=0.3):
    """90 % bad choices: the good author is tried one time in ten, one bad author twice as often as the other."""
    rng = random.Random(seed)
    events = []
    for number in range(size):
        kind = rng.choice(list(KINDS))
        bad = [name for name in JUNIORS if name != GOOD[kind]]
        propensities = {GOOD[kind]: 0.1, bad[0]: 0.6, bad[1]: 0.3}
        author = rng.choices(list(propensities), list(propensities.values()))[0]
        reward = (1.0 if author == GOOD[kind] else 0.4) + rng.gauss(0, noise)
        events.append(event(kind, author, propensities, reward, f"t{number}", bad[0]))
    return events


def learned(events, **changes):
    policy = BanditPolicy(settings_for(**changes))
    policy.learn(policy.examples(events))
    return policy


def choice_of(policy, kind):
    candidates = Candidates(KINDS[kind], [hypothesis(name) for name in JUNIORS], ())
    return JUNIORS[int(policy.probabilities(candidates, greedy=True).argmax())]


@cache
def badly_logged_examples(seed):
    """The rows of a choice are the same for every policy."""
    return BanditPolicy(settings_for()).examples(badly_logged(300, seed))


@pytest.mark.parametrize("update", ["direct", "ips", "dr"])
@pytest.mark.parametrize("kind", ["thompson", "logistic"])
def test_a_log_of_bad_choices_teaches_the_good_one(kind, update):
    for seed in range(3):
        policy = BanditPolicy(settings_for(policy=kind, update=update))
        policy.learn(badly_logged_examples(seed))
        assert {name: choice_of(policy, name) for name in KINDS} == GOOD


@pytest.mark.parametrize("kind", ["thompson", "logistic"])
def test_in_hindsight_choices_that_were_never_good_teach_the_good_one(kind):
    """The good author is never chosen, so its reward is in no log: only the label tells what it would have earned."""
    events = []
    for number, name in enumerate(["drug", "gene"] * 60):
        bad = [author for author in JUNIORS if author != GOOD[name]]
        hindsight = {author: 1.0 if author == GOOD[name] else 0.4 for author in JUNIORS}
        made = event(name, bad[number % 3 % 2], None, 0.4, f"t{number}")
        events.append(replace(made, hindsight=hindsight))
    policy = learned(events, policy=kind, update="hindsight")
    assert {name: choice_of(policy, name) for name in KINDS} == GOOD
    assert policy.events == 120


def test_a_choice_without_hindsight_cannot_teach_in_hindsight():
    with refused(RunError, "task t0", "reward.alignment", "update=direct"):
        learned(badly_logged(1, 0), update="hindsight")


rows_and_rewards = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.floats(-2, 2), min_size=4, max_size=4), min_size=n, max_size=n),
        st.lists(st.floats(-3, 3), min_size=n, max_size=n),
        st.lists(st.floats(0, 5), min_size=n, max_size=n),
        st.permutations(range(n)),
        st.integers(0, n),
    )
)


@given(data=rows_and_rewards, prior=st.floats(0.05, 5), noise=st.floats(0.05, 5))
def test_the_posterior_is_the_batch_bayesian_solution_in_any_order_and_in_pieces(data, prior, noise):
    rows, rewards, weights, order, cut = (np.array(each) for each in data)
    model = LinearThompson(4, prior, noise, seed=0)
    for part in (order[:cut], order[cut:]):
        model.learn(rows[part].reshape(-1, 4), rewards[part], weights[part])
    mean, covariance = model.posterior()
    # The textbook's batch solution through the kernel form, a different route than adding up precisions.
    root = np.sqrt(weights)
    weighted = root[:, None] * rows
    gain = prior * weighted.T @ np.linalg.inv(prior * weighted @ weighted.T + noise * np.eye(len(rows)))
    assert mean == pytest.approx(gain @ (root * rewards), abs=1e-8)
    assert covariance == pytest.approx(prior * (np.eye(4) - gain @ weighted), abs=1e-8)


@given(difference=st.floats(-2, 2), scale=st.floats(0.1, 2))
@settings(max_examples=30)
def test_thompson_takes_an_action_as_often_as_it_is_the_best(difference, scale):
    """Two independent weights: P(first is best) is the normal distribution function of difference over deviation."""
    model = LinearThompson(2, scale**2, 1.0, seed=3)
    model.learn(np.array([[1.0, 0.0]]), np.array([difference * (1 + 1 / scale**2)]), np.array([1.0]))
    mean, covariance = model.posterior()
    expected = NormalDist().cdf((mean[0] - mean[1]) / np.sqrt(covariance[0, 0] + covariance[1, 1]))
    found = model.probabilities(np.eye(2))
    assert found.sum() == 1
    assert abs(found[0] - expected) < 4 * np.sqrt(0.25 / DRAWS)
    assert (found == model.probabilities(np.eye(2))).all()


def test_a_flat_choice_is_drawn_without_fault():
    """Equal rows leave the three rewards perfectly correlated: their covariance has no full rank."""
    model = LinearThompson(2, 1.0, 1.0, seed=0)
    assert model.probabilities(np.ones((3, 2))).sum() == 1


def test_soft_logistic_estimates_the_mean_reward_of_each_action():
    rng = np.random.default_rng(0)
    arms = rng.integers(2, size=2000)
    rewards = np.where(arms == 0, rng.choice([0.0, 2.0], 2000, p=[0.25, 0.75]), rng.choice([0.0, 2.0], 2000))
    model = SoftLogistic(2, lr=0.005, epochs=20, seed=0)
    model.learn(np.eye(2)[arms], rewards, np.ones(2000))
    assert model.predict(np.eye(2)) == pytest.approx([1.5, 1.0], abs=0.12)
    assert model.probabilities(np.eye(2)).tolist() == [1.0, 0.0]


def test_weights_count_a_choice_as_so_many():
    once, often = (SoftLogistic(1, lr=0.05, epochs=30, seed=0) for _ in range(2))
    rows, rewards = np.ones((2, 1)), np.array([0.0, 1.0])
    once.learn(rows, rewards, np.array([1.0, 1.0]))
    often.learn(rows, rewards, np.array([1.0, 4.0]))
    assert once.predict(rows[:1])[0] == pytest.approx(0.5, abs=0.05)
    assert often.predict(rows[:1])[0] == pytest.approx(0.8, abs=0.05)


def test_ips_learns_by_the_importance_of_an_even_choice_cut_at_the_limit():
    events = badly_logged(40, 1)
    policy = learned(events, update="ips", max_weight=2.0)
    examples = policy.examples(events)
    model = LinearThompson(len(feature_names(256)), policy.settings.prior_variance, policy.settings.noise_variance, 0)
    weights = [min(1 / (3 * one.event.propensities[one.event.author]), 2.0) for one in examples]
    assert max(weights) == 2.0 > min(weights)
    model.learn(
        np.array([one.rows[one.action] for one in examples]),
        np.array([one.event.reward for one in examples]),
        np.array(weights),
    )
    assert policy.expected(examples[0].rows) == pytest.approx(model.predict(examples[0].rows), abs=1e-8)


def test_doubly_robust_learning_survives_a_model_of_rewards_that_is_wrong():
    """Rewards depend on task and author, and the logger takes the author mostly where tasks are easy.

    A model that only sees authors takes easy tasks for a good author; propensities put that right.
    """
    rng = random.Random(0)
    events = []
    for number in range(3000):
        easy = rng.random() < 0.5
        propensities = {"Geneticist": 0.8 if easy else 0.1, "Pharmacologist": 0.1 if easy else 0.8, "Neurologist": 0.1}
        author = rng.choices(list(propensities), list(propensities.values()))[0]
        reward = 2.0 * easy + {"Geneticist": 0.0, "Pharmacologist": 0.5, "Neurologist": -1.0}[author]
        events.append(event("drug", author, propensities, reward, f"t{number}"))
    chosen = {
        update: choice_of(learned(events, update=update, hashed_features=0), "drug")
        for update in ("direct", "ips", "dr")
    }
    assert chosen == {"direct": "Geneticist", "ips": "Pharmacologist", "dr": "Pharmacologist"}


@pytest.mark.parametrize("update", ["ips", "dr"])
def test_a_choice_without_propensities_cannot_be_weighted(update):
    with refused(RunError, "task t1", "propensities", "update=direct"):
        learned([event("drug", "Geneticist", None, 1.0, "t1")], update=update)
    assert learned([event("drug", "Geneticist", None, 1.0, "t1")]).events == 1


def test_choices_on_one_task_stay_in_one_fold():
    events = [replace(one, task_id=f"t{number % 12}") for number, one in enumerate(badly_logged(60, 2))]
    examples = BanditPolicy(settings_for()).examples(events)
    parts = folds(examples)
    assert len(parts) == 5
    assert sorted(map(id, (one for fold, _ in parts for one in fold))) == sorted(map(id, examples))
    for fold, others in parts:
        assert len(fold) + len(others) == 60
        assert not {one.event.task_id for one in fold} & {one.event.task_id for one in others}


@pytest.mark.parametrize("update", ["direct", "dr"])
@pytest.mark.parametrize("kind", ["thompson", "logistic"])
def test_a_policy_is_the_same_after_reloading_and_goes_on_learning(tmp_path, kind, update):
    first, second = badly_logged(60, 0), badly_logged(60, 1)
    policy = learned(first, policy=kind, update=update)
    policy.save(tmp_path)
    reloaded = load_policy(tmp_path)
    assert (reloaded.settings, reloaded.events) == (policy.settings, 60)
    for one in (policy, reloaded):
        one.learn(one.examples(second))
    assert reloaded.events == 120
    for example in policy.examples(first[:5]):
        assert (reloaded.expected(example.rows) == policy.expected(example.rows)).all()
    candidates = Candidates(KINDS["gene"], [hypothesis(name) for name in JUNIORS], ())
    found = [one.probabilities(candidates, greedy=False).tolist() for one in (policy, reloaded)]
    assert found[0] == found[1]


def test_a_broken_folder_is_refused(tmp_path):
    with refused(RunError, tmp_path, "policy.json", "run the bandit phase again"):
        load_policy(tmp_path)
    learned(badly_logged(20, 0)).save(tmp_path)
    text = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps({**text, "settings": {}}))
    with refused(RunError, tmp_path, "run the bandit phase again"):
        load_policy(tmp_path)


def finding(study, answer, *, retracted=False):
    same = {"same": True}
    parts = {"group": same, "condition": same, "outcome": same}
    return {"study": study, "retracted": retracted, "design": "trial", "size": 500, "answer": answer, **parts}


def test_search_cues_count_what_counts_and_its_points():
    findings = [finding("1", "yes"), finding("2", "yes"), finding("3", "no"), finding("4", "no", retracted=True)]
    cues = search_cues(findings, 1, 2)
    expected = {"findings": 4, "counting": 3, "points yes": 8, "points no": 4, "margin": 1 / 3, "maybe": 0}
    assert cues == pytest.approx({**expected, "rounds": 1, "named": 2})
    nothing = search_cues([], 1, 1)
    assert (nothing["margin"], nothing["maybe"]) == (0, 1)
    rows = search_features(cues)
    assert rows.shape == (2, len(search_names()))
    assert rows[0] @ rows[1] == 0, "each action has weights of its own"


def searches(size, seed, price=0.0):
    """A further search is worth 0.8 where the sides are equal, and nothing elsewhere."""
    rng = random.Random(seed)
    propensities = {"again": 0.75, "combined": 0.25}
    for number in range(size):
        findings = [finding("1", "yes"), finding("2", rng.choice(["yes", "no"]))]
        cues = search_cues(findings, 1, 2)
        author = rng.choices(list(propensities), list(propensities.values()))[0]
        reward = 1.0 - 0.8 * (cues["maybe"] and author == "combined") + rng.gauss(0, 0.2)
        one = BanditEvent("Q?", SEARCH_AGAIN, author, "again", propensities, "s", reward, (), f"t{number}", cues=cues)
        yield one.less(price * (author == "again"))


@pytest.mark.parametrize("update", ["direct", "ips", "dr"])
def test_juniors_are_sent_again_where_it_pays_for_its_tokens(update, tmp_path):
    policy = BanditPolicy(Settings.of(BanditSettings(update=update), seed=0, combines=True))
    policy.learn(policy.examples(list(searches(300, 1, price=0.3))))
    policy.save(tmp_path)
    equal = search_cues([finding("1", "yes"), finding("2", "no")], 1, 2)
    clear = search_cues([finding("1", "yes"), finding("2", "yes")], 1, 2)
    for learned_policy in (policy, load_policy(tmp_path)):
        best = [
            learned_policy.probabilities(Candidates("Q?", SEARCH_AGAIN, (), cues), greedy=True).tolist()
            for cues in (equal, clear)
        ]
        assert best == [[1, 0], [0, 1]]
    found = estimate(policy.settings, policy.examples(list(searches(300, 2, price=0.3))))
    assert found["gain_low"] > 0, "to be sent always costs more"


def test_a_policy_makes_no_choices_of_another_kind():
    policy = BanditPolicy(Settings.of(BanditSettings(update="direct"), seed=0, combines=True))
    with refused(RunError, "society.graph.choose", "run the bandit phase again"):
        policy.probabilities(Candidates("Q?", [hypothesis(name) for name in JUNIORS], ()), greedy=True)
    with refused(RunError, "society.graph.choose"):
        learned(list(searches(1, 0)))


def generated_choices(size, seed, *, exploration=0.5):
    """Choices of a blind supervisor on generated tasks among hypotheses with the small model's habits."""
    rng = random.Random(seed)
    for item in generate(size, seed=seed):
        hypotheses = [{"author": name, **propose(item, name, rng, Habits()).model_dump()} for name in JUNIORS]
        preferred = rng.choice(JUNIORS)
        propensities = {name: exploration / 3 + (1 - exploration) * (name == preferred) for name in JUNIORS}
        author = rng.choices(JUNIORS, list(propensities.values()))[0]
        right = hypotheses[JUNIORS.index(author)]["answer"] == item.task.label
        sources = [{"id": item.task.id, "text": abstract_text(item.task.context)}]
        reward = 1.3 + 0.8 * right + rng.gauss(0, 0.4)
        about = (item.task.goal, hypotheses, author, preferred, propensities, "s", reward, sources, item.task.id)
        yield item, BanditEvent(*about)


@pytest.fixture(scope="module")
def held_out():
    policy = BanditPolicy(settings_for())
    pairs = list(generated_choices(250, 11))
    return [(item, example) for (item, _), example in zip(pairs, policy.examples([e for _, e in pairs]), strict=True)]


def accuracy(held_out, choose):
    hits = [example.event.hypotheses[choose(item, example)]["answer"] == item.task.label for item, example in held_out]
    return sum(hits) / len(hits)


def test_two_hundred_choices_teach_what_is_right_on_new_tasks(held_out):
    policy = learned([event for _, event in generated_choices(200, 5)])
    learned_share = accuracy(held_out, lambda _, example: int(policy.expected(example.rows).argmax()))
    blind = accuracy(held_out, lambda _, example: example.action)
    expert = accuracy(held_out, lambda item, _: JUNIORS.index(EXPERT[item.facts.kind]))
    assert learned_share >= 0.85
    assert learned_share > blind + 0.08
    assert learned_share > expert - 0.03, "it should be about as good as knowing who is careful on what"


def test_the_estimate_of_a_policy_that_learned_something_holds_on_new_tasks(held_out):
    policy = BanditPolicy(settings_for())
    logged = policy.examples([event for _, event in generated_choices(300, 6)])
    policy.learn(logged)
    found = estimate(policy.settings, logged)
    share = accuracy(held_out, lambda _, example: int(policy.expected(example.rows).argmax()))
    blind = accuracy(held_out, lambda _, example: example.action)
    assert found["dr_low"] < 1.3 + 0.8 * share < found["dr_high"]
    assert found["gain_low"] < 0.8 * (share - blind) < found["gain_high"]
    assert 30 < found["ess"] < 300
    assert found["logged_low"] < found["logged"] < found["logged_high"]


def test_the_estimate_is_not_flattered_by_what_was_learned_from_noise():
    """Rewards that nothing predicts: learned on themselves a policy seems good, cross-fitted it does not."""
    values = []
    for seed in range(8):
        rng = random.Random(seed)
        events = [replace(event, reward=rng.gauss(0, 1)) for _, event in generated_choices(100, 100 + seed)]
        values.append(estimate(settings_for(), BanditPolicy(settings_for()).examples(events))["snips"])
    assert abs(np.mean(values)) < 0.25  # learned on themselves: about 0.7; the standard error here is 0.08


def test_a_log_that_tells_nothing_gives_no_figures():
    policy = BanditPolicy(settings_for())
    assert estimate(policy.settings, policy.examples([event("drug", "Geneticist", None, 1.0, "a")] * 3)) == {"ess": 0.0}
    by_policy = [replace(one, preferred=None) for one in badly_logged(30, 0)]
    found = estimate(policy.settings, policy.examples(by_policy))
    assert found["gain"] is None
    assert found["as_supervisor"] is None
    assert found["dr"] is not None
