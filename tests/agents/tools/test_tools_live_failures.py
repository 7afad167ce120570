"""Every way in which a live service can fail, and how long it is waited for."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from live_kit import KEY, PUBMED_IDS, PUBMED_XML, QUICKGO, SERVICES, Clock, live_http
from message_kit import refused

from agents.tools.live.go import QuickGO
from agents.tools.live.http import retry_after
from agents.tools.live.pubmed import PubMed
from agents.tools.text.passages import ToolError


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (httpx.Response(200, text="<html>Maintenance</html>"), "malformed JSON"),
        (httpx.Response(200, text=""), "malformed JSON"),
        (httpx.Response(200, json={"unexpected": []}), "malformed JSON"),
        (httpx.Response(200, content=b"\xff\xfe{}"), "malformed JSON"),
        (httpx.Response(400, text="bad query"), "400"),
        (httpx.Response(302, headers={"Location": "https://elsewhere.example"}), "302"),
        (httpx.Response(307, headers={"Location": "https://elsewhere.example"}), "307"),
        (httpx.Response(200, content=b"null"), "malformed JSON"),
        (httpx.Response(200, content=b"7"), "malformed JSON"),
        (httpx.Response(200, content=b"[" * 100_000), "malformed JSON"),
        (httpx.Response(200, content=b'{"results": ["\\ud800"]}'), "malformed JSON"),
        (httpx.Response(200, content=b'{"results": null, "studies": 7}'), "malformed JSON"),
        (httpx.Response(429, json={"error": KEY}), ("429", "3 tries")),
        (httpx.Response(500, text=KEY), ("500", "3 tries")),
        (httpx.Response(503), ("503", "3 tries")),
        (httpx.ConnectError(f"no route with {KEY}"), "ConnectError"),
        (httpx.ReadError("reset"), "ReadError"),
        (httpx.RemoteProtocolError("garbage"), "RemoteProtocolError"),
        (httpx.DecodingError("gzip"), "decompressed"),
        (httpx.Response(200, content=b" " * 8_000_001), "8 MB"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_failure_is_one_sentence_with_the_service_and_without_the_key(
    live_answers, caplog, service, answer, fault
):
    caplog.set_level(logging.DEBUG)
    live_answers.route().mock(
        return_value=answer if isinstance(answer, httpx.Response) else None,
        side_effect=answer if isinstance(answer, Exception) else None,
    )
    with refused(ToolError, service, fault) as caught:
        await SERVICES[service](live_http(), "https://live.example")("zinc")
    assert KEY not in str(caught.value)
    assert KEY not in caplog.text


@pytest.mark.parametrize(("service", "name"), [("Tavily", "TAVILY_API_KEY"), ("PubMed", "NCBI_API_KEY")])
@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_named_not_shown(live_answers, service, name, status):
    live_answers.route().respond(status, json={"detail": KEY})
    with refused(ToolError, service, f"({status})", f"check {name}"):
        await SERVICES[service](live_http(), "https://live.example")("zinc")


@pytest.mark.parametrize("service", SERVICES)
async def test_keys_are_not_logged_when_all_goes_well(live_answers, caplog, service):
    caplog.set_level(logging.DEBUG)
    live_answers.post("/esearch.fcgi").respond(json=PUBMED_IDS)
    live_answers.post("/efetch.fcgi").respond(text=PUBMED_XML)
    live_answers.route().respond(json={"results": [], "studies": []})
    await SERVICES[service](live_http(), "https://live.example")("zinc")
    assert live_answers.calls.called
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("xml", "fault"),
    [
        ("<PubmedArticleSet><Pubmed", "malformed XML"),
        ("", "malformed XML"),
        ("<a>" * 200_000, "malformed XML"),
        ("<html><body>Down</body></html>", ("<html>", "<PubmedArticleSet>")),
        ('<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><PubmedArticleSet>&b;</PubmedArticleSet>', "entity"),
        ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><PubmedArticleSet>&a;</PubmedArticleSet>', "entity"),
    ],
)
async def test_broken_or_hostile_xml_is_a_tool_error(live_answers, xml, fault):
    live_answers.post("/esearch.fcgi").respond(json=PUBMED_IDS)
    live_answers.post("/efetch.fcgi").respond(text=xml)
    with refused(ToolError, "PubMed", 200, fault):
        await PubMed(live_http(), 2, None, "https://live.example").literature_search("zinc")


async def test_an_error_that_pubmed_reports_inside_its_answer(live_answers):
    live_answers.post("/esearch.fcgi").respond(json={"esearchresult": {"ERROR": "Search Backend failed"}})
    with refused(ToolError, "PubMed", "Search Backend failed"):
        await PubMed(live_http(), 2, None, "https://live.example").literature_search("zinc")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_busy_services_are_tried_again_with_growing_pauses(live_answers, status):
    clock = Clock()
    busy = httpx.Response(status)
    live_answers.get("/search").side_effect = [busy, busy, httpx.Response(200, json=QUICKGO)]
    assert await QuickGO(live_http(clock), 1, "https://live.example").gene_ontology("apoptosis")
    assert clock.slept == [0.5, 1.0]


async def test_retry_after_is_respected(live_answers):
    clock = Clock()
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    live_answers.get("/search").side_effect = [
        httpx.Response(429, headers={"Retry-After": "2"}),
        httpx.Response(503, headers={"Retry-After": soon}),
        httpx.Response(200, json=QUICKGO),
    ]
    assert await QuickGO(live_http(clock, timeout_s=7200), 1, "https://live.example").gene_ontology("apoptosis")
    assert clock.slept[0] == 2.0
    assert 0 < clock.slept[1] <= 3600


@pytest.mark.parametrize("status", [429, 503])
async def test_a_pause_beyond_the_budget_is_not_waited_for(live_answers, status):
    clock = Clock()
    route = live_answers.get("/search").respond(status, headers={"Retry-After": "120"})
    with refused(ToolError, "QuickGO", f"({status})", "120 s", "5 s", "tools.timeout_s"):
        await QuickGO(live_http(clock), 1, "https://live.example").gene_ontology("apoptosis")
    assert (route.call_count, clock.slept) == (1, [])


@pytest.mark.parametrize(
    ("status", "retries", "tries", "remedy"),
    [
        *((503, retries, retries + 1, "try again later") for retries in (0, 1, 3)),
        *((status, 2, 1, "try other words") for status in (400, 404)),
    ],
)
async def test_retries_bound_the_tries_and_refusals_are_not_tried_again(live_answers, status, retries, tries, remedy):
    route = live_answers.get("/search").respond(status, headers={"Retry-After": "0"})
    with refused(ToolError, "QuickGO", f"({status})", remedy):
        await QuickGO(live_http(retries=retries), 1, "https://live.example").gene_ontology("apoptosis")
    assert route.call_count == tries


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("inf", None),
        ("soon", None),
        ("-3", None),
        ("²", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_retry_after_header(value, seconds):
    assert retry_after(value) == seconds


@pytest.fixture
async def silent_server():
    """A real server that accepts requests and never answers; yields its address."""
    done = asyncio.Event()

    async def handle(reader, writer):
        await done.wait()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    done.set()
    server.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_a_silent_service_is_given_up_after_the_time_out(silent_server, service):
    with refused(ToolError, service, "0.05 s", "tools.timeout_s"):
        await SERVICES[service](live_http(timeout_s=0.05), silent_server)("zinc")


async def test_a_service_that_closes_the_connection_cannot_be_reached():
    async def handle(reader, writer):
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with refused(ToolError, "QuickGO", "cannot be reached", "RemoteProtocolError"):
        await QuickGO(live_http(), 1, address).gene_ontology("zinc")
    server.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_that_drips_is_given_up_after_the_time_out(service):
    """Each byte comes long before the limit, which is for the whole request."""

    async def handle(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with refused(ToolError, service, "0.1 s", "tools.timeout_s"):
            await SERVICES[service](live_http(timeout_s=0.1), address)("zinc")


async def test_a_waiting_search_can_be_cancelled(silent_server):
    task = asyncio.create_task(QuickGO(live_http(timeout_s=60), 1, silent_server).gene_ontology("zinc"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
