"""Step DPO on the fake bench: which pairs are learned, what is held out, and that the trainer's loss is the formula."""

import asyncio
import io
import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from branch_kit import REFINER, TASKS, Answers, answer, plant_stale, said
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused

from chimera.core.errors import RunError
from training.algorithms.dpo import Dpo, DpoSettings, draw
from training.algorithms.pairs import all_pairs, by_worth, hold_out, that_keep
from training.learning.base import PhasePlan
from training.learning.groups import AnswerGroup, Valued
from training.learning.states import states_of
from training.learning.values import Worth
from training.tune import dpo_child
from training.tune.dpo_child import DpoSpec
from training.tune.fine_tune import PAIRS

pytestmark = pytest.mark.whole

PLAN = PhasePlan("dpo", "dpo", (REFINER,), ("refiner",))


def settings(**other):
    return DpoSettings(**{"algorithm": "dpo", "min_examples": 1, "answers": 6, "held_out": 0.0, **other})


def drawn(bench, **other):
    pairs = asyncio.run(draw(PLAN, settings(**other), bench, no_render))
    return pairs.train, pairs.held, pairs.figures


def no_render(conversation):
    raise AssertionError("pairs are the server's tokens")


def identities(pairs):
    return [(pair.state.name, pair.chosen.response_ids, pair.rejected.response_ids, pair.kind) for pair in pairs]


def test_pairs_are_answers_to_one_prompt_of_which_the_one_worth_more_is_preferred(tmp_path):
    bench = Answers(tmp_path)
    pairs, _, figures = drawn(bench, keep_right=0.0, pairs=100)
    assert pairs
    for pair in pairs:
        assert pair.chosen.prompt_ids == pair.rejected.prompt_ids == pair.state.call.prompt_ids
        assert pair.row()["prompt_ids"] == pair.state.call.prompt_ids
        assert (pair.chosen.answer.stance, pair.rejected.answer.stance) == ("yes", "no")
    assert figures["pairs"] == figures["pairs/worth"] == len(pairs)
    assert figures["branches/answers"] == figures["branches/states"] * 6 == 6 * TASKS
    assert figures["branches/informative"] == len({pair.state.name for pair in pairs})


@pytest.mark.parametrize("most", [1, 2])
def test_a_state_gives_a_few_pairs_at_most(tmp_path, most):
    pairs, _, _ = drawn(Answers(tmp_path), pairs=most, answers=30, keep_right=0.0)
    assert {sum(one.state is pair.state for one in pairs) for pair in pairs} == {most}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    bench = Answers(tmp_path_factory.mktemp("states"))
    (found,) = states_of(bench.episode(bench.earlier[0]), [REFINER])
    return found


def group_of(state, worths, stances=None):
    """Answers with these worths; their tokens are their places."""
    calls = [
        replace(said(state.call, answer(stance)), response_ids=(place,))
        for place, stance in enumerate(stances or ["yes"] * len(worths))
    ]
    valued = [Valued(call, Worth(worth, {}, "direct")) for call, worth in zip(calls, worths, strict=True)]
    return AnswerGroup(state, tuple(valued), {"stale": 0, "unvalued": 0})


@given(st.lists(st.integers(0, 3), max_size=9), st.integers(1, 5))
def test_the_best_stand_before_the_worst_and_no_answer_stands_in_two_pairs(state, worths, most):
    pairs = by_worth(group_of(state, worths), most)
    used = [ids for pair in pairs for ids in (*pair.chosen.response_ids, *pair.rejected.response_ids)]
    assert len(used) == len(set(used)) <= 2 * most
    assert bool(pairs) == (len(set(worths)) > 1)
    margins = [worths[pair.chosen.response_ids[0]] - worths[pair.rejected.response_ids[0]] for pair in pairs]
    assert all(margin > 0 for margin in margins)
    assert margins == sorted(margins, reverse=True)
    if pairs:
        assert margins[0] == max(worths) - min(worths)


def test_equal_answers_make_no_pair(state):
    group = group_of(state, [1.0, 0.0])
    twice = tuple(replace(one, call=replace(one.call, response_ids=(7,))) for one in group.answers)
    assert not by_worth(replace(group, answers=twice), 5)


