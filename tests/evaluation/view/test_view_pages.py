"""The viewer's pages over HTTP: who may see them, what they show, and that text never becomes markup."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from html import unescape

import pytest
from message_kit import refused
from starlette.testclient import TestClient
from view_kit import HOST, KEY, ODD_FOLDER, PLANTED, PORT, make_runs, rollout
from web_kit import Page

from chimera.config.tree import Config
from chimera.core.errors import RunError
from chimera.run.directory import Run
from evaluation.view.app import make_app
from evaluation.view.guard import POLICY

ROUTES = (
    "/", "/runs/first", "/runs/first/rollouts", "/runs/first/rollouts/ro-000000000001", "/runs/first/report/",
    "/compare?run=first&run=second", "/tasks?left=first/gather&right=second/gather", "/seat", "/seat/x",
    "/pair?left=first/ro-000000000001&right=second/ro-00000000000b", "/events?run=first", "/static/view.css",
    "/static/view.js", "/nothing",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def stranger(runs):
    with TestClient(make_app(runs, key=KEY, port=PORT), base_url=HOST, follow_redirects=False) as client:
        yield client


@contextmanager
def viewer(runs, **options):
    """A client that has the key."""
    with TestClient(make_app(runs, key=KEY, port=PORT), base_url=HOST, follow_redirects=False, **options) as client:
        answer = client.get(f"/?key={KEY}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        yield client


@pytest.fixture(scope="module")
def client(runs):
    with viewer(runs) as client:
        yield client


def shown(client, address, status=200):
    answer = client.get(address)
    assert answer.status_code == status, (address, answer.text)
    return answer.text


@pytest.mark.parametrize("route", ROUTES)
def test_without_the_key_every_route_answers_401(stranger, route):
    for headers in ({}, {"cookie": f"chimera_view_{PORT}=wrong"}):
        answer = stranger.get(route, headers=headers)
        assert answer.status_code == 401
        assert KEY not in answer.text + str(answer.headers)
    wrong = stranger.get(f"{route}{'&' if '?' in route else '?'}key=wrong")
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    assert stranger.post(route, headers={"origin": HOST}).status_code == 401


def test_every_route_of_the_application_is_among_those(runs):
    app = make_app(runs, key=KEY, port=PORT).app
    paths = {re.sub(r"\{[^}]*\}", "[^/]*", path) for path in app.openapi()["paths"]}
    assert len(paths) > 9
    assert [path for path in paths if not any(re.fullmatch(path, one.partition("?")[0]) for one in ROUTES)] == []


def test_the_key_goes_out_of_the_address_into_a_cookie_that_scripts_cannot_read(stranger):
    answer = stranger.get(f"/runs/first/rollouts?phase=gather&key={KEY}&sort=reward")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs/first/rollouts?phase=gather&sort=reward"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert stranger.get("/runs/first/rollouts?phase=gather").status_code == 200
    answer = stranger.get(f"{HOST}//elsewhere.example/?key={KEY}")
    assert answer.headers["location"].startswith("/elsewhere.example")


@pytest.mark.parametrize("host", ["elsewhere.example", f"elsewhere.example:{PORT}", "127.0.0.1:1", "127.0.0.1", ""])
def test_another_host_name_is_refused(client, host):
    assert client.get("/", headers={"host": host}).status_code == 421


def test_a_post_must_come_from_the_viewers_own_pages(client):
    for headers in ({}, {"origin": "null"}, {"origin": "http://elsewhere.example"}, {"origin": "http://127.0.0.1:1"}):
        assert client.post("/seat/x", data={"action": "approve"}, headers=headers).status_code == 403
    assert client.post("/seat/x", data={"action": "approve"}, headers={"origin": HOST}).status_code == 404
    assert client.request("DELETE", "/").status_code == 405


def test_pages_allow_nothing_from_elsewhere_and_nothing_inline(client):
    for route in ROUTES:
        if "events" in route:
            continue
        headers = client.get(route).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        if "report" not in route:
            assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    report = client.get("/runs/first/report/").headers["content-security-policy"]
    assert "sandbox" in report
    assert "allow-scripts" not in report
    assert "allow-forms" not in report
    assert "default-src 'none'" in report


def crawl(client):
    """Every page that can be reached by links, but of lists of rollouts only those that one or two links narrow.

    More of them would be a thousand pages.
    """
    found, waiting = {}, ["/"]
    while waiting:
        address = waiting.pop()
        if address in found or not address.startswith("/"):
            continue
        answer = client.get(address)
        found[address] = answer
        if answer.headers["content-type"].startswith("text/html") and not ("/rollouts?" in address and "&" in address):
            waiting += [link.partition("#")[0] for link in Page(answer.text).links]
    return {address: answer for address, answer in found.items() if address}


def test_every_link_leads_to_a_page_and_no_text_becomes_markup(client):
    pages = crawl(client)
    assert {address: one.status_code for address, one in pages.items() if one.status_code != 200} == {
        address: 400 for address in pages if address in ("/compare", "/pair")
    }
    assert {"/runs/first", "/runs/second/rollouts", "/tasks?left=first%2Fgate-base&right=first%2Fgate-ppo"} <= set(
        pages
    )
    for address, answer in pages.items():
        if answer.headers["content-type"].startswith("text/html") and "/report/" not in address:
            page = Page(answer.text)
            names = {name for _, attributes in page.elements for name in attributes}
            assert {"img", "style", "iframe", "object"}.isdisjoint(page.tags), address
            assert answer.text.count("<script") == 1, address
            assert not [name for name in names if name.startswith("on") or name == "style"], address
            assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in page.links), address


def test_planted_text_stays_text(client):
    rollout = shown(client, "/runs/first/rollouts/ro-000000000002")
    assert Page(rollout).text.count(PLANTED) >= 2
    assert PLANTED not in rollout
    conversation = Page(shown(client, "/runs/first/rollouts/ro-000000000001")).text
    assert f"a question {PLANTED}" in conversation
    assert ODD_FOLDER in Page(shown(client, "/")).text
    assert "cannot name a run" in Page(shown(client, "/")).text
    assert PLANTED in Page(shown(client, "/runs/first/rollouts")).text
    searched = shown(client, "/?q=%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in searched
    missing = shown(client, "/runs/%3Cscript%3E", 404)
    assert "<script>'" not in missing


def test_a_number_leads_to_as_many_rollouts(client):
    page = shown(client, "/runs/first")
    for phase, count in (("gather", 3), ("gate-base", 1), ("gate-ppo", 2)):
        assert f'<a href="/runs/first/rollouts?phase={phase}">{count}</a>' in page
        listed = shown(client, f"/runs/first/rollouts?phase={phase}")
        assert len(set(re.findall(r"/runs/first/rollouts/(ro-\w+)", listed))) == count
    failed = re.search(r'<a href="([^"]+failure=any)">1</a>', page)
    assert failed
    assert "timed out after 17 s" in Page(shown(client, unescape(failed[1]))).text


def test_who_lost_an_answer_stands_in_the_list_in_its_filter_and_on_the_rollouts_page(client):
    listed = shown(client, "/runs/first/rollouts")
    rows = dict(re.findall(r'rollouts/(ro-\w+)">.*?</th>.*?\?lost=(\w+)', listed, re.DOTALL))
    assert '<option value="refiner">refiner (1)</option>' in listed
    assert '<option value="failed">failed (1)</option>' in listed
    assert "supervisor (" not in listed
    assert "refiner" in rows.values()
    chosen = shown(client, "/runs/first/rollouts?lost=refiner")
    assert set(re.findall(r"/runs/first/rollouts/(ro-\w+)", chosen)) == {"ro-000000000004"}
    text = Page(shown(client, "/runs/first/rollouts/ro-000000000004")).text
    assert "Lost by refiner: the selected answer was right, the refined one is not" in text
    for right_or_unknown in ("ro-000000000001", "ro-000000000002"):
        assert "Lost by" not in Page(shown(client, f"/runs/first/rollouts/{right_or_unknown}")).text


def test_a_point_of_a_curve_leads_to_its_rollouts(client):
    page = shown(client, "/runs/first")
    points = [unescape(link) for link in re.findall(r'<a href="([^"]+)"><circle', page)]
    assert any("first=1&last=3" in link for link in points)
    learned = [link for link in points if "update=ppo%2F1" in link]
    assert learned
    assert re.findall(r"/rollouts/(ro-\w+)", shown(client, learned[0])) == ["ro-000000000001"]


def test_the_gates_verdict_with_what_it_compared(client):
    text = " ".join(Page(shown(client, "/runs/first")).text.split())
    assert "0.500 → 0.625 +0.125 [−0.100, +0.300]" in text
    assert "refiner@ppo-1 rolled backreward fell" in text
    assert "Each new policy on validation tasks" in text
    assert "held out" not in text + Page(shown(client, "/")).text.replace("-", " ")
    rollout = Page(shown(client, "/runs/first/rollouts/ro-000000000001")).text
    assert "right answer" in rollout
    assert "alignment" not in rollout
    tasks = Page(shown(client, "/tasks?left=first/gate-base&right=first/gate-ppo")).text
    assert "mended" in tasks
    assert "0.500 → 0.750" in tasks


def test_the_tokens_that_an_update_learned_from(client):
    page = shown(client, "/runs/first/rollouts/ro-000000000001")
    tokens = re.findall(r'<span class="(up|down|level)[^"]*" title="advantage ([^,]+),', page)
    assert len(tokens) > 20
    assert set(tokens) == {("up", "+0.2500")}
    assert "evidence</span>" in page
    assert "50.00% of its gradient" in page or "of the update" in page


def test_two_rollouts_and_two_runs_side_by_side(client):
    pair = Page(shown(client, "/pair?run=first&rollout=ro-000000000001&rollout=ro-000000000004"))
    assert {"del", "ins"} <= set(pair.tags)
    runs = " ".join(Page(shown(client, "/compare?run=first&run=second")).text.split())
    assert "gather3, 2" in runs
    assert "settingfirstsecond seed07" in runs
    for address, reason in (
        ("/compare?run=first", "1 runs are chosen"), ("/pair?run=first", "0 rollouts are chosen"),
        ("/tasks?left=first/gather&right=second/gather&change=x", "change='x' is none of"),
        ("/runs/first/rollouts?low=much", "low='much' is not a number"),
        ("/runs/first/rollouts?update=../../x/1", "cannot name a run or a phase"),
        ("/runs/first/rollouts?update=ppo/9", "no recorded update"),
        ("/runs/first/rollouts?sort=beauty", "cannot be sorted by"),
    ):  # fmt: skip
        assert reason in unescape(client.get(address).text), address
        assert client.get(address).status_code in (400, 404)


def test_a_run_that_is_evaluated_is_not_called_running(tmp_path):
    make_runs(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom chimera.run.directory import Run\nfolder = Path(sys.argv[1])\n"
        "with Run(folder / 'first').own(), Run(folder / 'second').own(evaluates=True):\n"
        "    print('owned', flush=True)\n    input()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer,
        viewer(tmp_path) as client,
    ):
        assert writer.stdout is not None
        assert writer.stdout.readline() == "owned\n"
        rows = dict(re.findall(r'<th scope="row"><a href="/runs/(\w+)"(.*?)</tr>', shown(client, "/"), re.DOTALL))
        pages = {name: Page(shown(client, f"/runs/{name}")).text for name in ("first", "second")}
        for name in pages:
            with refused(RunError, f"'{name}'", f"process {writer.pid}: wait"):
                Run(tmp_path / name).own()
        writer.communicate("")
    for name, word, other in (("first", "running", "evaluating"), ("second", "evaluating", "running")):
        for text in (rows[name], pages[name]):
            assert word in text
            assert other not in text


def test_runs_are_found_by_name_and_by_setting(client):
    def listed(query):
        return set(re.findall(r'href="/runs/(\w+)"', shown(client, f"/?q={query}")))

    assert listed("") == {"first", "second"}
    assert listed("SEC") == {"second"}
    assert listed("seed=7") == {"second"}
    assert listed("nothing-has-this") == set()


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..%2Fsecret", "/runs/first%2F..%2F..", "/runs/first/report/../config.yaml",
        "/runs/first/report/..%2Fconfig.yaml", "/runs/first/report/%2Fetc%2Fpasswd", "/static/..%2Fbase.html.j2",
        "/runs/first/rollouts/..%2F..%2Fconfig.yaml", "/seat/..", "/seat/..%2Ffirst", "/events?run=removed",
        "/runs/first/report/%00", f"/runs/first/report/{'a' * 5000}",
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(client, path):
    answer = client.get(path)
    assert answer.status_code in (404, 400, 200)
    assert "runs_dir" not in answer.text
    assert "root:" not in answer.text


def test_a_trace_or_a_report_outside_the_run_is_not_read(tmp_path):
    runs = make_runs(tmp_path / "runs")
    outside = tmp_path / "secret.html"
    outside.write_text("secret words")
    (runs / "first" / "report" / "linked.html").symlink_to(outside)
    file = runs / "first" / "rollouts" / "gather.jsonl"
    file.write_text(file.read_text().replace("traces/gather/a.jsonl.gz", "../../secret.html"))
    (runs / "first" / "rollouts" / "linked.jsonl").symlink_to(outside)
    with viewer(runs) as client:
        assert client.get("/runs/first/report/linked.html").status_code == 404
        answer = client.get("/runs/first/rollouts/ro-000000000001")
        assert answer.status_code == 404
        assert "outside its run" in answer.text
        assert "secret words" not in answer.text + client.get("/runs/first").text


def test_a_long_list_of_runs_has_pages_and_names_folders_of_runs(tmp_path):
    run = Run.create("run-0", Config(runs_dir=tmp_path))
    run.close()
    for number in range(1, 33):
        copy = shutil.copytree(run.path, tmp_path / f"run-{number}")
        environment = {**run.environment, "created": f"2099-01-01T00:00:{number:02}+00:00"}
        (copy / "environment.json").write_text(json.dumps(environment))
    Run.create("inner", Config(runs_dir=tmp_path / "study")).close()
    with viewer(tmp_path) as client:
        first = shown(client, "/")
        older = re.search(r'rel="next" href="([^"]+)"', first)
        pages = [first, shown(client, unescape(older[1]))]
        names = [re.findall(r'<th scope="row"><a href="/runs/(run-\d+)"', page) for page in pages]
        assert [len(one) for one in names] == [30, 3]
        assert names[0][0] == "run-32"
        assert f"study holds 1 run of its own: python -m chimera view --runs-dir {tmp_path}/study" in Page(first).text


def test_pages_of_the_list(tmp_path):
    with Run.create("many", Config(runs_dir=tmp_path)) as run:
        for number in range(250):
            run.append_rollout(rollout(number, "gather", f"t-{number}", reward=number / 10).dump(), phase="gather")
    with viewer(tmp_path) as client:
        address, seen = "/runs/many/rollouts?sort=-reward", []
        while address:
            page = shown(client, address)
            seen += re.findall(r'<a href="/runs/many/rollouts/(ro-\w+)"', page)
            following = re.search(r'rel="next" href="([^"]+)"', page)
            address = unescape(following[1]) if following else None
        assert seen == [f"ro-{number:012x}" for number in reversed(range(250))]


def test_files_of_another_version_are_told_and_other_pages_stay(tmp_path):
    runs = make_runs(tmp_path)
    (runs / "first" / "gate" / "ppo.json").write_text('{"comparisons": [{"reward": 7}]}')
    with viewer(runs, raise_server_exceptions=False) as client:
        answer = client.get("/runs/first")
        assert answer.status_code == 500
        assert "hold something that this version of Chimera does not expect" in answer.text
        assert answer.headers["content-security-policy"] == POLICY
        assert client.get("/runs/second").status_code == 200
        assert client.get("/runs/first/rollouts").status_code == 200
