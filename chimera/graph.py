"""`python -m chimera.graph`: the society's picture as PNG, SVG and Mermaid, drawn from the compiled graph."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.config.arguments import add_config_arguments, config_from
from chimera.core.cli import parse_arguments
from chimera.core.errors import ConfigError
from chimera.show.blocks import spaced
from chimera.show.graph import END, START, Box, Diagram, Edge, Group, draw, loops

if TYPE_CHECKING:
    from chimera.config.tree import Config

CAPTIONS = {
    "Geneticist": "genes and proteins",
    "Pharmacologist": "drugs and trials",
    "Neurologist": "brain and behaviour",
    "HypothesisRefiner": "checks it, corrects it",
    "ProtocolDesigner": "designs the experiment",
    "PeerReviewer": "checks the science",
    "SafetyOfficer": "checks for harm",
    "PrincipalInvestigator": "GO · NO-GO · UNDECIDED",
    "Evaluation": "six scores and reasons",
}
CHOICES = {"select": "selects one hypothesis", "vote": "the majority decides", "combine": "sends again, or goes on"}
"""The supervisor's caption."""

COLOURS = ("#2563eb", "#b45309", "#7c3aed", "#0f766e", "#be185d", "#475569", "#4d7c0f")
"""Colours of the slots in order; repeated if there are more slots."""


def diagram(config: "Config | None" = None) -> Diagram:
    """The diagram of the compiled society of a configuration (None: the default), with the slot of each role."""
    from agents.graph import DEBATE, build_graph
    from agents.roles import REFINER, ROLES, SUPERVISOR
    from chimera.config.roles import JUDGE
    from chimera.config.tree import Config

    config = config or Config()
    slots = config.roles.slots()
    graph, shape = build_graph(config.society).get_graph(), config.society.graph
    players = {**{name: name for name in ROLES}, DEBATE: SUPERVISOR}
    captions = {
        **CAPTIONS,
        DEBATE: "another round, or the choice",
        SUPERVISOR: CHOICES[shape.choose],
        **({} if shape.refine else {REFINER: "passes it on"}),
    }
    boxes = tuple(
        Box(name, spaced(name), captions.get(name, ""), slots[players.get(name, JUDGE)])
        for name in graph.nodes
        if name not in (START, END)
    )
    edges = sorted(
        (Edge(edge.source, edge.target, str(edge.data) if edge.data else None) for edge in graph.edges), key=str
    )
    used = {box.group for box in boxes}
    groups = (
        Group(name, f"{name} model{_trained(name, config)}", COLOURS[place % len(COLOURS)])
        for place, name in enumerate(config.models)
    )
    return Diagram(boxes, tuple(group for group in groups if group.name in used), tuple(edges))


def _trained(slot: str, config: "Config") -> str:
    """The algorithms that train the roles of a slot, as the end of a label."""
    from chimera.config.roles import expand

    names = [
        phase.algorithm.upper() if len(phase.algorithm) == 3 else phase.algorithm
        for name, phase in config.pipeline.items()
        if any(config.slot(role) == slot for role in expand(phase.roles, f"pipeline.{name}.roles"))
    ]
    return "".join(f" · {name}" for name in dict.fromkeys(names))


def mermaid(diagram: Diagram) -> str:
    """The diagram as a Mermaid flow chart; loops are dotted."""
    back = loops(diagram.edges)
    lines = ["flowchart LR", f"    {START}([question])", f"    {END}([decision])"]
    for group in diagram.groups:
        lines.append(f'    subgraph {group.name}["{group.label}"]')
        lines += [f'        {box.name}["{box.title}"]' for box in diagram.boxes if box.group == group.name]
        lines.append("    end")
    for edge in diagram.edges:
        label = f"|{edge.label}|" if edge.label else ""
        lines.append(f"    {edge.source} {'-.->' if edge in back else '-->'}{label} {edge.target}")
    for group in diagram.groups:
        lines.append(f"    classDef {group.name}Role fill:#ffffff,stroke:{group.colour},color:#1f2937")
        members = ",".join(box.name for box in diagram.boxes if box.group == group.name)
        lines.append(f"    class {members} {group.name}Role")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int | None:
    parser = argparse.ArgumentParser(prog="python -m chimera.graph", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for the files (default: here)")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    folder: Path = arguments.out
    society = diagram(config_from(arguments, own_question=True, reads=("society", "roles", "models", "pipeline")))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draw(society, [folder / "society.png", folder / "society.svg"], description=mermaid(society))
        (folder / "society.mmd").write_text(mermaid(society), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot write there ({error.strerror or error})") from error
    for ending in ("png", "svg", "mmd"):
        print(folder / f"society.{ending}")
    return None


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
