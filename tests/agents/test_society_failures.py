"""Model errors, time-outs and cancelled runs of the society."""

import asyncio
import itertools

import pytest
from message_kit import refused

from agents.visit.record import ModelCall, ToolUse
from chimera.config.roles import JUNIORS
from chimera.core.errors import ModelError, RoleError

SEARCH = "literature_search"


async def drain(stream):
    async for _ in stream:
        pass


def flaky(times, retriable=True):
    return [ModelError("the server answered 503", retriable=retriable)] * times


async def test_a_role_is_tried_again_after_a_retriable_model_error(society_kit):
    records = []
    calm, model = (
        society_kit.Model(Geneticist=[[(SEARCH, {"query": "a"})], *failures, society_kit.answers["Geneticist"]])
        for failures in ([], flaky(1))
    )
    expected = await society_kit.make(calm).run(society_kit.brief, 1)
    model.scripts["Geneticist"].insert(2, [(SEARCH, {"query": "a"})])
    state = await society_kit.make(model, observe=records.append, node_retries=1).run(society_kit.brief, 1)
    assert [m["role"] for m in state["messages"]["Geneticist"]] == [
        m["role"] for m in expected["messages"]["Geneticist"]
    ]
    assert state["turn_count"] == expected["turn_count"] == 9
    assert len(state["initial_hypotheses"]) == 3
    calls = [record for record in records if isinstance(record, ModelCall) and record.role == "Geneticist"]
    assert [(call.attempt, call.step, call.error) for call in calls] == [
        (1, 1, None),
        (1, 2, "the server answered 503"),
        (2, 1, None),
        (2, 2, None),
    ]
    uses = [record for record in records if isinstance(record, ToolUse)]
    assert [(use.attempt, use.step) for use in uses] == [(1, 1), (2, 1)]
    seeds = [request.seed for request in model.of("Geneticist")]
    assert seeds[:2] == seeds[2:]


@pytest.mark.parametrize(
    ("failures", "retries", "tries"), [(flaky(9), 2, 3), (flaky(9), 0, 1), (flaky(9, False), 2, 1)]
)
async def test_a_model_error_that_stays_is_the_roles_error(society_kit, failures, retries, tries):
    model = society_kit.Model(Supervisor=failures)
    with pytest.raises(RoleError) as caught:
        await society_kit.make(model, node_retries=retries).run(society_kit.brief)
    assert str(caught.value) == "Supervisor: the server answered 503"
    assert caught.value.role == "Supervisor"
    assert isinstance(caught.value.__cause__, ModelError)
    assert len(model.of("Supervisor")) == tries


class Hanging:
    """An async script item that waits for ever and remembers whether it was cancelled."""

    def __init__(self):
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self):
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Overdue(Hanging):
    """Lets the other juniors finish, and then the event loop's clock run ahead, an hour at a time."""

    async def __call__(self):
        for _ in range(1000):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        now = loop.time
        try:
            for hours in itertools.count(1):
                loop.time = lambda hours=hours: now() + 3600 * hours
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.mark.parametrize("how", ["run", "stream"])
@pytest.mark.parametrize("role", ["Neurologist", "ProtocolDesigner"])
async def test_a_role_that_takes_too_long_fails_and_its_model_call_is_cancelled(society_kit, role, how):
    hanging = Overdue()
    society = society_kit.make(society_kit.Model(**{role: [hanging]}), timeout_s=6000, node_retries=3)
    with refused(RoleError, role, "3600 s", "rollouts.timeout_s") as caught:
        await (society.run(society_kit.brief) if how == "run" else drain(society.stream(society_kit.brief)))
    assert caught.value.role == role
    assert hanging.cancelled.is_set()


async def test_when_one_junior_fails_the_others_calls_are_cancelled(society_kit):
    hanging = Hanging()

    async def fail_once_the_other_works():
        await hanging.started.wait()
        return ModelError("no such model")

    model = society_kit.Model(Geneticist=[hanging], Neurologist=[fail_once_the_other_works])
    with pytest.raises(RoleError, match=r"^Neurologist: no such model"):
        await society_kit.make(model).run(society_kit.brief)
    await hanging.cancelled.wait()


async def test_cancelling_a_run_cancels_its_model_calls(society_kit):
    hanging = Hanging()
    society = society_kit.make(society_kit.Model(SafetyOfficer=[hanging]))
    task = asyncio.create_task(society.run(society_kit.brief))
    await hanging.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert hanging.cancelled.is_set()


async def test_a_closed_stream_cancels_its_model_calls(society_kit):
    hanging = Hanging()
    society = society_kit.make(society_kit.Model(Supervisor=[hanging]))
    stream = society.stream(society_kit.brief)
    for _ in JUNIORS:
        await anext(stream)
    await_next = asyncio.create_task(anext(stream))
    await hanging.started.wait()
    await_next.cancel()
    with pytest.raises(asyncio.CancelledError):
        await await_next
    await stream.aclose()
    assert hanging.cancelled.is_set()
