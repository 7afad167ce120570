"""Whether the tools that roles use give answers."""

import time
from collections.abc import Mapping
from textwrap import shorten

from agents.tools.text.passages import MAX_QUERY
from agents.tools.toolbox import Toolbox
from chimera.config.tree import Config
from chimera.core.types import Brief
from evaluation.conduct.grounds import SETTING_OF_TOOL
from evaluation.probes.probed import Level, Probed

QUERIES: Mapping[str, str] = {"protein_lookup": "TP53", "gene_ontology": "DNA repair"}
"""What tools are asked that do not search by a question."""


async def tool_findings(config: Config, tools: Toolbox, brief: Brief) -> list[Probed]:
    """One call of each of Chimera's own tools that a role has; that other tools were found."""
    used = dict.fromkeys(name for names in config.roles.tool_names().values() for name in names)
    others = [
        Probed("tools", reference, Level.OK, "found; it is called when a role calls it")
        for reference in config.roles.foreign()
    ]
    own_tools = [name for name in used if name in SETTING_OF_TOOL]
    return [*[await _called(name, config, tools, brief) for name in own_tools], *others]


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
