"""Works and entries that an answer cites: each must stand in what the role has read, and not be taken back."""

import json
import re
from collections.abc import Iterable

from agents.schemas import Answer
from agents.visit.prompting import Message, read_payload

_IDS = re.compile(r"\bPMID:? ?\d{4,9}\b|\bNCT\d{8}\b|\bGO:\d{7}\b|\b10\.\d{4,9}/[\w./()-]{1,80}")


def fault(answer: Answer, messages: Iterable[Message]) -> str | None:
    """What is wrong with the works that an answer cites, as one sentence for the repair request; None if nothing is.

    Args:
        messages: The visit's messages. A work that only a tool's note names is no evidence, such as a retracted one.
    """
    cited = {_number(cited_id): cited_id.rstrip(".)") for cited_id in _IDS.findall(answer.model_dump_json())}
    if not cited:
        return None
    read, notes = "", ""
    for message in messages:
        payload = dict(read_payload(message))
        notes += str(payload.pop("note", ""))
        read += json.dumps(payload, ensure_ascii=False)
    for number, shown in cited.items():
        entry = re.compile(rf"(?<!\d){re.escape(number)}(?!\w)")
        if not entry.search(read):
            only_noted = entry.search(notes)
            named = "is no evidence, as the tool said" if only_noted else "stands in nothing that you have read"
            return f"citations: {shown} {named}: leave it out, or cite what you have read"
    return None


def _number(cited_id: str) -> str:
    """What a passage must hold: PMIDs stand there as bare numbers."""
    return re.sub(r"^PMID:? ?", "", cited_id).rstrip(".)")
