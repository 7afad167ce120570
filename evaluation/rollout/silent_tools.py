"""Warns of roles that have tools and never call one. Usually the server is the cause, and nothing else reports it."""

from collections.abc import Sequence

from agents.graph import working
from agents.nodes import NODES
from chimera.config.roles import JUNIORS
from chimera.config.sections.models import ModelConfig
from chimera.config.tree import Config
from evaluation.records.rollouts import RolloutRecord

ENOUGH = 10
"""Number of rollouts after which missing tool calls are not due to chance."""


def silent_warnings(records: Sequence[RolloutRecord], config: Config) -> list[str]:
    """One sentence for each model whose roles should have searched but never did in at least `ENOUGH` rollouts.

    Only rollouts that recorded their tool calls count. Failed ones count too: missing searches may be why they failed.
    """
    roles_by_slot: dict[str, list[str]] = {}
    for role in searchers(config):
        calls = [record.tool_calls[role] for record in records if role in record.tool_calls]
        if len(calls) >= ENOUGH and not any(calls):
            roles_by_slot.setdefault(config.slot(role), []).append(f"{role} ({len(calls)} rollouts)")
    return [_sentence(config, slot, f"{', '.join(roles)} never called a tool") for slot, roles in roles_by_slot.items()]


def never_searched(config: Config) -> str | None:
    """The warning for a single rollout in which no role called a tool; None if no role had to."""
    roles = searchers(config)
    return _sentence(config, config.slot(roles[0]), "no role called a tool") if roles else None


def searchers(config: Config) -> list[str]:
    """The roles for which missing tool calls are a fault.

    Juniors must search unless the abstract is in their prompt. Refiner and designer may search. If they do not, it is
    a fault only if their server is known to prevent it: an endpoint that gets a JSON schema together with tools.
    """
    if config.society.evidence == "given" or config.society.max_tool_calls == 0:
        return []
    tools, nodes = config.roles.tool_names(), working(config.society.graph)
    roles = [name for name, node in NODES.items() if nodes.get(name) is node and tools[name]]
    return [name for name in roles if name in JUNIORS or _prevented(config.models[config.slot(name)])]


def _prevented(model: ModelConfig) -> bool:
    return model.kind in ("endpoint", "vllm") and model.sends_schema == "always"


def _sentence(config: Config, slot: str, what: str) -> str:
    model = config.models[slot]
    if _prevented(model):
        remedy = f"some servers call none beside a JSON schema: set models.{slot}.structured=final"
    elif model.kind in ("endpoint", "vllm"):
        remedy = (
            "see that the server was started with tool calls (vLLM: --enable-auto-tool-choice --tool-call-parser NAME) "
            f"and that the model can make them (models.{slot}.structured={model.sends_schema} is not in the way)"
        )
    else:
        remedy = f"the weights of models.{slot} do not know how, or have unlearned it"
    return f"{what}, so its answers rest on no source (models.{slot}): {remedy}"


class Watch:
    """Checks the first rollouts of each phase for roles that do not search."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._first: dict[str, list[RolloutRecord]] = {}

    def add(self, record: RolloutRecord) -> list[str]:
        """The warnings about the record's phase, if this record completes its first `ENOUGH` rollouts; else none.

        Rollouts without recorded tool calls do not count: an earlier version made them.
        """
        first = self._first.setdefault(record.phase, [])
        if not record.tool_calls or len(first) == ENOUGH:
            return []
        first.append(record)
        return [f"{record.phase}: {warning}" for warning in silent_warnings(first, self._config)]