@pytest.mark.parametrize(("handed", "kept"), [("yes", 1), ("no", 0), (None, 0)])
def test_a_right_hypothesis_is_better_kept_than_changed(state, handed, kept):
    """The label is yes. The worth of these answers does not tell them apart."""
    other = replace(state, call=replace(state.call, handed=handed))
    group = replace(group_of(state, [1.0, 1.0, 1.0], ["no", "yes", "maybe"]), state=other)
    pairs = list(that_keep(group))
    assert len(pairs) == 2 * kept
    assert all((pair.chosen.answer.stance, pair.kind) == ("yes", "keeps") for pair in pairs)
    assert not list(that_keep(replace(group_of(state, [1.0, 1.0], ["yes", "yes"]), state=other)))


@pytest.mark.parametrize(("share", "kept"), [(0.0, 0), (0.5, 2), (1.0, 3)])
def test_pairs_that_keep_are_a_share_of_the_others_at_most(state, share, kept):
    right = replace(state.call, handed="yes")
    wrong = replace(state.call, handed="no")
    told = [replace(group_of(state, [1, 0], ["yes", "no"]), state=replace(state, call=wrong)) for _ in range(4)]
    silent = [replace(group_of(state, [1, 1], ["no", "yes"]), state=replace(state, call=right)) for _ in range(3)]
    pairs = all_pairs([*told, *silent], 1, share, seed=0)
    assert [pair.kind for pair in pairs] == ["worth"] * 4 + ["keeps"] * kept
    assert identities(pairs) == identities(all_pairs([*told, *silent], 1, share, seed=0))


def test_no_pair_is_learned_twice(state):
    """Where worth prefers the same two answers, the pair that keeps is of two others, if there are two others."""
    of_right = replace(state, call=replace(state.call, handed="yes"))
    two = replace(group_of(state, [1, 0], ["yes", "no"]), state=of_right)
    assert [pair.kind for pair in all_pairs([two], 5, 1.0, seed=0)] == ["worth"]
    three = replace(group_of(state, [1, 1, 0], ["yes", "yes", "no"]), state=of_right)
    pairs = all_pairs([three], 5, 1.0, seed=0)
    found = [(*pair.chosen.response_ids, *pair.rejected.response_ids, pair.kind) for pair in pairs]
    assert found == [(0, 2, "worth"), (1, 2, "keeps")]


def test_no_task_has_pairs_on_both_sides(tmp_path):
    for share, held_states in ((0.1, 1), (0.5, 3)):
        train, held, figures = drawn(Answers(tmp_path / str(share)), held_out=share, answers=30, pairs=3)
        learned = {pair.state.episode.record.task_id for pair in train}
        kept_out = {pair.state.episode.record.task_id for pair in held}
        assert not learned & kept_out
        assert (len(kept_out), len(learned | kept_out)) == (held_states, TASKS)
        assert figures["pairs"] == len(train)
        assert figures["pairs/held_out"] == len(held)


def test_all_states_of_a_task_are_held_out_together(state):
    def of_task(task, repeat):
        episode = state.episode.on_disk()
        episode.record = replace(episode.record, task_id=task, repeat=repeat)
        return replace(state, episode=episode)

    states = [of_task(f"t{number}", repeat) for number, repeat in itertools.product(range(10), range(3))]
    groups = [replace(group_of(state, [1.0, 0.0]), state=one) for one in states]
    is_held = hold_out(states, 0.1, seed=0)
    held = [pair.state for group in groups for pair in by_worth(group, 1) if is_held(pair)]
    assert len(held) == 3
    assert len({one.episode.record.task_id for one in held}) == 1


def test_calls_by_other_weights_are_left_out_and_counted(tmp_path):
    bench = Answers(tmp_path)
    plant_stale(bench, 2)
    pairs, _, figures = drawn(bench)
    assert figures["branches/stale"] == 2
    versions = {call.weights_version for pair in pairs for call in (pair.chosen, pair.rejected)}
    assert versions == {"nano@0"}
    assert "2 answers by other weights than nano@0 are left out" in bench.view.lines[-1]


