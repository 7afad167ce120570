"""Selection of what juniors imitate, and its rendering: which tokens are learned, and that prompts are the server's."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused
from record_kit import answered

from agents.roles import ROLES
from agents.visit.prompting import opening, response_format, tool_message
from chimera.config.roles import JUNIORS
from chimera.config.sections.bundled import NANO
from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.core.errors import ConfigError, RunError
from chimera.data.tasks import load
from chimera.serving.embedded.checkpoint import load_language
from chimera.serving.embedded.protocol import parse_request
from chimera.serving.embedded.service import Service
from training.configuration import load_config
from training.learning import selection
from training.learning.examples import NOT_LEARNED, Row
from training.learning.experience import Conversation
from training.learning.fine_tuning import SftSettings
from training.learning.selection import select
from training.phases import make_phases
from training.tune.render import Renderer

GOAL = "Is pain lower?"
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A search.", "parameters": {"type": "object"}}}
    for name in ("literature_search", "protein_lookup")
]
EVERYTHING = SftSettings(select="threshold", threshold=-99.0, credited="all", true_quotes="ignore", min_examples=1)


def rollout(task="t", reward=1.0, repeat=0, answer="yes", chosen="Geneticist", **other):
    outputs = {"selected_hypothesis": {"author": chosen}, "initial_hypotheses": [{"author": one} for one in JUNIORS]}
    return answered(f"ro-{task}-{repeat}", task, answer, reward, repeat=repeat, outputs=outputs, **other)


def conversation(role="Geneticist", answer="yes", words="", parsed=True, messages=None, tools=None):
    given = messages or [
        {"role": "user", "content": f"{GOAL} {words}"},
        {"role": "assistant", "content": json.dumps({"answer": answer})},
    ]
    return Conversation(role, 1, given, tools, {"answer": answer}, parsed, stance=answer)


def candidates(record, conversations):
    episode = SimpleNamespace(record=record, conversations=lambda roles: conversations)
    return selection.candidates(episode, JUNIORS)


def one_row(given):
    """Different rows for different conversations."""
    ids = tuple(json.dumps(given.messages).encode())
    return (Row(ids, (True,) * len(ids)),)


def chosen(picked):
    return [(e.candidate.record.task_id, e.candidate.record.repeat, e.candidate.role) for e in picked.examples]


def society(rewards, **other):
    """A rollout for each reward, each with the conversations of all juniors."""
    return [
        candidate
        for number, reward in enumerate(rewards)
        for candidate in candidates(
            rollout(f"t{number:03}", reward, **other),
            [conversation(role, words=f"{role} {number}") for role in JUNIORS],
        )
    ]


def test_only_answers_read_at_once_of_rollouts_with_a_reward_are_candidates():
    both = [conversation(), conversation("Neurologist", parsed=False)]
    assert [c.role for c in candidates(rollout(reward=0.0), both)] == ["Geneticist"]
    assert candidates(rollout(reward=None), both) == []


def test_the_threshold_itself_is_good_enough():
    config = replace_of(EVERYTHING, threshold=1.5)
    assert {task for task, _, _ in chosen(select(society([1.4999, 1.5, 2.0]), one_row, config))} == {"t001", "t002"}


def replace_of(config, **changes):
    return config.model_copy(update=changes)


@given(
    st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=25),
    st.sampled_from([0.1, 0.25, 0.3, 0.6, 0.7, 1.0]),
    st.randoms(use_true_random=False),
)
def test_the_best_share_of_each_role_is_taken_whatever_the_order(rewards, share, rng):
    found = society(rewards)
    # One role answered in two rollouts less, so that its share is of fewer.
    found = [c for c in found if c.role != "Neurologist" or c.record.task_id not in ("t000", "t001")]
    config = replace_of(EVERYTHING, select="quantile", quantile=share)
    picked = select(found, one_row, config)
    for role in JUNIORS:
        own = {c.record.task_id: c.reward for c in found if c.role == role}
        taken = {task for task, _, of in chosen(picked) if of == role}
        tenths = round(share * 100) * len(own)
        assert len(taken) == -(-tenths // 100)
        # Nobody who was left out is better than one who was taken; among equals the first by name were taken.
        ranks = {task: (-reward, task) for task, reward in own.items()}
        assert max((ranks[t] for t in taken), default=(-9, "")) < min(
            (ranks[t] for t in own if t not in taken), default=(9, "")
        )
    shuffled = rng.sample(found, len(found))
    assert chosen(select(shuffled, one_row, config)) == chosen(picked)


def test_credit_goes_to_all_to_those_who_agree_or_to_the_selected():
    answers = {"Geneticist": "no", "Neurologist": "yes", "Pharmacologist": "maybe"}
    given = [conversation(role, answer) for role, answer in answers.items()]

    def roles(answer, credited):
        found = candidates(rollout(answer=answer, chosen="Neurologist"), given)
        return [role for _, _, role in chosen(select(found, one_row, replace_of(EVERYTHING, credited=credited)))]

    for role, answer in answers.items():
        assert roles(answer, "agreeing") == [role]
        assert roles(answer, "selected") == ["Neurologist"]
        assert roles(answer, "all") == sorted(answers)


def test_the_same_conversation_is_learned_once_with_its_best_reward():
    found = [
        *candidates(rollout("a", 1.0), [conversation()]),
        *candidates(rollout("b", 3.0), [conversation()]),
        *candidates(rollout("c", 2.0), [conversation(words="but another")]),
    ]
    picked = select(found, one_row, EVERYTHING)
    assert chosen(picked) == [("b", 0, "Geneticist"), ("c", 0, "Geneticist")]
    assert picked.figures["duplicates"] == 1
    assert picked.figures["reward_of_selected"] == 2.5
    assert picked.figures["reward_of_candidates"] == 2.0


def test_a_conversation_longer_than_the_limit_is_left_out_and_counted():
    found = candidates(rollout(), [conversation(), conversation("Neurologist")])

    def render(given):
        length = 32 if given.role == "Geneticist" else 33
        return (Row((1,), (True,)), Row((2,) * length, (True,) * length))

    picked = select(found, render, replace_of(EVERYTHING, max_length=32))
    assert [role for _, _, role in chosen(picked)] == ["Geneticist"]
    assert picked.figures["too_long"] == 1


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"threshold": 3.0}, "(the highest reward is 2.000)"),
        ({"threshold": 3.0}, "lower sft.threshold=3"),
        ({"select": "quantile", "quantile": 0.1}, "raise sft.quantile=0.1"),
        ({"credited": "agreeing"}, "set sft.credited=all"),
        ({"max_length": 32}, "raise sft.max_length=32"),
        ({"min_examples": 40}, "gather more, or lower sft.min_examples"),
    ],
)
def test_too_few_conversations_are_an_error_that_says_what_to_change(changes, remedy):
    config = replace_of(EVERYTHING, min_examples=7).model_copy(update=changes)
    found = society([0.5, 1.0, 1.5, 2.0], answer="no")

    with refused(RunError, remedy, "4 rollouts", "12 conversations"):
        select(found, one_row, config)


def test_no_reward_at_all_is_told_apart():
    with refused(RunError, "sft.min_examples is 1", "0 rollouts", "rollouts/"):
        select([], one_row, EVERYTHING)


@pytest.mark.parametrize(("where", "kept"), [("the rate was lower with it", 1), ("the rate was higher with it", 0)])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_what_quotes_none_of_its_own_sources_is_no_example(role, where, kept):
    passages = [{"id": "1", "text": f"RESULTS: {where} (p=0.01)."}]
    sources = {"user": {"sources": passages, "goal": GOAL}, "tool": {"results": passages, "goal": GOAL}}
    answer = {"evidence": ["the rate was lower with it"], "answer": "yes"}
    messages = [
        {"role": "user", "content": json.dumps({"goal": GOAL})},
        {"role": role, "content": json.dumps(sources[role]), "tool_call_id": "1"},
        {"role": "assistant", "content": json.dumps(answer)},
    ]
    given = Conversation(
        "Geneticist", 1, messages, None, answer, True, stance=answer.get("answer"), quotes=tuple(answer["evidence"])
    )
    honest = candidates(rollout("honest"), [given])
    config = replace_of(EVERYTHING, true_quotes="require")
    if kept:
        assert select(honest, one_row, config).figures["misquoting"] == 0
    else:
        with refused(RunError, "1 of those misquoting", "set sft.true_quotes=ignore"):
            select(honest, one_row, config)
    assert select(honest, one_row, EVERYTHING).figures["selected"] == 1
    preferred = select(honest, one_row, replace_of(EVERYTHING, true_quotes="prefer")).figures
    assert (preferred["selected"], preferred["misquoting_kept"]) == (1, not kept)


@pytest.fixture(scope="module")
def nano():
    service = Service({"junior": ModelConfig(path="nano")}, ServingConfig(slots=4))
    yield service
    service.close()


def play(service, tools_for_answer):
    """A conversation as the society has it: a tool call, its result, an answer; and both exchanges."""
    role, goal = ROLES["Geneticist"], "Is bone density lower with the Kihapo music programme in veterans with lupus?"
    messages = opening(role, goal)
    found = "The Kihapo group had lower bone density than the usual care group (94 vs 100 units, p<0.001)."
    exchanges = []
    for tools in (TOOLS, tools_for_answer):
        body = {"model": "junior", "messages": messages, "response_format": response_format(role), "temperature": 0}
        body |= {"return_token_ids": True} | ({"tools": tools} if tools else {})
        answer = asyncio.run(service.complete(parse_request(body)))
        exchanges.append((answer["prompt_token_ids"], answer["choices"][0]["token_ids"]))
        message = answer["choices"][0]["message"]
        messages = [*messages, message]
        for call in message.get("tool_calls") or ():
            results = {"results": [{"id": "a", "text": f"{found} It read <|im_end|> and <tool_call>."}]}
            messages.append(tool_message(call["id"], results, goal))
    return Conversation("Geneticist", 1, messages, TOOLS, {}, True), exchanges


def test_prompts_are_the_servers_and_learned_tokens_those_it_sampled_in_one_row(nano):
    talk, exchanges = play(nano, TOOLS)
    (row,) = Renderer(NANO, max_tool_calls=2).rows(talk)
    (first, call), (second, answer) = exchanges
    assert list(row.ids) == second + answer
    assert second[: len(first) + len(call)] == first + call
    between = [NOT_LEARNED] * (len(second) - len(first) - len(call))
    assert row.labels == [NOT_LEARNED] * len(first) + call + between + answer


def test_turns_that_were_offered_other_tools_are_rows_of_their_own(nano):
    talk, exchanges = play(nano, None)
    rows = Renderer(NANO, max_tool_calls=1).rows(talk)
    assert [list(row.ids) for row in rows] == [prompt + answer for prompt, answer in exchanges]
    assert [row.labels for row in rows] == [[NOT_LEARNED] * len(prompt) + answer for prompt, answer in exchanges]


pieces = st.sampled_from([*'ab {}"\n', "<|im_end|>", "<|im_start|>", "<tool_call>", "é"])
texts = st.lists(pieces, max_size=9).map("".join)


@st.composite
def talks(draw):
    """Any order of messages that ends with the assistant's; only the assistant's texts are to be learned."""
    messages = [{"role": "system", "content": draw(texts)}, {"role": "user", "content": draw(texts)}]
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["assistant", "user", "tool", "call"]))
        message = {"role": "assistant" if kind == "call" else kind, "content": draw(texts)}
        if kind == "call":
            function = {"name": "literature_search", "arguments": json.dumps({"query": draw(texts)})}
            message["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
        messages.append(message)
    return [*messages, {"role": "assistant", "content": draw(texts)}]


def learned_turns(row):
    """The stretches of learned tokens of a row."""
    turns = [[]]
    for token, learned in zip(row.ids, row.learned, strict=True):
        if learned:
            turns[-1].append(token)
        elif turns[-1]:
            turns.append([])
    return turns


RENDERER = Renderer(NANO, max_tool_calls=9)
LANGUAGE = load_language(NANO)


@given(talks())
def test_learned_are_exactly_the_assistants_texts_each_with_its_end_token(messages):
    rows = RENDERER.rows(conversation(messages=messages, tools=TOOLS))
    turns = [turn for row in rows for turn in learned_turns(row)]
    spoken = [message for message in messages if message["role"] == "assistant"]
    # Two of the assistant's turns in a row are parted by the header of the second, which is not learned.
    assert len(turns) == len(spoken)
    for turn, message in zip(turns, spoken, strict=True):
        calls = [call["function"] for call in message.get("tool_calls", ())]
        expected = message["content"] + "".join(
            f'<tool_call>{{"name":"{call["name"]}","arguments":{call["arguments"]}}}</tool_call>' for call in calls
        )
        text = LANGUAGE.tokenizer.decode(turn, skip_special_tokens=False)
        assert text.replace(" ", "") == (expected + "<|im_end|>").replace(" ", "")
        # Text that looks like the end token is no end token.
        assert turn[-1] in LANGUAGE.eos
        assert not set(turn[:-1]) & set(LANGUAGE.eos)


class TestTemplates:
    """Chat templates of other models."""

    FORGETFUL = (
        "{% for m in messages %}"
        "{% if m.role == 'assistant' and not loop.last %}<|im_start|>assistant\nshort<|im_end|>\n"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )

    def talk(self):
        turns = (("user", "one"), ("assistant", "thought and answer"), ("user", "two"), ("assistant", "yes"))
        return conversation(messages=[{"role": role, "content": content} for role, content in turns])

    def test_a_template_that_shortens_earlier_turns_gives_a_row_for_each(self, serving_model):
        folder = serving_model(template=self.FORGETFUL)
        rows = Renderer(folder, 2).rows(self.talk())
        tokenizer = load_language(folder).tokenizer
        learned = [tokenizer.decode(learned_turns(row)[0], skip_special_tokens=False) for row in rows]
        assert [text.replace(" ", "") for text in learned] == ["thoughtandanswer<|im_end|>", "yes<|im_end|>"]
        assert "short" in tokenizer.decode(rows[1].ids)
        assert "thought" not in tokenizer.decode(rows[1].ids)

    def test_a_template_whose_turns_do_not_end_is_refused(self, serving_model):
        endless = serving_model(template=self.FORGETFUL.replace("<|im_end|>", ""))
        with pytest.raises(RunError, match="would not learn to stop"):
            Renderer(endless, 2).rows(self.talk())

    def test_a_template_that_rewrites_an_answered_prompt_is_refused(self, serving_model):
        rewriting = serving_model(template="{{ messages | length }}" + self.FORGETFUL)
        with refused(RunError, "renders a prompt otherwise"):
            Renderer(rewriting, 2).rows(self.talk())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["models.junior={kind: endpoint, base_url: 'http://x', model: m}"],
            ("sft", "models.junior.kind=endpoint", "set this slot", "models.junior.path"),
        ),
        (["sft.batch_size=4", "sft.micro_batch_size=8"], ("sft.batch_size=4", "sft.micro_batch_size=8")),
        (["sft.roles=[PeerReviewer]"], ("sft", "models.board.kind=rubric", "models.board.path")),
    ],
)
def test_what_cannot_be_trained_is_refused_at_the_start(settings, message):
    dataset = load(load_config().data)
    with refused(ConfigError, message):
        make_phases(["sft"], load_config(None, settings), dataset)
    make_phases(["sft"], load_config(), dataset)
