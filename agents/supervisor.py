"""The supervisor's node: the selector and the supervisor's model select one hypothesis, and the model justifies it.

Either a policy chooses first and the model only justifies, or the model chooses first and then the selector decides. If
the selector decides for another hypothesis than the model, the model justifies that one in a second visit. Later roles
read the justification, so every choice gets one from the model. Otherwise the rewards of random choices would not carry
over to the same choices made by a policy.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from langgraph.runtime import Runtime

from agents.context import Candidates, Choice, RunContext
from agents.findings import AGAIN, COMBINED, MOST_WEIGHED, SEARCH_AGAIN, concluded, gathered, search_cues
from agents.roles import ROLES, SUPERVISOR
from agents.schemas import Selection, selection_of
from agents.state import ResearchState, Update
from agents.visit.prompting import Message
from agents.visit.sources import sources_seen
from agents.visit.visits import attempt_of, errors_of, visit, visits
from chimera.config.roles import JUNIORS
from chimera.core.errors import RoleError

VOTE = "vote"
"""The policy name of choices that the juniors' majority made."""


async def supervisor_node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
    """Select one of the hypotheses and justify it, in one or two visits."""
    context = runtime.context
    candidates = Candidates(state["research_goal"], state["initial_hypotheses"], sources_seen(state["messages"]))
    before = visits(state["messages"], SUPERVISOR)
    answers: list[tuple[Selection, list[Message]]] = []

    async def ask(chosen: str | None) -> None:
        authors = (chosen,) if chosen is not None else context.config.graph.juniors
        among = Selection if set(authors) == set(JUNIORS) else selection_of(*authors)
        role = replace(ROLES[SUPERVISOR], schema=among)
        inputs = {"hypotheses": candidates.hypotheses, "chosen": chosen}
        number = before + len(answers) + 1
        answer, messages = await visit(role, inputs, state, context, number=number, attempt=attempt_of(runtime))
        answers.append((cast(Selection, answer), messages))

    with errors_of(SUPERVISOR):
        preferred = None
        choice = context.select.propose(candidates, context.seed)
        if choice is None:
            await ask(None)
            preferred = answers[0][0].choice
            choice = context.select.select(candidates, preferred, context.seed)
        selected = _of_author(choice, candidates.hypotheses)
        if choice.author != preferred:
            await ask(choice.author)
    return {
        "selected_hypothesis": selected,
        "supervisor_justification": answers[-1][0].justification,
        "selection": _selection(choice, preferred, candidates.sources),
        "messages": {SUPERVISOR: [message for _, messages in answers for message in messages]},
        "sender": SUPERVISOR,
        "turn_count": len(answers),
    }


async def vote_node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
    """Select what most juniors answer, without a model: of these hypotheses the first, of a tie the first answer."""
    hypotheses = state["initial_hypotheses"]
    votes = Counter(hypothesis["answer"] for hypothesis in hypotheses)
    selected = max(hypotheses, key=lambda hypothesis: votes[hypothesis["answer"]])
    words = f"{votes[selected['answer']]} of {len(hypotheses)} juniors answer {selected['answer']}."
    return {
        "selected_hypothesis": selected,
        "supervisor_justification": words,
        "selection": _selection(Choice(selected["author"], VOTE), None, sources_seen(state["messages"])),
        "sender": SUPERVISOR,
    }


async def combine_node(state: ResearchState, runtime: Runtime[RunContext]) -> Update:
    """Send juniors to search once more, or else hand on what all findings say by the rule, without a model.

    They can be sent if one of them read of another name of the treatment, which none was sent to search for. Then the
    selector chooses, which without a policy sends them all: what one has read of the others search for, too.
    """
    context, hypotheses, rounds = runtime.context, state["initial_hypotheses"], state.get("searches", [])
    findings = gathered(hypotheses)
    recorded: Update = {}
    searched = {"", *(name for names in rounds for name in names.values())}
    named = {junior["author"]: junior["search"] for junior in hypotheses if junior["search"] not in searched}
    if len(rounds) + 1 < context.config.graph.searches and named:
        cues = search_cues(findings, len(rounds) + 1, len(named))
        candidates = Candidates(state["research_goal"], SEARCH_AGAIN, (), cues)
        with errors_of(SUPERVISOR):
            choice, preferred = _search_choice(candidates, context, len(rounds) + 1)
        recorded = {"choices": [*state.get("choices", []), {**_recorded(choice, preferred), "cues": cues}]}
        if choice.author == AGAIN:
            first, *_ = named.values()
            sent = {junior["author"]: named.get(junior["author"], first) for junior in hypotheses}
            return {**recorded, "searches": [*rounds, sent], "sender": SUPERVISOR}
    words = f"{len(findings)} studies were read in {len(rounds) + 1} rounds of searches."
    if context.config.graph.refine and len(findings) > MOST_WEIGHED:
        words += f" The refiner weighs the first {MOST_WEIGHED} of them."
    return {
        **recorded,
        "searches": [*rounds, {}],
        "selected_hypothesis": {"author": COMBINED, **concluded(findings)},
        "supervisor_justification": words,
        "selection": _selection(Choice(COMBINED, COMBINED), None, sources_seen(state["messages"])),
        "sender": SUPERVISOR,
    }


def _search_choice(candidates: Candidates, context: RunContext, number: int) -> tuple[Choice, str | None]:
    """Choice `number` of a run, from 1, and what is preferred without a policy; None if a policy chose first."""
    seed = context.seed_of(SUPERVISOR, number, 0)
    choice, preferred = context.select.propose(candidates, seed), None
    if choice is None:
        choice, preferred = context.select.select(candidates, AGAIN, seed), AGAIN
    _of_author(choice, candidates.hypotheses)
    return choice, preferred


def _selection(choice: Choice, preferred: str | None, sources: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    return {**_recorded(choice, preferred), "sources": list(sources)}


def _recorded(choice: Choice, preferred: str | None) -> dict[str, Any]:
    propensities = None if choice.propensities is None else dict(choice.propensities)
    return {"author": choice.author, "preferred": preferred, "policy": choice.policy, "propensities": propensities}


def _of_author(choice: Choice, hypotheses: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    authors = [hypothesis["author"] for hypothesis in hypotheses]
    if choice.author not in authors:
        reason = f"the policy {choice.policy!r} chose {choice.author!r}, not one of {', '.join(authors)}"
        raise RoleError(SUPERVISOR, reason)
    return hypotheses[authors.index(choice.author)]
