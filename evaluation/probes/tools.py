"""Whether the tools that roles use give answers."""

import json
import time
from collections.abc import Iterator, Mapping
from textwrap import shorten
from typing import Any

from agents.tools.text.passages import MAX_QUERY
from agents.tools.tool import Tool, short
from agents.tools.toolbox import Toolbox
from chimera.config.roles import tool_name
from chimera.config.tree import Config
from chimera.core.types import Brief
from evaluation.conduct.grounds import SETTING_OF_TOOL
from evaluation.probes.probed import Level, Probed

QUERIES: Mapping[str, str] = {"protein_lookup": "TP53", "gene_ontology": "DNA repair"}
"""What tools are asked that do not search by a question."""
WORD = "zinc"
"""Text for the arguments of other tools."""
UNKNOWN = object()
"""Stands for a value that no schema tells."""


async def tool_findings(config: Config, tools: Toolbox, brief: Brief) -> list[Probed]:
    """One call of each tool that a role has, as far as its arguments can be filled from its schema."""
    used = dict.fromkeys(name for names in config.roles.tool_names().values() for name in names)
    own_tools = [await _called(name, config, tools, brief) for name in used if name in SETTING_OF_TOOL]
    return [*own_tools, *await foreign_findings(config, tools, brief)]


async def foreign_findings(config: Config, tools: Toolbox, brief: Brief) -> list[Probed]:
    """One call of each tool that is not Chimera's own, and what cannot be checked of its arguments."""
    return [await _foreign(reference, tools, brief) for reference in config.roles.foreign()]


async def _foreign(reference: str, tools: Toolbox, brief: Brief) -> Probed:
    tool = tools.tool(tool_name(reference))
    level, text = Level.NOTE, "found; not called, because it says that it changes things"
    if not (tool.base.metadata or {}).get("changes"):
        level, text = await _tried(tool, tools, brief)
    if tool.schema_fault:
        level = Level.NOTE if level is Level.OK else level
        text += f"; its server alone checks its arguments, because Python cannot read its schema: {tool.schema_fault}"
    return Probed("tools", reference, level, text)


async def _tried(tool: Tool, tools: Toolbox, brief: Brief) -> tuple[Level, str]:
    for arguments in example_arguments(tool.parameters):
        result = await tools.call(tool.name, arguments, brief=brief)
        if result.valid:
            call = f"called with {short(json.dumps(arguments))}"
            if not result.ok:
                return Level.WARNING, f"{call}: {result.error}: is this tool set up?"
            return Level.OK, f"{call}, it returned {[short(part.text) for part in result.passages] or result.note}"
    return Level.NOTE, "found; its arguments cannot be filled from its schema, so it is called when a role calls it"


def example_arguments(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Arguments that may fit an object's schema: those that it requires, then one or all others with them."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others = [name for name in properties if name not in required]
    for names in ([], *([name] for name in others), others):
        examples = {name: _example(properties.get(name)) for name in (*required, *names)}
        if UNKNOWN not in examples.values():
            yield examples


def _example(schema: Any) -> Any:
    """A value that may fit `schema`; `UNKNOWN` if it does not say what would."""
    if not isinstance(schema, Mapping):
        return UNKNOWN
    values = [schema["const"]] if "const" in schema else schema.get("enum") or schema.get("examples")
    if values or "default" in schema:
        return schema.get("default", values and values[0])
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return _example(alternatives[0])
    item = _example(schema.get("items"))
    number = schema.get("minimum", min(1, schema.get("maximum", 1)))
    examples = {
        "string": WORD.ljust(schema.get("minLength", 0), WORD[-1])[: schema.get("maxLength")],
        "integer": number,
        "number": number,
        "boolean": False,
        "array": UNKNOWN if item is UNKNOWN else [item] * max(1, schema.get("minItems", 1)),
    }
    kinds = schema.get("type")
    kind = str(kinds[0] if isinstance(kinds, list) else kinds)
    return next(example_arguments(schema), UNKNOWN) if kind == "object" else examples.get(kind, UNKNOWN)


async def _called(name: str, config: Config, tools: Toolbox, brief: Brief) -> Probed:
    (spec,) = tools.specs([name])
    (argument,) = spec["function"]["parameters"]["required"]
    # Models write short queries; a question may be longer than a tool takes.
    question = shorten(brief.goal, MAX_QUERY, placeholder="") or brief.goal[:MAX_QUERY]
    query = QUERIES.get(name, question)
    started = time.perf_counter()
    result = await tools.call(name, {argument: query}, brief=brief)
    seconds = time.perf_counter() - started
    back_end = getattr(config.tools, SETTING_OF_TOOL[name])
    if not result.ok:
        remedy = f"mend it, or set tools.{SETTING_OF_TOOL[name]} to another back end"
        return Probed("tools", name, Level.FAULT, f"{back_end}: {result.error}: {remedy}")
    title = result.passages[0].title or result.passages[0].id if result.passages else "nothing"
    return Probed("tools", name, Level.OK, f"{back_end} found {title[:60]!r} for {query[:40]!r} in {seconds:.1f} s")
