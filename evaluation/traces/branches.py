"""Further answers to the prompts of one rollout, which phases drew to learn from, with what they were worth."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from chimera.core.errors import RunError
from chimera.core.files import parse_json
from evaluation.traces.token_records import TokenRecord, read_tokens, token_files


@dataclass(frozen=True, slots=True)
class Branch:
    """One further answer to a call's prompt.

    Attributes:
        text: What they said; a request for tools has no text.
        update: The update that learned from it; None if none did, because all answers were worth the same, or because
            the phase learns otherwise.
        advantage: How much better than the others of its group, in the estimator's units; the mean over its tokens.
        tokens: What the update learned from its tokens; None if none did.
        ids: The ids of its tokens; None if the server gave none.
    """

    phase: str
    weights: str | None
    text: str | None
    update: int | None
    worth: float | None
    advantage: float | None
    tokens: TokenRecord | None = None
    ids: tuple[int, ...] | None = None


def branches_of(run: Path, rollout_id: str) -> dict[str, list[Branch]]:
    """The branches of a rollout's calls, in the order in which they were drawn, by the id of the call's response.

    Args:
        run: The run's folder.

    Raises:
        RunError: A file is broken.
    """
    by_response: defaultdict[str, list[Branch]] = defaultdict(list)
    for file in sorted(run.glob("phases/*/calls.jsonl")):
        learned: dict[str, tuple[int, TokenRecord]] | None = None
        for line in _about(file, rollout_id):
            if line["kind"] != "branch" or line["request"]["rollout_id"] != rollout_id:
                continue
            learned = _learned(run, file.parent.name, rollout_id) if learned is None else learned
            response = line["response"]
            for place, choice in enumerate(response["choices"]):
                name = f"{response.get('id') or 'branch'}/{choice.get('index', place)}"
                branch = _branch(file.parent.name, response, choice, learned.get(name))
                by_response[line["request"]["response_id"]].append(branch)
    return dict(by_response)


def _about(file: Path, rollout_id: str) -> list[dict[str, Any]]:
    """The lines of a file that mention a rollout; the others are not worth parsing."""
    try:
        with file.open(encoding="utf-8") as lines:
            return [parse_json(line) for line in lines if rollout_id in line and line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise RunError(f"the calls {file} cannot be read: {error}") from error


def _learned(run: Path, phase: str, rollout_id: str) -> dict[str, tuple[int, TokenRecord]]:
    """The token records of a phase's updates about a rollout, by response."""
    return {
        record.response_id: (step, record)
        for step, file in token_files(run, phase)
        for record in read_tokens(file, rollout_id)
    }


def _branch(
    phase: str, response: Mapping[str, Any], choice: Mapping[str, Any], learned: tuple[int, TokenRecord] | None
) -> Branch:
    step, record = learned or (None, None)
    return Branch(
        phase=phase,
        weights=response.get("weights_version"),
        text=choice["message"].get("content"),
        update=step,
        worth=None if record is None else record.reward,
        advantage=None if record is None else fmean(record.advantages),
        tokens=record,
        ids=tuple(choice["token_ids"]) if choice.get("token_ids") else None,
    )
