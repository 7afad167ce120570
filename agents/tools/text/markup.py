"""Extracts text from the answers of live services: HTML fragments, entities and XML elements."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html import unescape
from xml.parsers import expat

_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>a|abbr|article|b|blockquote|body|br|button|code|div|em|figcaption|figure|footer|form"
    r"|h[1-6]|head|header|hr|html|i|iframe|img|input|label|li|link|main|meta|nav|ol|option|p|pre|script|section|select"
    r"|small|span|strong|style|sub|sup|svg|table|tbody|td|tfoot|th|thead|title|tr|u|ul)(?:\s[^<>]{0,500})?/?>"
    r"|<!(?:--|doctype)[^>]{0,500}>",
    re.IGNORECASE,
)
_HIDDEN = frozenset(("script", "style"))
_INSIDE_WORDS = frozenset(("a", "abbr", "b", "em", "i", "small", "span", "strong", "sub", "sup", "u"))

_OPENED = {"sup": "\ue000", "sub": "\ue001"}
"""Marks of private use before text that is raised or lowered."""
_MARKS = {
    "\ue000": (re.compile(r"(?<=[\w)\]])\ue000\s*(?=\(?[+\-\u2013\u2212]?\s*\d|[a-z]\b)"), "^"),
    "\ue001": (re.compile(r"(?<=\d)\ue001\s*(?=\d)"), "_"),
}
_FORMULAS = {"msup": "^", "msub": "_"}


def text_of(html: str) -> str:
    """Plain text of an HTML fragment, with single spaces. Text such as 'p < 0.05' is not taken for a tag."""
    parts: list[str] = []
    hidden, position = "", 0
    for tag in _TAG.finditer(html):
        name = (tag["name"] or "").lower()
        if not hidden:
            parts.append(html[position : tag.start()])
            mark = "" if tag["close"] else _OPENED.get(name, "")
            parts.append(mark if name in _INSIDE_WORDS else " ")
            hidden = name if name in _HIDDEN and not tag["close"] else ""
        elif tag["close"] and name == hidden:
            hidden = ""
        position = tag.end()
    if not hidden:
        parts.append(html[position:])
    return _levelled(unescape("".join(parts)))


def parse_xml(document: bytes) -> ElementTree.Element:
    """Return the root element; raises ValueError for malformed documents and for documents that declare entities.

    Entity declarations are refused: a few hundred bytes of nested entities expand to gigabytes ("billion laughs"), and
    external entities read files. The services used here never send any. ElementTree's parser has no hook to refuse
    them, so expat drives its tree builder here.
    """
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(document, True)
        return builder.close()
    except (expat.ExpatError, AssertionError) as error:
        raise ValueError(str(error)) from error


def element_text(element: ElementTree.Element | None) -> str:
    """All text in `element` and its descendants, with single spaces; '' for None."""
    return "" if element is None else _levelled("".join(_texts(element)))


def _texts(element: ElementTree.Element) -> Iterator[str]:
    """The texts in `element`, with a mark before what is raised or lowered in HTML or MathML."""
    kind = element.tag.rpartition(":")[2]
    if kind in _FORMULAS:
        yield _FORMULAS[kind].join("".join(_texts(part)).strip() for part in element)
        return
    yield _OPENED.get(kind, "")
    yield element.text or ""
    for child in element:
        yield from _texts(child)
        yield child.tail or ""


def _levelled(text: str) -> str:
    """`text` with single spaces, and its raised and lowered parts in line: 10^6, cm^-1 and Ca^2+, but CD4+ and H2O.

    A mark is written where the text would be another number or unit without it.
    """
    for mark, (pattern, written) in _MARKS.items():
        text = pattern.sub(written, text).replace(mark, "")
    return " ".join(text.split())


def _refuse_entity(name: str, *_: object) -> None:
    raise ValueError(f"the XML declares an entity ({name[:40]!r}), which is refused")
