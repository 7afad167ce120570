"""What a role may quote: only sentences that it has read, so its evidence is verbatim.

`society.quotes` has three modes. `read`: the response format lists these sentences as an enum, so a server that honours
JSON schemas can only copy one of them. `numbered`: prompts hold numbered sentences and the enum lists the numbers, for
long texts and for servers that limit enums; numbers in the answer are then replaced by the sentences. `free`: the role
writes its quotes itself. If a server ignores the schema, `fault` describes the error and the role is asked once more.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from langchain_core.utils.json_schema import dereference_refs

from agents.findings import MOST_FINDINGS, Findings
from agents.roles import Role
from agents.schemas import MAX_QUOTE, Answer, Hypothesis
from agents.tools.text.excerpts import GAP, PARAGRAPH, cut, split_sentences
from agents.visit.prompting import Message, read_payload, response_format, schema_format, schema_in
from chimera.config.sections.society import Quotes
from chimera.core.quotes import MIN_QUOTE_WORDS, missing_quotes
from chimera.core.unspaced import count_words

MAX_ENUM = 250
"""Longer lists of sentences are left out: OpenAI's structured outputs limit long enums. `numbered` needs less space."""
_SHOWN = 80
_WORD = re.compile(r"[^\W\d_][\w-]{2,}")


def texts_read(messages: Iterable[Message]) -> list[str]:
    """The passages in a visit's messages, without duplicates, in order.

    If a message holds a hypothesis but no passages, the role has read the hypothesis's evidence instead.
    """
    texts: list[str] = []
    for message in messages:
        passages = passages_in(message)
        texts += [passage_text(passage) for passage in passages]
        payload = read_payload(message)
        for hypothesis in () if passages else (payload.get("hypothesis"), *(payload.get("hypotheses") or ())):
            texts += hypothesis["evidence"] if isinstance(hypothesis, dict) else ()
    return list(dict.fromkeys(texts))


def passages_in(message: Message) -> list[dict[str, Any]]:
    """The passages that one message brings, as its JSON has them."""
    payload = read_payload(message)
    return [*(payload.get("sources") or ()), *(payload.get("results") or ())]


def passage_text(passage: Mapping[str, Any]) -> str:
    """The text of a passage in a prompt: {"id", "text"}, or {"id", "sentences": {number: sentence}}."""
    return passage["text"] if "text" in passage else PARAGRAPH.join(passage["sentences"].values())


def sentences(texts: Iterable[str]) -> list[str]:
    """Every sentence that can be quoted, without duplicates, in the order of `texts`.

    Headings do not count as sentences. Fragments that are too short to be evidence are left out. Sentences longer than
    `MAX_QUOTE` are cut between words.
    """
    parts = (sentence.text.replace(GAP, "").strip() for text in texts for sentence in split_sentences(text))
    cuts = (cut(part, MAX_QUOTE) for part in parts if count_words(part) >= MIN_QUOTE_WORDS)
    return list(dict.fromkeys(cuts))


def numbered(passages: Sequence[Mapping[str, str]], before: Iterable[Message] = ()) -> list[dict[str, Any]]:
    """Passages with numbered sentences; the numbers continue after those in the messages `before`."""
    following = map(str, count(len(numbers(before)) + 1))
    return [
        {"id": passage["id"], "sentences": {next(following): text for text in sentences([passage["text"]])}}
        for passage in passages
    ]


def quotable(sources: Sequence[Mapping[str, str]] | None, mode: Quotes) -> Sequence[Mapping[str, Any]] | None:
    """Passages in the form of a role's opening message: with numbered sentences if roles quote by number."""
    return numbered(sources) if sources and mode == "numbered" else sources


def numbers(messages: Iterable[Message]) -> dict[str, str]:
    """The numbered sentences in a visit's messages."""
    passages = (passage for message in messages for passage in passages_in(message))
    return {number: text for passage in passages for number, text in passage.get("sentences", {}).items()}


