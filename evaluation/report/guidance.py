"""What roles learned to be told, and who to work, phase by phase: the texts before and after, differences marked."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agents.context import Guided
from agents.policies.graph import load as load_graph
from agents.policies.guidance import load
from agents.roles import ROLES
from chimera.config.sections.graph import GraphConfig
from chimera.config.sections.society import SocietyConfig
from chimera.run.policies import Policy
from chimera.show.blocks import Column, TableBlock
from evaluation.report.side_by_side import lines, row


def learned_guidance(run: Path, society: SocietyConfig, learned: Mapping[str, Policy]) -> list[dict[str, Any]]:
    """For each phase that changed what roles are told, or the graph: {"phase", "rows"}, rows as of `side_by_side.view`.

    Args:
        run: The run's folder.
        learned: The policy of each phase, in the order of the run.

    Raises:
        RunError: What was learned cannot be read.
    """
    before: Guided = {}
    graph, changes = society.graph, list[dict[str, Any]]()
    for phase, policy in learned.items():
        if policy.part == "guidance":
            after = load(run / policy.folder)
            changes.append({"phase": phase, "rows": list(_rows(society, before, after))})
            before = after
        elif policy.part == "graph":
            new_graph = load_graph(run / policy.folder)
            changes.append({"phase": phase, "rows": list(_graph_rows(graph, new_graph))})
            graph = new_graph
    return changes


def told_table(change: Mapping[str, Any]) -> TableBlock:
    """One phase's changes, of `learned_guidance`."""
    columns = [Column("Field"), Column("before"), Column(f"after {change['phase']}")]
    return TableBlock(f"What roles are told after {change['phase']}", columns, lines(change["rows"]), "pair")


def _graph_rows(before: GraphConfig, after: GraphConfig) -> Iterator[dict[str, Any]]:
    for field in GraphConfig.model_fields:
        old, new = (", ".join(value) if isinstance(value, tuple) else str(value) for value in
                    (getattr(before, field), getattr(after, field)))  # fmt: skip
        if old != new:
            yield row(("graph", field), old, new)


def _rows(society: SocietyConfig, before: Guided, after: Guided) -> Iterator[dict[str, Any]]:
    for role in ROLES:
        old, new = _texts(society, before, role), _texts(society, after, role)
        for field in dict.fromkeys((*old, *new)):
            if old.get(field) != new.get(field):
                yield row((role, field), old.get(field), new.get(field))


def _texts(society: SocietyConfig, guidance: Guided, role: str) -> dict[str, str]:
    """What a role is told, a text for each field; its own prompt where it is told no other."""
    told_role = society.told(role)
    if role in guidance:
        told_role = told_role.model_copy(update=guidance[role].given())
    fields = {"prompt": ROLES[role].prompt, **told_role.given()}
    return {name: value if isinstance(value, str) else "\n".join(map(_line, value)) for name, value in fields.items()}


def _line(entry: Any) -> str:
    return entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)
