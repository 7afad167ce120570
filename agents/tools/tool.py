"""One tool as roles see it: any LangChain tool, with what models are told of it and how its arguments are checked."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, ValidationError

from agents.tools import json_schema
from agents.tools.text.passages import Passage, clean

Search = Callable[[str], Awaitable[Sequence[Passage]]]
"""The function of one of Chimera's own tools: takes a text, returns passages, best first; raises ToolError. Its name is
the tool's name, its docstring the tool's description."""
Find = Callable[[Mapping[str, Any]], Awaitable[Sequence[Passage]]]
"""Runs a tool with arguments that fit its schema; returns passages, best first; raises ToolError."""

FAULTS = 3
"""Most faults of one call's arguments that are named."""
_SHOWN = 80
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
    "null": "null",
}


class ArgumentError(ValueError):
    """A call's arguments do not fit the tool's schema; the message tells the model what is expected."""


class SearchTool(BaseTool):
    """One of Chimera's own tools, which any LangChain agent can use too: its artifact holds the passages."""

    search: Search
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"

    async def _arun(self, **arguments: Any) -> tuple[str, list[Passage]]:
        passages = list(await self.search(*arguments.values()))
        return "\n\n".join(passage.text for passage in passages), passages

    def _run(self, **arguments: Any) -> tuple[str, list[Passage]]:
        raise NotImplementedError(f"{self.name} searches asynchronously: call it with ainvoke")


@dataclass(frozen=True)
class Tool:
    """A LangChain tool that roles may call.

    Attributes:
        name: The name by which models know it.
        live: True if its answers may come from the open web, so that the article behind a question is removed.
    """

    name: str
    base: BaseTool
    find: Find
    live: bool

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments, for models. Unknown arguments are refused unless its own schema is open."""
        base = self.base
        if isinstance(base.args_schema, Mapping):
            base = base.model_copy(update={"args_schema": json_schema.in_plain_form(base.args_schema)[0]})
        function_parameters = convert_to_openai_tool(base)["function"].get("parameters", {})
        schema = {
            "type": "object",
            "properties": function_parameters.get("properties", {}),
            "required": function_parameters.get("required", []),
            "additionalProperties": function_parameters.get("additionalProperties", False),
        }
        return {**schema, "$defs": function_parameters["$defs"]} if "$defs" in function_parameters else schema

    @cached_property
    def _text(self) -> str:
        """Its OpenAI definition as text: pydantic is slow to make a schema, and text is immutable."""
        schema = self.base.args_schema
        rule = json_schema.in_plain_form(schema)[1] if isinstance(schema, Mapping) else ""
        description = " ".join(f"{self.base.description} {rule}".split())
        function = {"name": self.name, "description": description, "parameters": self.parameters}
        return json.dumps({"type": "function", "function": function})

    def spec(self) -> dict[str, Any]:
        """A new OpenAI tool definition of the tool."""
        return json.loads(self._text)

    @cached_property
    def schema_fault(self) -> str | None:
        """Why its arguments cannot be checked here; None if they can."""
        schema = self.base.args_schema
        return json_schema.schema_fault(schema, schema) if isinstance(schema, Mapping) else None

    def check(self, arguments: object) -> dict[str, Any]:
        """The arguments of a call, if they fit the tool's own schema.

        Raises:
            ArgumentError: They do not.
        """
        if not isinstance(arguments, Mapping):
            raise ArgumentError(f"{self._expected()}; the arguments were not a JSON object")
        call_arguments = dict(arguments)
        faults = self._unknown(call_arguments) or self._faults(call_arguments)
        if faults:
            raise ArgumentError(f"{self._expected()}; {'; '.join(faults[:FAULTS])}")
        return call_arguments

    def _unknown(self, arguments: Mapping[str, Any]) -> list[str]:
        """A fault for each argument that the tool does not know; LangChain would drop them without a word."""
        if self.parameters["additionalProperties"] is not False:
            return []
        unknown = [key for key in arguments if key not in self.parameters["properties"]]
        return [f"{short(key)}: extra inputs are not permitted" for key in unknown]

    def _faults(self, arguments: dict[str, Any]) -> list[str]:
        schema = self.base.args_schema
        if isinstance(schema, Mapping):
            places = json_schema.faults(schema, arguments)
            return [short(f"{place}: {fault}" if place else fault) for place, fault in places]
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            call_schema = self.base.tool_call_schema
            # LangChain fills injected arguments in; the smaller schema lacks them, but also the validators.
            injected = isinstance(call_schema, type) and len(call_schema.__annotations__) < len(schema.model_fields)
            return _faults_of_model(call_schema if injected else schema, arguments)  # pyright: ignore[reportArgumentType]
        return []  # LangChain checks tools whose schema is of pydantic 1.

    def _expected(self) -> str:
        required = self.parameters["required"]
        parameters = ", ".join(
            f'"{name}": {_words(schema)}{"" if name in required else " (may be left out)"}'
            for name, schema in self.parameters["properties"].items()
        )
        return f"{self.name} takes {{{parameters}}}"


def short(text: str, longest: int = _SHOWN) -> str:
    """`text` as one line of at most `longest` characters."""
    text = re.sub(r"\s+", " ", clean(text))
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _faults_of_model(schema: type[BaseModel], arguments: dict[str, Any]) -> list[str]:
    try:
        schema.model_validate(arguments)
    except ValidationError as error:
        return [
            f"{short('.'.join(map(str, fault['loc'])))}: {fault['msg'][:1].lower()}{fault['msg'][1:]}"
            for fault in error.errors(include_url=False, include_input=False)
        ]
    return []


def _words(schema: Any) -> str:
    """What one argument may be, in words."""
    if not isinstance(schema, Mapping):
        return "anything"
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_words(choice) for choice in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "string" and "maxLength" in schema:
        return f"text of {schema.get('minLength', 0)} to {schema['maxLength']} characters"
    return " or ".join(
        _TYPES.get(choice, choice) for choice in ([kind] if isinstance(kind, str) else kind or ["anything"])
    )