def answer_format(role: Role, messages: Sequence[Message], mode: Quotes) -> dict[str, Any]:
    """The response format of `role` after `messages`: evidence may hold only sentences that it has read.

    Its answer is one of the options in the messages, or yes, no or maybe.
    """
    form, schema = response_format(role, messages), schema_in(role, messages)
    if schema is Findings:
        return _of_each_study(form, messages, mode)
    if not issubclass(schema, Hypothesis):
        return form
    evidence = form["json_schema"]["schema"]["properties"]["evidence"]
    if mode == "free":
        evidence["minItems"] = 1
        return form
    texts = texts_read(messages)
    allowed = list(numbers(messages)) if mode == "numbered" and numbers(messages) else sentences(texts)
    if not allowed:
        evidence["maxItems"] = 0
    elif len(allowed) <= MAX_ENUM:
        evidence |= {"minItems": 1, "items": {"type": "string", "enum": allowed}}
    return form


def _of_each_study(form: dict[str, Any], messages: Sequence[Message], mode: Quotes) -> dict[str, Any]:
    """The form of findings: one of each passage that has been read, in order, with a quote of this passage.

    What to search for next is a word of these passages, because small models misspell names.
    """
    schema, passages = dereference_refs(form["json_schema"]["schema"]), passages_read(messages)[:MOST_FINDINGS]
    finding = schema["properties"]["findings"]["items"]
    of_each: list[dict[str, Any]] = []
    for passage in passages:
        of_passage = {"study": {"const": passage["id"]}}
        allowed = list(passage.get("sentences") or sentences([passage_text(passage)]))
        if allowed and mode != "free":
            of_passage["quote"] = {"type": "string", "enum": allowed}
        of_each.append({**finding, "properties": {**finding["properties"], **of_passage}})
    limits = dict.fromkeys(("minItems", "maxItems"), len(of_each))
    schema["properties"]["findings"] = {"type": "array", "prefixItems": of_each, "items": False, **limits}
    words = dict.fromkeys(word for passage in passages for word in _WORD.findall(passage_text(passage)))
    if mode != "free" and len(words) < MAX_ENUM:
        schema["properties"]["search"] = {"type": "string", "enum": ["", *words]}
    del schema["$defs"]
    return schema_format(schema["title"], schema)


def passages_read(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The passages in a visit's messages, in order: of each id the first."""
    by_id: dict[str, dict[str, Any]] = {}
    for message in messages:
        for passage in passages_in(message):
            by_id.setdefault(passage["id"], passage)
    return list(by_id.values())


def resolved(answer: Answer, messages: Iterable[Message]) -> Answer:
    """The answer with its sentence numbers replaced by the sentences."""
    if not isinstance(answer, Hypothesis | Findings) or not (sentences_by_number := numbers(messages)):
        return answer
    if isinstance(answer, Findings):
        return answer.with_quotes(sentences_by_number)
    return answer.model_copy(update={"evidence": [sentences_by_number.get(quote, quote) for quote in answer.evidence]})


def fault(answer: Answer, messages: Iterable[Message], mode: Quotes) -> str | None:
    """What is wrong with an answer's quotes, as one sentence for the repair request; None if nothing is wrong."""
    texts = texts_read(messages)
    if isinstance(answer, Findings):
        read = {passage["id"] for passage in passages_read(messages)[:MOST_FINDINGS]}
        if missing := read - {finding.study for finding in answer.findings}:
            return f"findings: there is none of {min(missing)}: give one of each study that you have read"
    elif not isinstance(answer, Hypothesis):
        return None
    if mode == "free":
        return None if answer.quotes or isinstance(answer, Findings) else "evidence: quote at least one sentence"
    if not answer.quotes:
        return "evidence: quote at least one sentence that you have read" if sentences(texts) else None
    if false := missing_quotes(answer.quotes, texts):
        shown = false[0] if len(false[0]) <= _SHOWN else f"{false[0][:_SHOWN]}..."
        return f"evidence: {shown!r} stands in no passage that you have read: copy a sentence of it word for word"
    return None