def test_pairs_that_are_too_long_are_left_out_and_counted(tmp_path):
    bench = Answers(tmp_path)
    _, _, whole = drawn(bench, max_length=2048)
    usual = bench.say
    other = Answers(tmp_path / "long")
    other.say = lambda call, random_: replace(usual(call, random_), response_ids=(*range(40), random_.random()))
    with refused(RunError, "0 pairs", "dpo.min_examples is 1"):
        drawn(other, max_length=41)
    assert whole["pairs/too_long"] == 0


def test_the_order_in_which_rollouts_ended_does_not_matter(tmp_path):
    found = [identities(drawn(Answers(tmp_path / str(order), order=order))[0]) for order in range(2)]
    assert found[0] == found[1]


def test_no_prompt_holds_a_label_or_a_hint(tmp_path):
    bench = Answers(tmp_path)
    prompts = {tuple(call.prompt_ids) for one in bench.earlier for call in bench.episode(one).calls([REFINER])}
    pairs, _, _ = drawn(bench)
    assert {pair.row()["prompt_ids"] for pair in pairs} <= prompts
    other = Answers(tmp_path / "other", label="no")
    pairs_of_no, _, _ = drawn(other)
    assert {pair.row()["prompt_ids"] for pair in pairs_of_no} <= prompts
    asked = {message["content"] for pair in pairs for message in pair.chosen.asked.messages}
    assert not any('"label"' in text or '"hint"' in text for text in asked)


def spec_of(folder, model, rows, held, **other):
    for name, of_file in (("pairs", rows), ("held", held)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_file))
    usual = {
        "seed": 0, "epochs": 1, "batch_size": 4, "micro_batch_size": 2, "lr": 1e-2, "warmup_ratio": 0, "max_length": 99,
        "lora_rank": 0, "lora_alpha": 8, "unsloth": "never", "beta": 0.3,
    }  # fmt: skip
    files = {"dataset": str(folder / "pairs.jsonl"), "held_out": str(folder / "held.jsonl")}
    return DpoSpec(**files, model=str(model), out=str(folder / "out"), **{**usual, **other})


def rows_of(count, seed):
    generator = torch.Generator().manual_seed(seed)

    def ids(length):
        return torch.randint(0, 400, (length,), generator=generator).tolist()

    return [
        {"prompt_ids": ids(3 + number % 4), "chosen_ids": ids(2 + number % 3), "rejected_ids": ids(5 - number % 3)}
        for number in range(count)
    ]


def log_prob(model, prompt, answer):
    """Sum of the log-probabilities of an answer's tokens after a prompt, by definition."""
    with torch.no_grad():
        log_probs = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    return sum(log_probs[len(prompt) - 1 + place, token].item() for place, token in enumerate(answer))


def margins_of(policy, reference, rows, beta):
    def ratio(row, name):
        of = (row["prompt_ids"], row[name])
        return log_prob(policy, *of) - log_prob(reference, *of)

    return [beta * (ratio(row, "chosen_ids") - ratio(row, "rejected_ids")) for row in rows]


def model_of(folder):
    from transformers.models.qwen2 import Qwen2ForCausalLM

    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("rank", [0, 4])
