"""One whole rollout of the society on one task, with the configured models and tools."""

import time
from collections import Counter

from agents.context import Tools
from agents.society import Society
from agents.visit.record import CallRecord, ModelCall, ToolUse
from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.core.errors import ChimeraError
from chimera.core.types import Brief
from chimera.serving.client import Model
from evaluation.probes.probed import Level, Probed
from evaluation.scores.judge import Judge


async def rollout_finding(config: Config, model: Model, tools: Tools, brief: Brief) -> Probed:
    """Whether the society reaches a decision, with its calls, tool calls, tokens and time."""
    calls: list[CallRecord] = []
    judge, limit = Judge(model, config.slot(JUDGE)).evaluate, config.rollouts.timeout_s
    society = Society(model, tools, config.society, config.roles, evaluate=judge, observe=calls.append, timeout_s=limit)
    started = time.perf_counter()
    try:
        state = await society.run(brief, config.seed)
    except ChimeraError as error:
        return Probed("rollout", "one task", Level.FAULT, f"it failed: {error}")
    seconds = time.perf_counter() - started
    model_calls = [call for call in calls if isinstance(call, ModelCall)]
    used = Counter(call.tool for call in calls if isinstance(call, ToolUse) and call.ok)
    broken = sorted({call.error for call in calls if isinstance(call, ToolUse) and not call.ok and call.error})
    tokens = sum(call.prompt_tokens + call.completion_tokens for call in model_calls)
    searches = ", ".join(f"{count} {name}" for name, count in used.items()) or "no tool call"
    text = (
        f"answer {state['final_answer']}, decision {state['final_decision']} in {seconds:.1f} s: {len(model_calls)} "
        f"model calls, {tokens:,} tokens, {searches}"
    )
    repaired = sum(call.repair for call in model_calls)
    faults = [f"{repaired} answers had to be asked for again"] if repaired else []
    faults += [f"tools failed: {'; '.join(broken)[:300]}"] if broken else []
    if faults:
        return Probed("rollout", "one task", Level.WARNING, f"{text}; {'; '.join(faults)}")
    return Probed("rollout", "one task", Level.OK, text)
