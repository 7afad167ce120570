"""`python -m chimera planted`: an OpenAI-compatible server whose errors depend on what its prompts hold.

With it a search over prompts, lessons or examples is developed and tested in seconds: what would help is known. It
reads generated tasks by their rule, and gets most of them wrong until a prompt holds what prevents that: a system
prompt, lesson or skill with the word `plainly` (tasks whose answer is yes), `opposite` (no) or `chance` (maybe), or
examples with that answer. It also plays the model that writes lessons and instructions: a useful sentence is one of
several that it may write. The same request always gets the same answer.
"""

import argparse
import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chimera.core.cli import parse_arguments
from chimera.core.types import Brief, Label, Section
from chimera.data.generated import reader

if TYPE_CHECKING:
    from fastapi import FastAPI

HABITS: Mapping[Label, str] = {"yes": "plainly", "no": "opposite", "maybe": "chance"}
"""The word that prevents the errors of each kind of task."""
LUCK: Mapping[Label, float] = {"yes": 0.6, "no": 0.15, "maybe": 0.15}
"""How often a task of each kind comes out right without it."""
UNTAUGHT = 0.2
"""How often one example with a task's answer does not help."""
SENTENCES: Mapping[Label, str] = {
    "yes": "If the abstract says plainly what is asked, agree without hedging.",
    "no": "A result in the opposite direction of what is asked speaks against the goal.",
    "maybe": "Read the p value: a difference near the threshold may be due to chance.",
}
USELESS = (
    "Read the abstract twice before you write.",
    "Prefer large studies over small ones.",
    "Keep the claim to one short sentence.",
    "Mention the population in the claim.",
    "Look for the name of the drug first.",
    "State the units of every number.",
    "Do not rely on the title of the study.",
    "Write in the present tense.",
)
USEFUL_SHARE = 0.5
"""How often a sentence that would help is written, if a failure of its kind is shown."""


