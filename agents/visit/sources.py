"""The passages that a society has seen; its claims must be based on them."""

from collections.abc import Mapping, Sequence

from agents.tools.text.excerpts import excerpt
from agents.visit.prompting import Message
from agents.visit.quoting import passage_text, passages_in
from chimera.core.quotes import occurs
from chimera.core.types import Brief, abstract_text

SourceText = dict[str, str]
"""One passage in a prompt: {"id", "text"}."""


def given_sources(brief: Brief) -> list[SourceText] | None:
    """The brief's abstract as the only source of a prompt; None if the brief has no abstract."""
    return [{"id": brief.id, "text": abstract_text(brief.context)}] if brief.context else None


def sources_seen(messages: Mapping[str, Sequence[Message]]) -> list[SourceText]:
    """Every passage in the roles' prompts and tool results, without duplicates, in the order of roles and messages.

    An id may occur with several texts: tools shorten long passages to what matches the query, and a quote may be in any
    of them.
    """
    passages = (passage for channel in messages.values() for message in channel for passage in passages_in(message))
    sources = dict.fromkeys((item["id"], passage_text(item)) for item in passages)
    return [{"id": id, "text": text} for id, text in sources]


def sources_within(sources: Sequence[SourceText], quotes: Sequence[str], max_chars: int) -> list[SourceText]:
    """The `sources` that fit into `max_chars` characters: first those that hold one of `quotes`, then the others.

    The first source is always included; if it is too long, it is shortened to sentences about the quotes.
    """
    ordered = sorted(sources, key=lambda source: not any(occurs(quote, [source["text"]]) for quote in quotes))
    chosen_sources: list[SourceText] = []
    left = max_chars
    for source in ordered:
        if len(source["text"]) <= left:
            chosen_sources.append(source)
            left -= len(source["text"])
        elif not chosen_sources:
            text = excerpt(source["text"], " ".join(quotes), max_chars)
            chosen_sources.append({**source, "text": text})
            left -= len(text)
    return chosen_sources
