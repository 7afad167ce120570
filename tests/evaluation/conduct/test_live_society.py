"""A society that answers a person, step by step, and what a notebook shows of it."""

import os
import re
import xml.etree.ElementTree as ElementTree

import pytest
from ask_kit import endpoints
from rich.color import Color

from agents.graph import build_graph
from agents.roles import ROLES
from chimera.config.roles import JUNIORS
from chimera.config.sections.society import SocietyConfig
from chimera.core.errors import ModelError, RoleError
from chimera.core.types import ResearchTask, Section
from chimera.data.tasks import load
from chimera.graph import diagram
from chimera.show.ask import DECISION_COLOURS, SEVERITY_COLOURS, task_card
from chimera.show.card import Card
from evaluation.conduct.live_society import Step, build_library, open_society
from training.configuration import load_config


@pytest.fixture
def config(scripted_openai):
    scripted_openai.hooks.clear()
    return load_config(None, [*endpoints(scripted_openai.url), "society.node_retries=0"])


async def test_a_person_is_answered_at_the_answering_temperature(config, scripted_openai):
    """The judge keeps its own."""
    scripted_openai.requests.clear()
    with open_society(config) as society:
        _ = [step async for step in society.answer(load(config.data).validation[0].brief(), 7)]
    assert {request["temperature"] for request in scripted_openai.requests} == {config.evaluation.temperature, 1.0}
    assert scripted_openai.requests[0]["temperature"] == config.evaluation.temperature == 0.3


async def test_every_node_is_one_step_with_what_it_wrote(config):
    task = load(config.data).validation[0]
    with open_society(config) as society:
        steps = [step async for step in society.answer(task.brief(), 7)]
    assert [step.number for step in steps] == list(range(1, 11))
    assert {step.node for step in steps[:3]} == set(JUNIORS)
    assert {step.node for step in steps} == set(ROLES) | {"Evaluation"}
    by_node = {step.node: step for step in steps}
    assert by_node["Supervisor"].wrote == ("selected_hypothesis", "supervisor_justification", "selection")
    assert by_node["PrincipalInvestigator"].update["final_decision"] == "GO"
    assert [card.headline for card in by_node["PrincipalInvestigator"].cards] == ["Answer: yes; protocol: GO"]
    assert by_node["Evaluation"].headline == "Step 10: Evaluation wrote final_evaluation"
    found = dict(by_node["Evaluation"].sources.lines)
    assert found[f"invented study {task.id}"] == task.goal, "the juniors' question finds its own abstract, by its title"
    (quote,) = [text for label, text in by_node["Geneticist"].cards[0].lines if label == "evidence"]
    assert re.search(r"” \[invented study [^]]+\]$", quote)
    assert by_node["Evaluation"].tool_calls >= len(JUNIORS)


async def test_two_questions_do_not_share_their_sources(config, scripted_openai):
    first, second = (task.brief() for task in load(config.data).validation[:2])
    with open_society(config) as society:
        alone = [step async for step in society.answer(second, 7)][-1].sources
        one = [step async for step in society.answer(first, 7)][-1].sources
        again = [step async for step in society.answer(second, 7)][-1].sources
    assert alone == again
    assert alone != one


@pytest.mark.parametrize("own", [False, True])
def test_live_searches_hide_the_article_behind_a_task_but_not_behind_ones_own_question(config, monkeypatch, own):
    import evaluation.conduct.live_society

    options = {}
    monkeypatch.setattr(
        evaluation.conduct.live_society, "build_toolbox", lambda *arguments, **keywords: options.update(keywords)
    )
    brief = load(config.data).validation[0].brief()
    library = build_library(config, {}, brief if own else None)
    assert options["block_source"] is not own
    assert (options["conclusions"] is None) is own
    assert library.searched == "your abstract" if own else "generated tasks" in library.searched
    assert (library.rule is not None) is own


