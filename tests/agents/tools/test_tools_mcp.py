"""Tools of MCP servers: a program's and those at an address, what they get, how they fail and how they end."""

import asyncio
import json
import shlex
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from unittest.mock import AsyncMock

import psutil
import pytest
from jsonschema import Draft202012Validator
from mcp_kit import serve_http, write_awkward, write_program
from message_kit import refused

from agents.tools import mcp
from agents.tools.mcp import McpServers
from agents.tools.text.passages import content_id
from agents.tools.toolbox import Toolbox, check_tools, foreign_tools
from chimera.config.sections.tools import McpServer
from chimera.config.tree import dump_config
from chimera.config.trust import check_trusted
from chimera.core.errors import ConfigError
from chimera.core.types import Brief
from evaluation.probes.tools import foreign_findings
from training.configuration import load_config

BRIEF = Brief("10101010", "Does zinc speed up the healing of surgical wounds?", ())
ALL = "[mcp:lab/dose, mcp:lab/environment, mcp:lab/broken, mcp:lab/end, mcp:lab/hang]"
KEY = "a-key-of-the-lab-4711"


def configured(*settings, tools=ALL):
    return load_config(None, [f"roles.Geneticist.tools={tools}", "tools.max_chars=100000", *settings])


def command(program):
    return f"tools.mcp.lab.command={list(program)}"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return write_program(tmp_path_factory.mktemp("mcp"))


@pytest.fixture(scope="module")
def tools_of(program):
    """`tools_of(tools, setting, ...)`: a toolbox with these tools of a program, whose server is started once."""

    def make(tools=ALL, *settings):
        config = configured(command(program), *settings, tools=tools)
        return Toolbox(foreign_tools(config.tools, config.roles, servers), results=3, max_chars=100_000)

    lab = McpServer(command=program, env=("LAB_KEY",))
    servers = McpServers({"lab": lab}, {"LAB_KEY": KEY, "OTHER_KEY": "x"})
    yield make
    servers.close()


@pytest.fixture(scope="module")
def toolbox(tools_of):
    return tools_of(ALL, "tools.timeout_s=600")


async def test_a_tool_is_offered_with_its_schema_and_called_with_its_arguments(toolbox):
    (spec,) = toolbox.specs(["dose"])
    function = spec["function"]
    assert function["description"].startswith("Say how much of a drug was given. Three arguments")
    assert function["parameters"]["required"] == ["drug", "milligrams"]
    assert list(function["parameters"]["properties"]) == ["drug", "milligrams", "days"]
    given = {"drug": "zinc", "milligrams": 12.5, "days": 4}
    result = await toolbox.call("dose", given, brief=BRIEF)
    text = "Patients took 50 mg of zinc altogether, over 4 days."
    assert result.content() == {"results": [{"id": content_id("dose", text), "text": text}]}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"drug": "zinc"}, "'milligrams' is a required property"),
        ({"drug": 7, "milligrams": 1}, "drug: 7 is not of type 'string'"),
        ({"drug": "zinc", "milligrams": 1, "hours": 2}, "hours: extra inputs are not permitted"),
    ],
)
async def test_arguments_are_checked_by_the_servers_own_schema(toolbox, arguments, fault):
    result = await toolbox.call("dose", arguments, brief=BRIEF)
    assert (result.ok, result.valid) == (False, False)
    expected = '{"drug": text, "milligrams": number, "days": whole number (may be left out)}'
    assert result.error == f"dose takes {expected}; {fault}"


async def test_a_program_gets_only_the_environment_that_it_is_given(toolbox):
    (passage,) = (await toolbox.call("environment", {}, brief=BRIEF)).passages
    *names, key, _pid = passage.text.split()
    assert key == KEY
    assert set(names) <= {"LAB_KEY", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}


async def test_a_tool_that_fails_is_told_and_the_session_goes_on(toolbox):
    result = await toolbox.call("broken", {}, brief=BRIEF)
    assert (result.ok, result.valid) == (False, True)
    assert "broken failed" in str(result.error)
    assert (await toolbox.call("dose", {"drug": "iron", "milligrams": 1}, brief=BRIEF)).ok


async def test_a_server_that_ends_fails_its_call_and_is_started_again(toolbox):
    assert not (await toolbox.call("end", {}, brief=BRIEF)).ok
    assert (await toolbox.call("dose", {"drug": "copper", "milligrams": 1}, brief=BRIEF)).ok