@dataclass(frozen=True, slots=True)
class Planted:
    """The model. `noise` is the share of answers that are wrong whatever a prompt holds."""

    seed: int = 0
    noise: float = 0.03

    def respond(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a chat completion.

        Raises:
            ValueError: The request holds no messages.
        """
        messages = request.get("messages") or ()
        if not messages:
            raise ValueError("messages must hold at least one message")
        form = (request.get("response_format") or {}).get("json_schema") or {}
        content = self._content(messages, form, str(request.get("seed")))
        read = sum(len(str(message.get("content") or "")) for message in messages) // 4
        written = max(1, len(content) // 4)
        return {
            "id": f"planted-{_hash(self.seed, json.dumps(request, sort_keys=True)).hex()[:16]}",
            "object": "chat.completion",
            "model": request.get("model"),
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"},
            ],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }

    def _content(self, messages: Sequence[Mapping[str, Any]], form: Mapping[str, Any], seed: str) -> str:
        if not form:
            return "The planted server answers only what has a JSON schema."
        payload, system = _payload(messages), str(messages[0].get("content") or "")
        values: dict[str, Any] = {}
        if form["name"] == "Hypothesis":
            values["answer"] = self._answer(payload, system, seed)
        elif form["name"] in ("Protocol", "FinalDecision"):
            answer = (payload.get("hypothesis") or {}).get("answer", "maybe")
            decision = {"yes": "GO", "no": "NO-GO"}.get(answer, "UNDECIDED")
            values |= {"expected": answer, "answer": answer, "decision": decision}
        elif form["name"] == "Selection":
            choice = form["schema"]["properties"]["choice"]
            names = [choice["const"]] if "const" in choice else choice["enum"]
            values["choice"] = self._pick(names, payload.get("goal"), seed)
        elif form["name"] == "Lessons":
            values["lessons"] = [self._sentence(payload, seed)]
        elif form["name"] == "Instructions":
            values["prompt"] = f"{payload.get('prompt', '')}\n{self._sentence(payload, seed)}".strip()
        return json.dumps(_filled(form["schema"], form["schema"], values), ensure_ascii=False)

    def _answer(self, payload: Mapping[str, Any], system: str, seed: str) -> Label:
        """The right answer to the payload's goal, or the wrong one that its prompt does not prevent."""
        if handed := payload.get("hypothesis"):  # The refiner keeps what it is handed.
            return str(handed["answer"])
        goal = str(payload.get("goal"))
        context = tuple(Section("", str(source.get("text", ""))) for source in payload.get("sources") or ())
        try:
            right = reader.answer(Brief("planted", goal, context))
        except ValueError:
            return "maybe"
        if self._share("noise", goal, system, seed) < self.noise:
            return "no" if right == "yes" else "yes"
        if self._knows(right, payload, system, goal):
            return right
        return "maybe" if right == "yes" else "yes"

    def _knows(self, right: Label, payload: Mapping[str, Any], system: str, goal: str) -> bool:
        """True if something in the prompt prevents the error of this kind of task, or luck does."""
        texts = f"{system} {json.dumps([payload.get('lessons'), payload.get('skills')])}".lower()
        if HABITS[right] in re.findall(r"\w+", texts):
            return True
        alike = sum(example.get("answer") == right for example in payload.get("examples") or ())
        return self._share("luck", goal) < LUCK[right] or self._share("examples", goal) >= UNTAUGHT**alike

    def _sentence(self, payload: Mapping[str, Any], seed: str) -> str:
        """A sentence that may prevent the failures in the payload."""
        failures = json.dumps(payload.get("failures"))
        kinds = {str(failure.get("right")) for failure in payload.get("failures") or ()}
        helpful = [SENTENCES[kind] for kind in HABITS if kind in kinds]
        if helpful and self._share("useful", failures, seed) < USEFUL_SHARE:
            return self._pick(helpful, failures, seed)
        return self._pick(USELESS, failures, seed)

    def _pick(self, options: Sequence[str], *about: object) -> str:
        return options[int(self._share("pick", *about) * len(options))]

    def _share(self, *about: object) -> float:
        """A number from 0 to 1 that depends on nothing else."""
        return int.from_bytes(_hash(self.seed, *about)[:7], "big") / 2**56


def _hash(*about: object) -> bytes:
    return hashlib.sha256("/".join(map(str, about)).encode(errors="backslashreplace")).digest()


def _payload(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON object of the first user message; empty if there is none."""
    first = next((message.get("content") for message in messages if message.get("role") == "user"), None)
    try:
        value = json.loads(str(first))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _filled(schema: Mapping[str, Any], root: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """A plain value of `schema`, with `values` for the properties of these names."""
    if "$ref" in schema:
        return _filled(root["$defs"][schema["$ref"].rpartition("/")[2]], root, values)
    if "enum" in schema or "const" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: values.get(name, _filled(part, root, {})) for name, part in properties.items()}
    if kind == "array":
        return [_filled(schema.get("items", {}), root, {})] * schema.get("minItems", 0)
    plain = {"integer": max(1, schema.get("minimum", 1)), "number": schema.get("minimum", 0), "boolean": False}
    return plain.get(str(kind), "as the evidence says")


def make_app(planted: Planted) -> "FastAPI":
    """The HTTP application; everything that it is sent gets an answer, whoever asks."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

    app = FastAPI(title="planted", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "planted", "object": "model"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> JSONResponse:
        try:
            body = await request.json()
            return JSONResponse(await asyncio.to_thread(planted.respond, body))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return JSONResponse({"error": {"message": f"{type(error).__name__}: {error}"}}, status_code=400)

    return app


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m chimera planted", description=__doc__)
    parser.add_argument(
        "--port", type=int, default=8100, metavar="N", help="the port (8100, as in configs/planted.yaml)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which answers are lucky, and what is written")
    arguments = parse_arguments(parser, argv)
    import uvicorn

    from chimera.core.machine import LOOPBACK, listen_at

    with listen_at(arguments.port) as listener:
        url = f"http://{LOOPBACK}:{listener.getsockname()[1]}/v1"
        print(f"{url} answers; python -m chimera.train --config configs/planted.yaml; Ctrl-C ends it", flush=True)
        config = uvicorn.Config(make_app(Planted(arguments.seed)), log_level="warning")
        with suppress(KeyboardInterrupt):  # It is how a server ends.
            uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