def test_calls_to_this_machine_go_by_no_proxy(config, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.setenv("no_proxy", "intranet")
    with open_society(config):
        assert os.environ["no_proxy"].startswith("intranet,127.0.0.1")


def test_the_servers_log_stays_only_where_an_error_names_it(config, tmp_path, monkeypatch):
    own = tmp_path / "chimera-0123abcd"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))  # It goes at the command's end, so the log lies beside it.

    def named_error():
        (logs,) = tmp_path.glob("chimera-models-*")
        raise ModelError(f"the model server did not start. Its last log lines ({logs}/models.log): out of memory")

    for error in (RoleError("Supervisor", "said nothing"), KeyboardInterrupt()):
        with pytest.raises(type(error)), open_society(config):
            raise error
    assert list(tmp_path.iterdir()) == [own]
    with pytest.raises(ModelError), open_society(config):
        named_error()
    assert [folder.name[:15] for folder in tmp_path.iterdir() if folder != own] == ["chimera-models-"]


def test_a_step_is_shown_without_its_conversations():
    cards = (Card("Geneticist: yes", (("claim", "genes"),)),)
    update = {"messages": {"Geneticist": ["long"]}, "turn_count": 1, "sender": "Geneticist", "initial_hypotheses": []}
    step = Step(3, "Geneticist", update, cards, Card("Sources", ()), slot="junior")
    assert step.headline == "Step 3: Geneticist (junior model) wrote initial_hypotheses"
    assert repr(step) == f"{step.headline}\n  Geneticist: yes"
    html = step._repr_mimebundle_((), ())["text/html"]
    assert "".join(ElementTree.fromstring(html).itertext()).split("\n")[0].rstrip() == step.headline
    assert "genes" in html


def test_a_card_is_a_panel_in_a_notebook_in_which_text_is_text():
    card = Card("<b>Decision</b>", (("why & how", '<script>x</script> "quoted"'), ("next", "[red]line[/red]")), "green")
    page = ElementTree.fromstring(card._repr_mimebundle_((), ())["text/html"])
    words = " ".join("".join(page.itertext()).split())
    for text in ("╭─ <b>Decision</b> ─", 'why & how <script>x</script> "quoted"', "next [red]line[/red]"):
        assert text in words
    assert {element.tag for element in page.iter()} == {"pre", "span"}
    (headline,) = [span for span in page.iter("span") if (span.text or "").strip() == "<b>Decision</b>"]
    assert "color" in headline.attrib["style"]


def luminance(name):
    """Relative luminance as WCAG 2 defines it."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in Color.parse(name).get_truecolor().normalized
    ]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(
    "colour",
    sorted(
        {
            "cyan",
            "dark_orange3",
            "medium_orchid3",
            "bright_black",
            Card("", ()).colour,
            *DECISION_COLOURS.values(),
            *SEVERITY_COLOURS.values(),
        }
    ),
)
def test_a_cards_headline_can_be_read_on_a_white_and_on_a_black_page(colour):
    """A ratio of 3 is what WCAG 2 asks for bold text."""
    assert 1.05 / (luminance(colour) + 0.05) >= 3
    assert (luminance(colour) + 0.05) / 0.05 >= 3


def test_a_task_is_shown_with_its_key_and_without_its_conclusion():
    task = ResearchTask("7", "Does it?", (Section("RESULTS", "It fell."),), "yes", "generated", "So it does.", 2)
    card = task_card(task)
    assert card.headline == "Does it?"
    lines = (("data", "generated tasks"), ("level", "2"), ("results", "It fell."), ("answer key", "yes"))
    assert card.lines == lines


def test_the_graph_is_a_picture_in_a_notebook():
    society = diagram()
    drawing = society._repr_svg_()
    assert ElementTree.fromstring(drawing).tag == "{http://www.w3.org/2000/svg}svg"
    assert drawing == society._repr_svg_()
    assert {box.name for box in society.boxes} <= set(build_graph(SocietyConfig()).get_graph().nodes)
