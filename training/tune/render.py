"""Renders conversations as token ids, and marks the learned tokens: those that the assistant wrote.

It uses the server's renderer (`chimera.serving.embedded.chat`), so prompts in training and in use are equal, token for
token.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import RunError
from chimera.serving.embedded.chat import ChatFormat
from chimera.serving.embedded.checkpoint import load_language
from chimera.serving.embedded.protocol import BadRequest, ChatMessage, OfferedTool
from training.learning.examples import Row
from training.learning.experience import Conversation


class Renderer:
    """Renders conversations for one model.

    Args:
        folder: The model; only its tokenizer, chat template and end tokens are read.
        max_tool_calls: After this number of tool calls a role is offered no more tools (`society.max_tool_calls`).

    Raises:
        ConfigError: A file of the model is missing or broken.
    """

    def __init__(self, folder: Path, max_tool_calls: int) -> None:
        language = load_language(folder)
        self._folder = folder
        self._format = ChatFormat(language.template, language.tokenizer, language.marks)
        self._eos = frozenset(language.eos)
        self._max_tool_calls = max_tool_calls

    def rows(self, conversation: Conversation) -> tuple[Row, ...]:
        """The conversation's assistant turns, end tokens included, each after the prompt that asked for it.

        Two turns share a row if the prompt of the second begins with all tokens of the first. This is not so if tools
        were offered only to the first, or if the chat template drops parts of earlier turns.

        Raises:
            RunError: The chat template cannot render the conversation, or ends no turn.
        """
        messages = [ChatMessage.model_validate(message) for message in conversation.messages]
        tools = [OfferedTool.model_validate(tool).model_dump(exclude_none=True) for tool in conversation.tools or ()]
        rows: list[Row] = []
        ids: list[int] = []
        learned: list[bool] = []
        used = 0
        for position, message in enumerate(messages):
            if message.role != "assistant":
                continue
            offered = tools if used < self._max_tool_calls else []
            prompt, answer = self._turn(messages[: position + 1], offered)
            if prompt[: len(ids)] != ids:
                rows.append(Row(tuple(ids), tuple(learned)))
                ids, learned = [], []
            learned += [False] * (len(prompt) - len(ids)) + [True] * len(answer)
            ids = [*prompt, *answer]
            used += len(message.tool_calls or ())
        return (*rows, Row(tuple(ids), tuple(learned)))

    def _turn(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> tuple[list[int], list[int]]:
        """Prompt and answer. The answer includes its last end token."""
        try:
            prompt, answer = self._format.encode_turn(messages, tools)
        except BadRequest as error:
            raise RunError(f"the chat template in {self._folder} cannot be trained with: {error.message}") from error
        ends = [position for position, token in enumerate(answer) if token in self._eos]
        if not ends:
            raise RunError(
                f"the chat template in {self._folder} closes the assistant's turn with none of the model's end tokens "
                f"{sorted(self._eos)}, so it would not learn to stop: name the token in generation_config.json's "
                "eos_token_id"
            )
        return prompt, answer[: ends[-1] + 1]