def test_the_loss_is_the_formula_computed_by_hand(tmp_path, serving_model, rank):
    model, held = serving_model(), rows_of(5, seed=2)
    spec = spec_of(tmp_path, model, rows_of(8, seed=1), held, lora_rank=rank)
    told = io.StringIO()
    dpo_child.train(spec, told)
    begin, *steps, end = map(json.loads, told.getvalue().splitlines())
    assert (begin["event"], begin["total"], len(steps), end["steps"]) == ("begin", 2, 2, 2)
    # Before anything is learned the weights are their own reference: -log sigmoid(0).
    assert steps[0]["loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert (end["held_out/won_before"], end["held_out/margin_before"]) == (0.0, pytest.approx(0.0, abs=1e-5))
    assert end["held_out/loss_before"] == pytest.approx(math.log(2), rel=1e-4)
    margins = margins_of(model_of(tmp_path / "out"), model_of(model), held, spec.beta)
    assert max(map(abs, margins)) > 0.01
    assert end["held_out/margin_after"] == pytest.approx(sum(margins) / 5, rel=1e-3)
    assert end["held_out/won_after"] == sum(margin > 0 for margin in margins) / 5
    by_hand = [-math.log(1 / (1 + math.exp(-margin))) for margin in margins]
    assert end["held_out/loss_after"] == pytest.approx(sum(by_hand) / 5, rel=1e-3)


@pytest.mark.parametrize(("rank", "imitation"), [(0, 0.0), (0, 25.0), (4, 0.0)])
def test_logits_in_chunks_teach_what_trl_teaches(tmp_path, serving_model, monkeypatch, rank, imitation):
    from safetensors.torch import load_file
    from trl.trainer.dpo_trainer import DPOTrainer

    from training.model import chunked_head
    from training.tune import dpo_trainer

    class Whole(DPOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

    found, sizes, scores = [], [], chunked_head.ChunkedHead._scores

    def counted(self, hidden, *asked):
        sizes.append(len(hidden))
        return scores(self, hidden, *asked)

    monkeypatch.setattr(chunked_head, "LOGITS", 7 * 512)
    monkeypatch.setattr(chunked_head.ChunkedHead, "_scores", counted)
    for kind in (dpo_trainer.TokenPairs, Whole):
        monkeypatch.setattr(dpo_trainer, "TokenPairs", kind)
        (folder := tmp_path / kind.__name__).mkdir()
        told, spec = io.StringIO(), {"lora_rank": rank, "epochs": 2, "lr": 1e-3, "imitation": imitation}
        dpo_child.train(spec_of(folder, serving_model(), rows_of(8, seed=1), rows_of(3, seed=2), **spec), told)
        steps = [json.loads(line) for line in told.getvalue().splitlines()]
        found.append((steps, load_file(folder / "out" / "model.safetensors")))
    assert max(sizes) == 7
    (steps, weights), (others, whole) = found
    assert len(steps) == 6
    for one, other in zip(steps, others, strict=True):
        figures = [name for name in other if name not in ("event", "seconds", "device", "loader")]
        assert [one[name] for name in figures] == pytest.approx([other[name] for name in figures], rel=1e-3, abs=1e-5)
    assert all(torch.allclose(weights[name], whole[name], atol=2e-5) for name in whole)


def test_it_learns_to_prefer_and_makes_the_same_bits_again(tmp_path, serving_model):
    from safetensors.torch import load_file

    rows, found = rows_of(4, seed=1), []
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        dpo_child.train(spec_of(folder, serving_model(), rows, [], epochs=4), told := io.StringIO())
        found.append((load_file(folder / "out" / "model.safetensors"), told.getvalue().splitlines()))
    (one, _), (two, told_last) = found
    assert all(torch.equal(one[name], two[name]) for name in one)
    reports = [json.loads(line) for line in told_last]
    assert [report["event"] for report in reports] == ["begin", *["step"] * 4, "end"]
    assert not any("held_out" in name for name in reports[-1])
    margins = margins_of(model_of(tmp_path / "two" / "out"), model_of(serving_model()), rows, 0.3)
    assert min(margins) > 0


async def test_the_phase_trains_on_the_servers_tokens_and_keeps_a_finished_model(tmp_path, serving_model):
    bench = Answers(tmp_path, weights={"refiner": serving_model()})
    own = settings(held_out=0.3, epochs=1, batch_size=4, micro_batch_size=4, unsloth="never")
    learned = await Dpo().learn(PLAN, own, bench)
    assert learned.policy.version == "refiner@dpo"
    rows = [json.loads(line) for line in (bench.run.path / "phases" / "dpo" / PAIRS).open()]
    sampled = {call.response_ids for calls in bench.branches.values() for call in calls}
    assert rows
    assert all(tuple(row[name]) in sampled for row in rows for name in ("chosen_ids", "rejected_ids"))
    assert {row["role"] for row in rows} == {REFINER}
    figures = learned.figures
    assert figures["pairs"] == len(rows)
    assert figures["branch_answers"] == 6 * TASKS
    assert 0 <= figures["held_out/won_after"] <= 1
    assert f"of {figures['pairs/held_out']} held-out pairs are won" in bench.view.lines[-1]
    assert await Dpo().learn(PLAN, own, bench) == learned
    assert f"refiner@dpo was made from these {len(rows)} pairs before" in bench.view.lines[-2]
