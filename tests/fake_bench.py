"""One bench in memory for the tests of all algorithms: what is played is recorded, and what is recorded stays.

It keeps `training.learning.base.Bench`'s promises: rollouts and earlier episodes come in any order, failed ones too; a
candidate's rollouts are its own; a branch has the prompt of its call; what is published is live for what comes next.
"""

import random
from contextlib import contextmanager
from dataclasses import replace

from chimera.config.tree import Config, RewardConfig
from chimera.run.seals import seal
from evaluation.records.rollouts import RolloutRecord
from training.learning.adapter import HierarchicalTraceAdapter
from training.learning.episodes import Episode

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

    A test overrides what its algorithm asks for: `play` (the record of one rollout), `say` (one branch of a call).
    """

    def __init__(self, run, *, config=None, dataset=None, versions=None, weights=None, earlier=(), order=0):
        self.run, self.config, self.dataset = run, config or Config(), dataset
        self.versions = dict(versions or {})
        self.view, self.metrics = FakeView(), FakeMetrics()
        self.earlier, self.recorded, self.branches, self.published = list(earlier), {}, {}, []
        self.ran = 0
        self._weights = dict(weights or {})
        self._order = random.Random(order)

    @property
    def logged(self):
        return self.metrics.logged

    def weights(self, slot):
        return self._weights[slot]

    async def play(self, given, versions) -> RolloutRecord:
        raise AssertionError(f"this test makes no rollouts, but {given.task.id} was asked for")

    def say(self, call, random_):
        raise AssertionError(f"this test makes no branches, but one of {call.response_id} was asked for")

    def episode(self, record):
        return Episode(record, None, self.run.path, ADAPTER)

    async def episodes(self):
        return [self.episode(record) for record in self._order.sample(self.earlier, len(self.earlier))]

    async def rollouts(self, inputs, *, mode="train", instead=()):
        versions = {**self.versions, **{policy.slot: policy.version for policy in instead}}
        for given in self._order.sample(list(inputs), len(inputs)):
            key = (given.phase, given.task.id, given.repeat, *(policy.version for policy in instead))
            if key not in self.recorded:
                self.ran += 1
                self.recorded[key] = await self.play(given, versions)
            yield self.episode(self.recorded[key])

    async def branch(self, call, k, *, seed):
        key = call.prompt_ids, k, seed, self.versions[self.config.slot(call.role)]
        if key not in self.branches:
            draws = (random.Random(f"{key}/{number}") for number in range(k))
            said = [self.say(call, draw) for draw in draws]
            self.branches[key] = [replace(one, response_id=f"{len(self.branches)}/{n}") for n, one in enumerate(said)]
        return self.branches[key]

    async def publish(self, policy):
        folder = self.run.path / policy.folder
        assert any(folder.iterdir()), "a policy is written before it goes live"
        seal(self.run, policy.folder)
        self.published.append(policy)
        self.versions = {**self.versions, policy.slot: policy.version}
        if policy.part == "weights":
            self._weights[policy.target] = folder

    def spent(self):
        answers = sum(map(len, self.branches.values()))
        return {"branch_requests": len(self.branches), "branch_answers": answers} if answers else {}