async def test_a_tool_that_hangs_is_given_up_and_the_session_goes_on(tools_of, toolbox):
    result = await tools_of("[mcp:lab/hang]", "tools.timeout_s=0.1").call("hang", {}, brief=BRIEF)
    assert result.error == "hang did not answer within 0.1 s (tools.timeout_s)"
    assert (await toolbox.call("dose", {"drug": "silver", "milligrams": 1}, brief=BRIEF)).ok


async def test_a_server_at_an_address_gets_the_key_that_is_named():
    with serve_http() as (url, keys):
        config = configured(f"tools.mcp.lab.url={url}", "tools.mcp.lab.api_key_env=LAB_KEY", tools="[mcp:lab/dose]")
        assert config.secret_names() == ("LAB_KEY",)
        servers = McpServers(config.tools.mcp, {"LAB_KEY": KEY})
        toolbox = Toolbox(foreign_tools(config.tools, config.roles, servers), results=1, max_chars=400)
        result = await toolbox.call("dose", {"drug": "zinc", "milligrams": 1}, brief=BRIEF)
        servers.close()
    assert result.passages[0].text == "Patients took 1 mg of zinc altogether, over 1 days."
    assert set(keys) == {f"Bearer {KEY}"}


async def test_a_server_that_hangs_when_it_is_started_again_is_started_a_third_time(monkeypatch):
    starts = count(1)

    @asynccontextmanager
    async def client(*_):
        if (start := next(starts)) == 2:
            await asyncio.Event().wait()
        work = AsyncMock(side_effect=None if start > 2 else ConnectionError("it broke off"), return_value="done")
        yield SimpleNamespace(session=SimpleNamespace(), call_tool=work)

    monkeypatch.setattr(mcp, "_client", client)
    monkeypatch.setattr(mcp, "START_SECONDS", 0.05)
    session = mcp.Session("tools.mcp.lab", McpServer(command=("x",)), {})
    for failure in ("it broke off", "did not answer within 0.05 s"):
        with pytest.raises(Exception, match=failure):
            await session.call("dose", {})
    assert await session.call("dose", {}) == "done"
    await session.close()


