"""One bench in memory for the tests of all algorithms: what is played is recorded, and what is recorded stays.

It keeps `training.learning.base.Bench`'s promises: rollouts and earlier episodes come in any order, failed ones too; a
candidate's rollouts are its own; a branch has the prompt of its call; what is published is live for what comes next.
"""

import random
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from chimera.config.sections.rollouts import RewardConfig
from chimera.config.tree import Config
from chimera.data.tasks import Dataset
from evaluation.records.rollouts import RolloutRecord
from training.lab.candidates import phase_of
from training.lab.records import identity
from training.learning.adapter import HierarchicalTraceAdapter
from training.learning.episodes import Episode
from training.tune.fine_tune import fine_tune

NO_TASKS = Dataset((), (), (), "own", "none")
ADAPTER = HierarchicalTraceAdapter(RewardConfig())


class FakeView:
    """Keeps what a user would have seen: lines, and of pieces of work (name, done, total, text)."""

    def __init__(self):
        self.lines, self.works = [], []

    @contextmanager
    def phase(self, name, total, versions, *, table=True):
        self.lines.append(f"{name}: {total} rollouts")
        yield

    @contextmanager
    def work(self, name, total):
        yield lambda done, text="": self.works.append((name, done, total, text))

    def add(self, record):
        pass

    def note(self, text):
        self.lines.append(text)

    warn = note


class FakeMetrics:
    """Keeps what was logged, and how many protocols were shown, by phase."""

    def __init__(self):
        self.logged, self.shown = [], []

    def log(self, phase, step, values):
        self.logged.append((phase, step, dict(values)))

    def protocols(self, phase, records):
        self.shown.append((phase, len(records)))


class FakeBench:
    """A phase's bench.

    Args:
        run: Where the phase writes.
        config: The whole configuration.
        dataset: The tasks.
        versions: What is live.
        weights: The folder of each slot's live weights.
        earlier: The records of earlier phases' rollouts.
        order: Decides the order in which rollouts end.

    A test overrides what its algorithm asks for: `play` (the record of one rollout), `say` (one branch of a call),
    `retell` (the record of a replay), `answer` (the completion of a question).
    """

    def __init__(self, run, *, config=None, dataset=None, versions=None, weights=None, earlier=(), order=0):
        self.run, self.config, self.dataset = run, config or Config(), dataset or NO_TASKS
        self.versions = dict(versions or {})
        self.view, self.metrics = FakeView(), FakeMetrics()
        self.earlier, self.recorded, self.branches, self.published = list(earlier), {}, {}, []
        self.asked, self.replays, self.questions = [], {}, {}
        self.is_computing, self.computed = False, 0
        self._weights = dict(weights or {})
        self._order = random.Random(order)

    @property
    def logged(self):
        return self.metrics.logged

    @property
    def ran(self):
        """How many rollouts were played."""
        return len(self.asked)

    def weights(self, slot):
        return self._weights[slot]

    @asynccontextmanager
    async def computing(self):
        """Nothing is played and nothing goes live meanwhile: servers may be asleep."""
        self.is_computing, self.computed = True, self.computed + 1
        try:
            yield
        finally:
            self.is_computing = False

    async def play(self, given, versions) -> RolloutRecord:
        raise AssertionError(f"this test makes no rollouts, but {given.task.id} was asked for")

    def say(self, call, random_):
        raise AssertionError(f"this test makes no branches, but one of {call.response_id} was asked for")

    def retell(self, episode, at, instead, policies) -> RolloutRecord:
        raise AssertionError(f"this test makes no replays, but one of {episode.record.rollout_id} was asked for")

    def answer(self, slot, messages, options):
        raise AssertionError(f"this test asks nobody, but {slot} was asked")

    def episode(self, record):
        return Episode(record, None, self.run.path, ADAPTER)

    async def episodes(self):
        return [self.episode(record) for record in self._order.sample(self.earlier, len(self.earlier))]

    async def rollouts(self, inputs, *, mode="train", instead=()):
        versions = {**self.versions, **{policy.slot: policy.version for policy in instead}}
        named = [replace(given, phase=phase_of(given.phase, instead)) for given in inputs]
        for phase in {given.phase for given in named}:
            self.recorded |= {identity(one): one for one in map(RolloutRecord.load, self.run.rollouts(phase))}
        for given in self._order.sample(named, len(named)):
            if identity(given) not in self.recorded:
                self.asked.append((mode, given))
                made = await self.play(given, versions)
                self.run.append_rollout(made.dump(), phase=given.phase)
                self.recorded[identity(given)] = made
            yield self.episode(self.recorded[identity(given)])

    async def branch(self, call, k, *, seed):
        key = call.prompt_ids, k, seed, self.versions[self.config.slot(call.role)]
        if key not in self.branches:
            draws = (random.Random(f"{key}/{number}") for number in range(k))
            said = [self.say(call, draw) for draw in draws]
            self.branches[key] = [replace(one, response_id=f"{len(self.branches)}/{n}") for n, one in enumerate(said)]
        return self.branches[key]

    async def replay(self, episode, *, at, instead=None, policies=()):
        key = episode.record.rollout_id, at, repr(instead), tuple(policy.version for policy in policies)
        if key not in self.replays:
            self.replays[key] = self.retell(episode, at, instead or {}, policies)
        return self.episode(self.replays[key])

    async def ask(self, slot, messages, **options):
        key = slot, repr(messages), repr(options)
        if key not in self.questions:
            self.questions[key] = self.answer(slot, messages, options)
        return self.questions[key]

    async def publish(self, policy):
        folder = self.run.path / policy.folder
        assert any(folder.iterdir()), "a policy is written before it goes live"
        self.published.append(policy)
        self.versions = {**self.versions, policy.slot: policy.version}
        if policy.part == "weights":
            self._weights[policy.target] = folder

    async def fine_tune(self, plan, settings, choose, *, name=None, start=None, beta=None, imitation=0.0):
        return await fine_tune(self, plan, settings, choose, name=name, start=start, beta=beta, imitation=imitation)

    def spent(self):
        answers = sum(map(len, self.branches.values()))
        made = {
            "branch_requests": len(self.branches),
            "branch_answers": answers,
            "replays": len(self.replays),
            "ask_requests": len(self.questions),
        }
        return {name: number for name, number in made.items() if number}
