import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from message_kit import refused

import chimera.graph
from agents.graph import build_graph
from agents.roles import ROLES, SUPERVISOR
from chimera.config.roles import RolesConfig
from chimera.config.sections.models import SLOTS
from chimera.config.sections.society import SocietyConfig
from chimera.core.errors import ConfigError
from chimera.graph import CAPTIONS, diagram, main, mermaid
from chimera.show.graph import BOX_HEIGHT, BOX_WIDTH, END, START, Box, Edge, draw, layers, loops, positions

ASSETS = Path(chimera.graph.__file__).parent / "assets"
ARROW = re.compile(r"^ +(\w+) (-->|-\.->)(?:\|(\w+)\|)? (\w+)$", re.MULTILINE)
NODE = re.compile(r"^ +(\w+)(?:\[\"|\(\[)", re.MULTILINE)


def graph_of(text):
    nodes = {node for node in NODE.findall(text) if node != "subgraph"}
    edges = {(source, target, label or None) for source, _, label, target in ARROW.findall(text)}
    return nodes, edges


def compiled():
    graph = build_graph(SocietyConfig()).get_graph()
    return set(graph.nodes), {(edge.source, edge.target, edge.data) for edge in graph.edges}


def test_the_mermaid_text_has_the_compiled_graphs_nodes_and_edges():
    assert graph_of(mermaid(diagram())) == compiled()
    assert set(ROLES) < compiled()[0]


def test_the_committed_pictures_are_of_this_graph():
    """After a change of the graph: python -m chimera.graph --out chimera/assets."""
    current = mermaid(diagram())
    assert (ASSETS / "society.mmd").read_text(encoding="utf-8") == current
    described = ElementTree.parse(ASSETS / "society.svg").findtext(".//{http://purl.org/dc/elements/1.1/}description")
    assert (described or "").strip() == current.strip()
    assert current.encode("latin-1") in (ASSETS / "society.png").read_bytes()


def test_only_the_revisions_are_loops():
    found = {(edge.source, edge.target, edge.label) for edge in loops(diagram().edges)}
    assert found == {("SafetyOfficer", "HypothesisRefiner", "CRITICAL"), ("SafetyOfficer", "ProtocolDesigner", "MAJOR")}
    dotted = {(source, target) for source, arrow, _, target in ARROW.findall(mermaid(diagram())) if arrow == "-.->"}
    assert dotted == {(source, target) for source, target, _ in found}


def test_layers_follow_the_longest_way():
    depth = layers(diagram().edges)
    assert depth["Geneticist"] == depth["Pharmacologist"] == depth["Neurologist"] == 1
    in_order = ["Supervisor", "HypothesisRefiner", "ProtocolDesigner", "PeerReviewer", "SafetyOfficer"]
    assert [depth[name] for name in [*in_order, "PrincipalInvestigator", "Evaluation", END]] == list(range(2, 10))


@pytest.mark.parametrize("extra_juniors", [0, 1])
@pytest.mark.parametrize("extra_layers", [0, 1, 3])
def test_no_box_covers_another_also_with_more_roles(extra_juniors, extra_layers):
    society = diagram()
    boxes, edges = list(society.boxes), list(society.edges)
    for number in range(extra_juniors):
        boxes.append(Box(f"Junior{number}", "", "", "junior"))
        edges += [Edge(START, f"Junior{number}"), Edge(f"Junior{number}", "Supervisor")]
    edges.remove(Edge("Evaluation", END))
    chain = ["Evaluation", *(f"More{number}" for number in range(extra_layers)), END]
    boxes += [Box(name, "", "", "judge") for name in chain[1:-1]]
    edges += [Edge(source, target) for source, target in itertools.pairwise(chain)]
    place = positions(dataclasses.replace(society, boxes=tuple(boxes), edges=tuple(edges)))
    assert set(place) == {START, END, *(box.name for box in boxes)}
    for (x1, y1), (x2, y2) in itertools.combinations([place[box.name] for box in boxes], 2):
        assert abs(x1 - x2) > BOX_WIDTH or abs(y1 - y2) > BOX_HEIGHT


def test_every_role_has_a_colour_and_a_caption():
    society = diagram()
    assert {box.group for box in society.boxes} == set(SLOTS)
    assert {box.name for box in society.boxes} == {*CAPTIONS, SUPERVISOR}
    assert {box.name: box.group for box in society.boxes if box.name in ROLES} == {
        role: slot for role, slot in RolesConfig().slots().items() if role in ROLES
    }


def test_the_command_writes_three_files_without_graphviz_or_a_display_and_always_the_same(tmp_path):
    bare = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "MPLBACKEND")}
    command = [sys.executable, "-m", "chimera.graph", "--out", str(tmp_path / "new" / "folder")]
    done = subprocess.run(command, capture_output=True, text=True, env=bare | {"PATH": "/nonexistent"}, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    png, svg, text = [Path(line) for line in done.stdout.split()]
    assert [file.name for file in (png, svg, text)] == ["society.png", "society.svg", "society.mmd"]
    assert text.read_text(encoding="utf-8") == mermaid(diagram())
    again = [tmp_path / "again.png", tmp_path / "again.svg"]
    draw(diagram(), again, description=mermaid(diagram()))
    assert [file.read_bytes() for file in again] == [png.read_bytes(), svg.read_bytes()]
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(ConfigError, f"--out {tmp_path / 'file'}", "cannot write there"):
        main(["--out", str(tmp_path / "file"), "sft.algorithm=dpo"])


def test_importing_the_commands_is_light():
    code = (
        "import json, sys, chimera.graph, chimera.ask; "
        "heavy = {'matplotlib', 'langgraph', 'torch', 'transformers', 'openai', 'rich', 'httpx', 'pydantic'}; "
        "print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