def test_a_program_ends_with_its_parent_however_that_ends(tmp_path):
    script = f"""
import os, psutil, signal
from agents.tools.mcp import McpServers
from chimera.config.sections.tools import McpServer
servers = McpServers({{"lab": McpServer(command={write_awkward(tmp_path, "--stays")!r})}}, {{}})
servers.tool("mcp:lab/free", "x")
_guard, program = psutil.Process().children(recursive=True)
print(program.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == -9, found.stderr
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(found.stdout)).wait(600)


def test_a_check_leaves_no_program_behind_and_no_traceback_of_lines_that_are_no_messages(tmp_path, capfd, caplog):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    config = configured(command(write_awkward(tmp_path)), tools="[mcp:lab/free]")
    check_tools(config.tools, config.roles, {})
    assert {child.pid for child in psutil.Process().children(recursive=True)} - before == set()
    assert "Traceback" not in capfd.readouterr().err + caplog.text


SCHEMAS = ["unicode_pattern", "lost_reference", "no_such_type", "either", "by_reference", "odd_names", "free"]
NAMES = [*SCHEMAS, "deletes", "file", "binary", "picture", "link", "rows", "both"]
RENAMED = ("mcp:lab/papers.find as find", "mcp:lab/papers/read as read", "mcp:other/file as other_file")


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    """The tools of a server whose tools are awkward but legal, and their configuration."""
    program = list(write_awkward(tmp_path_factory.mktemp("awkward")))
    tools = [*(f"mcp:lab/{name}" for name in NAMES), *RENAMED]
    config = configured(command(program), f"tools.mcp.other.command={program}", "tools.timeout_s=600", tools=str(tools))
    servers = McpServers(config.tools.mcp, {})
    yield Toolbox(foreign_tools(config.tools, config.roles, servers), results=1, max_chars=400), config
    servers.close()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unicode_pattern", {"text": "Z\u00fcrich"}),
        ("lost_reference", {"query": {"words": 1}}),
        ("no_such_type", {"text": "x"}),
        ("either", {"pmid": "1"}),
        ("by_reference", {"text": "x"}),
        ("odd_names", {"config": "a", "self": "b"}),
        ("free", {}),
        ("find", {"text": "x"}),
        ("read", {"text": "x"}),
    ],
)
async def test_what_a_schema_cannot_check_here_goes_to_the_server(awkward, name, arguments):
    toolbox, _ = awkward
    result = await toolbox.call(name, arguments, brief=BRIEF)
    (passage,) = result.passages
    server_name = {"find": "papers.find", "read": "papers/read"}.get(name, name)
    assert passage.text == f"{server_name} got {json.dumps(arguments, sort_keys=True)}"
    assert passage.id == content_id(name, passage.text)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unicode_pattern", {}),
        ("lost_reference", {"days": 3}),
        ("either", {}),
        ("either", {"pmid": "1", "words": "x"}),
        ("by_reference", {}),
        ("free", {"x": 1}),
    ],
)
async def test_what_can_be_checked_of_an_awkward_schema_is(awkward, name, arguments):
    result = await awkward[0].call(name, arguments, brief=BRIEF)
    assert (result.ok, result.valid) == (False, False)


def test_models_are_told_of_awkward_schemas_in_the_form_that_all_servers_take(awkward):
    toolbox, _ = awkward
    told = {spec["function"]["name"]: spec["function"] for spec in toolbox.specs(toolbox.names)}
    assert list(told) == [*NAMES, "find", "read", "other_file"]
    for function in told.values():
        parameters = function["parameters"]
        assert set(parameters) == {"type", "properties", "required", "additionalProperties"}
        assert "$ref" not in str(parameters["properties"].values()).replace('"$ref"', "")
        Draft202012Validator.check_schema(parameters)
    assert '{"oneOf": [{"required": ["pmid"]}, {"required": ["words"]}]}' in told["either"]["description"]
    assert told["unicode_pattern"]["parameters"]["properties"]["text"]["type"] == "string"
    assert r"^[\\p{L} ]+$" in told["unicode_pattern"]["parameters"]["properties"]["text"]["description"]
    assert told["by_reference"]["parameters"]["required"] == ["text"]


@pytest.mark.parametrize(
    ("name", "texts", "note"),
    [
        ("file", ["Zinc shortened colds (p=0.01)."], ()),
        ("other_file", ["Zinc shortened colds (p=0.01)."], ()),
        ("rows", ['1 row {"rows": [{"pmid": 4711}]}'], ()),
        ("both", ["Zinc shortened colds (p=0.01)."], ("both", "image/png")),
        ("picture", [], ("picture", "image/png", "cannot be read")),
        ("binary", [], ("binary", "pdf://1", "application/pdf", "cannot be read")),
        ("link", [], ("link", "https://example.org/zinc.pdf")),
    ],
)
async def test_results_of_every_kind_are_read_or_named(awkward, name, texts, note):
    result = await awkward[0].call(name, {"text": "zinc"}, brief=BRIEF)
    assert result.ok
    assert [" ".join(passage.text.split()) for passage in result.passages] == texts
    assert (result.note is None) == (not note)
    assert "no match" not in str(result.note)
    assert all(part in str(result.note) for part in note)


async def test_a_link_to_the_article_behind_a_question_is_not_told(awkward):
    brief = replace(BRIEF, goal="zinc.pdf: https://example.org/zinc.pdf")
    hidden = await awkward[0].call("link", {"text": "zinc"}, brief=brief)
    assert "example.org" not in str(hidden.content())


async def test_doctor_calls_what_can_be_called_and_names_what_is_wrong_with_a_schema(awkward):
    toolbox, config = awkward
    found = {one.what: one for one in await foreign_findings(config, toolbox, BRIEF)}
    assert list(found) == list(config.roles.foreign())
    levels = {what.partition("/")[2]: one.level for what, one in found.items()}
    notes = {"unicode_pattern", "lost_reference", "no_such_type", "deletes"}
    assert {name for name, level in levels.items() if level != "ok"} == notes
    assert r"\\p{L}" in repr(found["mcp:lab/unicode_pattern"].text)
    assert "#/definitions/Lost" in found["mcp:lab/lost_reference"].text
    assert "not called" in found["mcp:lab/deletes"].text
    assert 'called with {"pmid": "zinc"}' in found["mcp:lab/either"].text


def test_a_list_of_tools_without_end_is_read_to_a_limit_that_is_named(tmp_path):
    config = configured(command(write_awkward(tmp_path, "--endless")), tools="[mcp:lab/both, mcp:lab/magic]")
    with refused(ConfigError, "mcp:lab/magic", "100 pages"):
        check_tools(config.tools, config.roles, {})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["tools.mcp.lab.command=[/no/such/program]"],
            "(/no/such/program) does not work as an MCP server: /no/such/program",
        ),
        (["tools.mcp.lab.command=[sh, -c, 'echo I need a licence >&2; exit 4']"], "an MCP server: I need a licence"),
        (["tools.mcp.lab.url=http://127.0.0.1:9/mcp"], "(http://127.0.0.1:9/mcp) does not work as an MCP server: "),
        (
            ["tools.mcp.lab.command=[sh]", "tools.mcp.lab.env=[NO_SUCH_KEY]"],
            "tools.mcp.lab names NO_SUCH_KEY, which is not set",
        ),
    ],
)
def test_a_server_that_does_not_work_is_one_sentence(settings, said):
    config = configured(*settings, tools="[mcp:lab/dose]")
    with refused(ConfigError, said):
        check_tools(config.tools, config.roles, {})


def test_a_tool_that_a_server_does_not_have_is_one_sentence(tools_of):
    there = "dose, environment, broken, end, hang"
    with refused(ConfigError, "roles.Geneticist.tools", "'mcp:lab/magic'", f"the tools of tools.mcp.lab are {there}"):
        tools_of("[mcp:lab/magic]")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "one of the server 'lab', which is not in tools.mcp"),
        (["tools.mcp.lab.env=[X]"], "which needs a command or a url, and not both"),
        (
            ["tools.mcp.lab.url=http://x/mcp", "tools.mcp.lab.command=[a]"],
            "which needs a command or a url, and not both",
        ),
        (["tools.mcp.lab.url=x"], 'tools.mcp.lab.url is "x"'),
        (["tools.mcp.lab.url=http://x/mcp", "tools.mcp.lab.api_key_env=sk-1234"], "name of an environment variable"),
        (["tools.mcp.lab.url=http://x/mcp", "tools.mcp.lab.env=[X]"], "has no effect because tools.mcp.lab.url is"),
        (["tools.mcp.lab.command=[a]", "tools.mcp.other.command=[b]"], "no role has a tool of the server 'other'"),
    ],
)
def test_settings_of_servers_that_cannot_work_are_refused(settings, said):
    with refused(ConfigError, said):
        configured(*settings, tools="[mcp:lab/dose]")


def test_a_run_of_somebody_else_starts_no_program_unasked():
    program = "sh -c 'a b'"
    config = configured("tools.mcp.lab.command=[sh, -c, 'a b']", tools="[mcp:lab/dose]")
    with pytest.raises(ConfigError) as caught:
        check_trusted(config, "runs/theirs", "rollouts", ["sh", "tools.mcp.lab.command"], ["seed=3"])
    message = str(caught.value)
    assert message.startswith("runs/theirs would have this command start sh -c 'a b' (tools.mcp.lab.command)")
    assert message.endswith(f"add --trust {shlex.quote(program)}")
    check_trusted(config, "runs/theirs", "rollouts", [program])
    check_trusted(config, "runs/theirs", "rollouts", [], ["tools.mcp.lab.command=[sh, -c, 'a b']"])
    check_trusted(load_config(), "runs/theirs", "rollouts", [])


@pytest.mark.parametrize(
    ("tools", "remedy"),
    [
        ("[mcp:lab/papers.find]", "mcp:lab/papers.find as NAME"),
        ("[mcp:lab/papers/read]", "mcp:lab/papers/read as NAME"),
        ("[mcp:lab/papers.find as a b]", "mcp:lab/papers.find as NAME"),
        ("[mcp:lab/file, mcp:other/file]", "mcp:other/file as NAME"),
        ("['x:mine', 'y:its as mine']", "y:its as NAME"),
        ("[mcp:lab]", "must be mcp:server/tool"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_the_way_to_give_another(tools, remedy):
    with refused(ConfigError, remedy):
        configured("tools.mcp.lab.command=[a]", "tools.mcp.other.command=[b]", tools=tools)


def test_a_configuration_with_servers_is_written_and_read_back(tmp_path):
    config = configured("tools.mcp.lab.command=[a, -b]", "tools.mcp.lab.env=[LAB_KEY]", tools="[mcp:lab/dose]")
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "again.yaml") == config
    (tmp_path / "empty.yaml").write_text(dump_config(load_config()))
    assert load_config(tmp_path / "empty.yaml") == load_config()
    assert config.tools.mcp["lab"] == McpServer(command=("a", "-b"), env=("LAB_KEY",))
