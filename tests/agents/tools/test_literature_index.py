"""The literature index: what a query finds, in which order, from threads and forked processes."""

import json
import multiprocessing
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.tools.literature import LiteratureIndex
from agents.tools.text.excerpts import excerpt, split_sentences
from agents.tools.text.fulltext import Database
from agents.tools.text.passages import Passage, clean
from agents.tools.toolbox import build_toolbox
from chimera.config.sections.tools import ToolsConfig
from chimera.core.types import Brief

PUBMEDQA = Path(__file__).parents[4] / "shared" / "pubmedqa" / "ori_pqal.json"
DOCUMENTS = (
    Passage("101", "", "Adults with a cold were randomised to zinc. Colds were shorter with zinc (p=0.002)."),
    Passage("102", "", "A cohort of nurses was followed. Night shifts went with higher body mass index (p=0.01)."),
)
INDEX = LiteratureIndex(DOCUMENTS)


@given(query=st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_query_text_is_safe(query):
    found = INDEX.search(query, 3)
    assert len(found) <= 3
    assert {passage.id for passage in found} <= {"101", "102"}


@pytest.mark.parametrize(
    "query",
    [
        'zinc" OR "',
        "zinc NOT placebo",
        "NEAR(zinc cold)",
        "body:zinc",
        "zinc*",
        "-zinc",
        "^zinc",
        "zinc AND",
        "(zinc",
        "zinc\x00",
    ],
)
def test_operators_are_only_words(query):
    assert INDEX.search(query, 1)[0].id == "101"


@pytest.mark.parametrize("query", ["", "   ", '""', "?!;", "\ud800", "was the of"])
def test_queries_without_words_find_nothing_and_only_stop_words_are_words(query):
    assert bool(INDEX.search(query, 5)) == ("the" in query)
    assert LiteratureIndex([]).search(query, 3) == []


@pytest.mark.parametrize("query", ["uberlebende", "U\u0308berlebende", "treating a patient", "\u0130nsülin"])
async def test_words_match_in_other_forms_without_accents_and_at_the_end_of_a_long_text(query):
    long = Passage("1", "", f"{'Überlebende patients were treated. ' * 1000}\u0130nsülin helped.")
    toolbox = build_toolbox(ToolsConfig(max_chars=100_000, results=5), [long, DOCUMENTS[1]], {})
    result = await toolbox.call("literature_search", {"query": query}, brief=Brief("1", "Does it?", ()))
    assert [(passage.id, passage.text) for passage in result.passages] == [("1", long.text)]


UNSPACED = (
    Passage("zh", "", "目的：观察锌的疗效。方法：将90例患者随机分为两组。结果：锌组复发率为12.5%，低于对照组。"),
    Passage("ja", "", "成人の風邪患者に亜鉛を投与した。罹病期間は２日短縮した。プラセボ群では差がなかった。"),
    Passage("th", "", "ผู้ป่วยที่ได้รับสังกะสีมีอาการน้อยลง"),
    Passage("en", "", "METHODS: A cohort of nurses was followed with COVID感染 as outcome."),
)


@pytest.mark.parametrize(
    ("query", "id_"),
    [
        ("复发率", "zh"),
        ("锌", "zh"),
        ("锌能降低复发率吗？", "zh"),
        ("罹病期間", "ja"),
        ("プラセボ", "ja"),
        ("亜鉛は風邪に効くか", "ja"),
        ("สังกะสี", "th"),
        ("感染", "en"),
        ("covid nurses", "en"),
    ],
)
def test_words_without_spaces_between_them_are_found(query, id_):
    assert [passage.id for passage in LiteratureIndex(UNSPACED).search(query, 1)] == [id_]


def test_chinese_and_japanese_trials_are_trials():
    index = LiteratureIndex(UNSPACED)
    assert {passage.id for passage in index.search("复发率 罹病期間 covid", 4, trials=True)} == {"zh", "ja"}


def test_an_excerpt_of_a_chinese_abstract_keeps_the_sentence_about_the_question():
    text = UNSPACED[0].text
    assert excerpt(text, "锌的复发率", 30) == "结果：锌组复发率为12.5%，低于对照组。"
    assert [sentence.text for sentence in split_sentences(text)][1] == "方法：将90例患者随机分为两组。"


def test_equal_ranks_keep_the_order_of_the_documents():
    same = [Passage(str(n), "", "zinc helps") for n in (5, 3, 9, 1)]
    assert [passage.id for passage in LiteratureIndex(same).search("zinc", 4)] == ["5", "3", "9", "1"]


def test_threads_share_one_index():
    answers: dict[int, list[str]] = {}

    def work(number: int) -> None:
        answers[number] = [INDEX.search("zinc", 1)[0].id for _ in range(20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: ["101"] * 20 for number in range(6)}


def in_fork(work):
    """What `work` returns in a forked process, and that process's id."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send((work(), os.getpid())))
    child.start()
    assert receiver.poll(30)
    child.join()
    return receiver.recv()


def test_a_forked_process_searches_the_index_of_its_parent():
    INDEX.search("zinc", 1)
    ids, _ = in_fork(lambda: [passage.id for passage in INDEX.search("nurses", 3)])
    assert ids == ["102"]
    assert [passage.id for passage in INDEX.search("zinc", 1)] == ["101"]


def test_a_forked_process_opens_its_own_connection():
    opened = []

    def opener() -> sqlite3.Connection:
        opened.append(os.getpid())
        return sqlite3.connect(":memory:")

    database = Database(opener)
    database.query("SELECT 1")
    database.query("SELECT 1")
    (rows, opened_there), pid = in_fork(lambda: (database.query("SELECT 2"), opened))
    assert (rows, opened_there) == ([(2,)], [os.getpid(), pid])
    assert opened == [os.getpid()]


def test_real_questions_find_their_own_abstract():
    if not PUBMEDQA.exists():
        pytest.skip("the PubMedQA file is not at hand (../shared/pubmedqa/ori_pqal.json)")
    records = json.loads(PUBMEDQA.read_text())
    documents = [
        Passage(
            id_,
            record["QUESTION"],
            " ".join(f"{label}: {text}" for label, text in zip(record["LABELS"], record["CONTEXTS"], strict=True)),
        )
        for id_, record in records.items()
    ]
    index = LiteratureIndex(documents)
    found = {document.id: [passage.id for passage in index.search(document.title, 5)] for document in documents}
    first = sum(ranked[:1] == [id_] for id_, ranked in found.items()) / len(found)
    five = sum(id_ in ranked for id_, ranked in found.items()) / len(found)
    print(f"recall@1 {first:.1%}, recall@5 {five:.1%} on {len(found)} abstracts")
    assert first >= 0.93
    assert five >= 0.97
    assert all(clean(document.text) == document.text for document in documents)
