"""Makes the batcher's jobs from a chat request, and the chat completion from their answers.

Fields of a completion beyond OpenAI's; all but the first must be requested:
- `weights_version` (and `system_fingerprint`, which proxies keep): the weights that produced the answer;
- `return_token_ids`: `prompt_token_ids`, and `token_ids` of each choice, as vLLM returns them;
- `logprobs`: OpenAI's fields hold raw log-probabilities (under the model, temperature 1, no mask). Each choice also
  has `sampled_logprobs`: under the distribution it was drawn from, after grammar mask, temperature and top-p.
"""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chimera.config.sections.models import ServingConfig
from chimera.serving.embedded.chat import parse_answer
from chimera.serving.embedded.decoding.batcher import DecodingJob, FinishedJob, TokenLogProbs, Vocabulary
from chimera.serving.embedded.dialogue.manners import CLOSE, OPEN
from chimera.serving.embedded.grammar import schema_grammar, tools_grammar
from chimera.serving.embedded.protocol import ChatRequest, NamedToolChoice, Sampling, envelope
from chimera.serving.embedded.trial import tried

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from chimera.serving.embedded.checkpoint import Checkpoint

OBJECT_SCHEMA = {"type": "object"}


class TextSide:
    """The parts of a model that do not depend on its weights: tokenizer, chat template, grammars, context length.

    Raises:
        ConfigError: Tokenizer or chat template is misread (`trial`).
    """

    def __init__(self, checkpoint: "Checkpoint", serving: ServingConfig) -> None:
        self.chat, self.grammars = tried(checkpoint, checkpoint.shape.vocab, checkpoint.folder)
        self.sampling = checkpoint.sampling.model_dump(exclude_none=True)
        self.context = min(serving.context_length, checkpoint.shape.max_positions)
        self.tokens = checkpoint.tokenizer.get_vocab(with_added_tokens=True)
        tags = {self.tokens.get(OPEN), self.tokens.get(CLOSE)}
        self.vocabulary = Vocabulary(
            self.grammars.token_bytes, frozenset(checkpoint.eos), self.chat.special_ids - tags, self.grammars.ordinary
        )


def make_jobs(request: ChatRequest, text: TextSide) -> list[DecodingJob]:
    """The jobs, one for each of the `n` choices, that answer `request`.

    Raises:
        BadRequest: the prompt does not fit, or the schema cannot constrain decoding.
    """
    matcher = _matcher(request, text)
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or []]
    prompt = text.chat.encode(request.messages, tools, most=text.context - 1)
    room = text.context - len(prompt)
    # Fields that the request leaves out are the model's own; what that does not say either is off.
    sampling: dict[str, Any] = text.sampling | request.model_dump(include=set(Sampling.model_fields), exclude_none=True)
    return [
        DecodingJob(
            prompt=prompt,
            max_new=min(request.token_limit or room, room),
            **sampling,
            seed=None if request.seed is None else f"{request.seed}/{index}",
            stops=tuple(stop.encode() for stop in request.stops),
            matcher=matcher.deep_copy() if matcher else None,
            log_probs=bool(request.logprobs),
            top_log_probs=request.top_logprobs or 0,
        )
        for index in range(request.n or 1)
    ]


def _matcher(request: ChatRequest, text: TextSide) -> "LLMatcher | None":
    """The grammar that the answer must follow; None for free text."""
    form = request.response_format
    schema = None
    if form is not None and form.type != "text":
        schema = form.json_schema.schema_ if form.json_schema is not None else OBJECT_SCHEMA
    choice = request.tool_choice or "auto"
    if request.tools and choice != "none":
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools]
        if isinstance(choice, NamedToolChoice):
            tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
        grammar = tools_grammar(
            tools,
            text.chat.tool_style,
            must_call=choice != "auto",
            parallel=request.parallel_tool_calls is not False and not isinstance(choice, NamedToolChoice),
            answer=schema,
        )
        return text.grammars.matcher(grammar, "tools")
    return None if schema is None else text.grammars.matcher(schema_grammar(schema), "response_format")


def make_response(
    request: ChatRequest, text: TextSide, version: str, prompt: list[int], answers: list[FinishedJob]
) -> dict[str, Any]:
    """The chat completion, with one choice for each answer."""
    generated = sum(len(answer.tokens) for answer in answers)
    response = envelope(request.model, version, len(prompt), generated, max(answer.reused for answer in answers))
    response["choices"] = [_choice(request, text, index, answer) for index, answer in enumerate(answers)]
    if request.return_token_ids:
        response["prompt_token_ids"] = prompt
    return response


def _choice(request: ChatRequest, text: TextSide, index: int, answer: FinishedJob) -> dict[str, Any]:
    tool_choice = request.tool_choice or "auto"
    offered = [tool.function.name for tool in request.tools or [] if tool_choice != "none"]
    if isinstance(tool_choice, NamedToolChoice):
        offered = [tool_choice.function.name]
    cut = tool_choice != "auto" and answer.finish == "length"
    parsed = parse_answer(answer.text, offered, forced=cut)
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in parsed.calls
        ]
    finish = "tool_calls" if parsed.calls and answer.finish == "stop" else answer.finish
    choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": finish, "logprobs": None}
    return choice | token_fields(request, text, answer.tokens, answer.scores)


def token_fields(
    request: ChatRequest, text: TextSide, tokens: list[int], scores: Sequence[TokenLogProbs]
) -> dict[str, Any]:
    """What `request` asks of a choice's tokens."""
    fields: dict[str, Any] = {}
    if request.logprobs:
        fields["logprobs"] = {"content": _log_probs(text, tokens, scores), "refusal": None}
        fields["sampled_logprobs"] = [score.sampled for score in scores]
    if request.return_token_ids:
        fields["token_ids"] = tokens
    return fields


def _log_probs(text: TextSide, tokens: Sequence[int], scores: Sequence[TokenLogProbs]) -> list[dict[str, Any]]:
    def entry(token: int, log_prob: float) -> dict[str, Any]:
        piece = text.vocabulary.token_bytes[token]
        return {"token": piece.decode("utf-8", "replace"), "logprob": log_prob, "bytes": list(piece)}

    return [
        {**entry(token, score.raw), "top_logprobs": [entry(other, value) for other, value in score.top]}
        for token, score in zip(tokens, scores, strict=True)
    ]
