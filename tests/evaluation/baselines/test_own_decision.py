"""benchmarks.own_decision asks a role again exactly what the society asked it, tools included."""

from benchmarks.own_decision import Bench
from chimera.core.errors import ModelError
from chimera.data.tasks import load
from training.configuration import load_config


class Judged:
    """A scripted model that the judge may ask too, and gets nothing from."""

    def __init__(self, model):
        self.model = model

    async def complete(self, key, messages, **options):
        if messages[0]["content"].startswith("You are the Judge."):
            raise ModelError("no judge here")
        return await self.model.complete(key, messages, **options)


async def test_a_state_holds_all_that_the_role_was_asked(society_kit) -> None:
    config = load_config(None, ["society.quotes=free"])
    model = society_kit.Model()
    tasks = load(config.data).test[:1]
    right, (state,) = await Bench(config, "HypothesisRefiner", tasks, Judged(model), 1).society()
    (asked, *_) = model.of("HypothesisRefiner")
    assert len(right) == 1
    assert state is not None
    assert [one["function"]["name"] for one in state.tools] == ["literature_search"]
    assert list(state.messages) == list(asked.messages[: len(state.messages)])
