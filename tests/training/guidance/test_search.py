"""Searches on the fake bench: a society whose answers depend on what its roles are told."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from fake_bench import FakeBench
from lab_kit import PATIENCE, task
from message_kit import refused
from record_kit import answered

from agents.policies.guidance import load
from agents.policies.society import of_versions
from chimera.config.roles import JUNIORS
from chimera.core.errors import ConfigError, RunError
from chimera.data.tasks import Dataset
from chimera.run.directory import Run
from chimera.serving.client import Completion
from training.configuration import load_config
from training.guidance.fewshot import Fewshot, FewshotSettings
from training.guidance.gepa import Gepa, GepaSettings
from training.guidance.lessons import LessonsAlgorithm, LessonsSettings
from training.learning.base import PhasePlan
from training.learning.experience import Conversation
from training.phases import make_phases

ENDPOINTS = [f"models.junior.{key}" for key in ("kind=endpoint", "base_url=http://127.0.0.1:1/v1", "model=m")]
TASKS = [task(f"t{number}", ("yes", "no")[number % 2]) for number in range(40)]
DATASET = Dataset(tuple(TASKS), (), (), "generated", "test")
USEFUL = "Look at the direction of the result."
PHASE = ["pipeline.fewshot.roles=[juniors]", "fewshot.tasks=8"]
USELESS = "Read everything twice."
REPLY = {"role": "assistant", "content": "{}"}


def plan(algorithm):
    return PhasePlan(algorithm, algorithm, JUNIORS, ("junior",))


class Society(FakeBench):
    """Answers yes, unless the Geneticist is told what is useful, or shown an example whose answer is no."""

    def __init__(self, run, *settings, writes=(USEFUL,)):
        config = load_config(None, [*ENDPOINTS, f"runs_dir={run.path.parent}", *settings])
        super().__init__(run, config=config, dataset=DATASET)
        self.writes = list(writes)

    def episode_of(self, number):
        label = TASKS[number].label
        says = "yes" if number % 3 else label
        record = answered(f"ro-{number}", f"t{number}", says, label=label)
        prompt = {"role": "user", "content": json.dumps({"goal": TASKS[number].goal})}
        talks = [
            Conversation(role, 1, [prompt, REPLY], None, {"answer": says}, parsed=True, stance=says) for role in JUNIORS
        ]
        return SimpleNamespace(record=record, conversations=lambda roles: talks)

    async def episodes(self):
        return [self.episode_of(number) for number in self._order.sample(range(40), 40)]

    def episode(self, record):
        return SimpleNamespace(record=record)

    async def play(self, given, versions):
        told = of_versions(self.run.path, versions).guidance.get("Geneticist")
        helped = told is not None and (
            USEFUL in (*told.lessons, *told.prompt.split("\n"))
            or any(example["answer"] == "no" for example in told.examples)
        )
        answer = given.task.label if helped else "yes"
        return answered(f"{given.phase}/{given.task.id}", given.task.id, answer, float(answer == given.task.label),
                        phase=given.phase, label=given.task.label, policy_versions=versions)  # fmt: skip

    def answer(self, slot, messages, options):
        text = self.writes[len(self.questions) % len(self.writes)]
        payload = json.loads(messages[1]["content"])
        name = options["response_format"]["json_schema"]["name"]
        said = {"lessons": [text]} if name == "Lessons" else {"prompt": f"{payload['prompt']}\n{text}"}
        content = json.dumps(said)
        return Completion({"role": "assistant", "content": content}, content, (), "stop", 5, 2, "q", None)


def learn(algorithm, settings, bench):
    return asyncio.run(algorithm.learn(plan(settings.algorithm), settings, bench))


@pytest.fixture
def run(tmp_path):
    with Run.create("mine", load_config(None, [*ENDPOINTS, f"runs_dir={tmp_path}"])) as opened:
        yield opened


FEW = FewshotSettings(algorithm="fewshot", tasks=8, candidates=6, examples=2)
LESSONS = LessonsSettings(algorithm="lessons", tasks=8, rounds=3)
GEPA = GepaSettings(algorithm="gepa", tasks=8)


def test_the_best_set_of_examples_wins_and_none_is_of_a_task_that_it_was_tried_on(run):
    bench = Society(run)
    learned = learn(Fewshot(), FEW, bench)
    assert learned.figures["right_best"] == 1.0 > learned.figures["right_before"]
    guidance = load(run.path / learned.policy.folder)
    searched = {given.task.goal for _, given in bench.asked}
    for role in JUNIORS:
        examples = guidance[role].examples
        assert 1 <= len(examples) <= FEW.examples
        assert not searched & {example["goal"] for example in examples}
    assert {mode for mode, _ in bench.asked} == {"val"}
    assert all(given.phase.startswith("fewshot--society.fewshot-") for _, given in bench.asked)
    assert len({given.task.id for _, given in bench.asked}) == FEW.tasks


@pytest.mark.parametrize(("algorithm", "settings"), [(Fewshot, FEW), (LessonsAlgorithm, LESSONS), (Gepa, GEPA)])
def test_a_phase_that_is_done_again_plays_nothing_and_comes_to_the_same(run, algorithm, settings):
    first = learn(algorithm(), settings, Society(run))
    text = (run.path / first.policy.folder / "guidance.json").read_text()
    again = Society(run)
    second = learn(algorithm(), settings, again)
    assert (again.ran, second.policy) == (0, first.policy)
    assert (run.path / second.policy.folder / "guidance.json").read_text() == text
    assert all(first.figures[name] == second.figures[name] for name in ("rollouts", "candidates"))


def test_a_lesson_that_helps_is_told_to_all_roles_that_learn_together(run):
    learned = learn(LessonsAlgorithm(), LESSONS, Society(run, writes=[USELESS, USEFUL]))
    guidance = load(run.path / learned.policy.folder)
    assert {role: guidance[role].lessons for role in JUNIORS} == dict.fromkeys(JUNIORS, (USEFUL,))
    assert learned.figures["kept"] == 1


def test_a_lesson_is_told_beside_those_that_each_role_has(run):
    bench = Society(run, *(f"society.guidance.{role}.lessons=[{role} reads.]" for role in JUNIORS[:2]))
    learned = learn(LessonsAlgorithm(), LESSONS, bench)
    guidance = load(run.path / learned.policy.folder)
    had = {JUNIORS[0]: (f"{JUNIORS[0]} reads.",), JUNIORS[1]: (f"{JUNIORS[1]} reads.",), JUNIORS[2]: ()}
    assert {role: guidance[role].lessons for role in JUNIORS} == {role: (*had[role], USEFUL) for role in JUNIORS}
    assert all(f"{role} reads." in next(iter(bench.questions))[1] for role in JUNIORS[:2])


@pytest.mark.parametrize("lesson", ["As in t3, look.", "Does t12 lower the rate? Look there.", "Answer no then."])
def test_a_lesson_that_names_a_task_or_an_answer_is_never_tried(run, lesson):
    bench = Society(run, writes=[lesson])
    learned = learn(LessonsAlgorithm(), LESSONS, bench)
    assert learned.policy is None
    assert learned.figures["dropped"] == learned.figures["written"] > 0
    assert bench.ran == LESSONS.tasks


def test_what_helps_nobody_is_not_learned(run):
    bench = Society(run, writes=[USELESS])
    assert learn(LessonsAlgorithm(), LESSONS, bench).policy is None
    assert learn(Gepa(), GEPA, bench).policy is None


def test_gepa_finds_the_planted_instruction_within_its_rollouts(run):
    learned = learn(Gepa(), GEPA, Society(run, writes=[USELESS, USELESS, USEFUL]))
    assert learned.figures["right_best"] == 1.0
    assert learned.figures["rollouts"] <= GEPA.budget.rollouts
    guidance = load(run.path / learned.policy.folder)
    assert all(USEFUL in guidance[role].prompt and role in guidance[role].prompt for role in JUNIORS)


def test_gepa_asks_nothing_more_after_it_was_cancelled(run):
    asked, bench = [], Society(run)

    async def scenario():
        async def ask(*_, **__):
            asked.append(learning.cancel())
            await asyncio.sleep(PATIENCE * (len(asked) == 1))

        bench.ask = ask
        learning = asyncio.create_task(Gepa().learn(plan("gepa"), GEPA, bench))
        await asyncio.wait([learning])

    asyncio.run(scenario())
    assert asked == [True]


def test_a_budget_ends_a_search_with_the_best_so_far(run):
    limited = FEW.model_copy(update={"budget": FEW.budget.model_copy(update={"rollouts": 20})})
    bench = Society(run)
    learned = learn(Fewshot(), limited, bench)
    assert (bench.ran, learned.figures["candidates"], learned.figures["budget_spent"]) == (16, 2, True)


def test_examples_need_rollouts_that_came_out_right(run):
    class Wrong(Society):
        async def episodes(self):
            return []

    with refused(RunError, "fewshot", "0 earlier rollouts", "gather more"):
        learn(Fewshot(), FEW, Wrong(run))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["fewshot.tasks=21"], ("fewshot.tasks=21", "40", "at most 20")),
        (["pipeline.fewshot.roles=[PeerReviewer]"], ("PeerReviewer", "rubric", "leave it out")),
        (["fewshot.budget.usd=3"], ("fewshot.budget.usd=3", "evaluation.prices", "junior")),
        (["fewshot.teacher=board"], ("fewshot.teacher=board", "rubric", "Hypothesis", "name another slot")),
        (["fewshot.teacher=nobody"], ("pipeline.fewshot", "'nobody'", "junior")),
    ],
)
def test_a_search_that_cannot_work_is_refused_in_a_sentence(settings, complaint):
    with refused(ConfigError, complaint):
        make_phases(["fewshot"], load_config(None, [*ENDPOINTS, *PHASE, *settings]), DATASET)


def test_weights_that_see_only_the_first_line_are_refused():
    config = load_config(None, ["pipeline.gepa.roles=[juniors]"])
    with refused(ConfigError, "pipeline.gepa.roles", "Geneticist", "models.junior.path=nano"):
        make_phases(["gepa"], config, DATASET)


def test_what_a_person_rejected_is_a_failure_to_learn_from_unless_nobody_may_learn_from_it(run):
    shown = []

    class Asked(Society):
        async def episodes(self):
            return []

        def answer(self, slot, messages, options):
            shown.extend(json.loads(messages[1]["content"])["failures"])
            return super().answer(slot, messages, options)

    held_out = task("secret")
    for number, goal in enumerate(["Does tea help?", held_out.goal]):
        folder = run.path.parent / "asked" / f"q{number}"
        folder.mkdir(parents=True)
        prompt = [{"role": "system", "content": "You are."}, {"role": "user", "content": json.dumps({"goal": goal})}]
        line = {"role": "Geneticist", "prompt": prompt, "rejected": {"answer": "yes"}, "chosen": {"answer": "no"}}
        (folder / "preferences.jsonl").write_text(json.dumps({**line, "reason": "It was a trial in mice."}) + "\n")
    bench = Asked(run)
    bench.dataset = Dataset(tuple(TASKS), (), (held_out,), "generated", "test")
    learn(LessonsAlgorithm(), LESSONS, bench)
    assert {case["goal"] for case in shown} == {"Does tea help?"}
    assert (shown[0]["right"], shown[0]["reviews"]) == ("no", ["It was a trial in mice."])
