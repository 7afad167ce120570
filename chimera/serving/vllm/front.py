"""The one address at which a run finds its vLLM slots. It speaks as the embedded server does.

Calls name a slot, go to the least busy replica of its weights, and come back with `weights_version`. New weights come
through /admin/weights, as for the embedded server.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from chimera.config.sections.models import ModelConfig
from chimera.core.errors import ChimeraError, ModelError
from chimera.serving.application import application, json_object, until_disconnected
from chimera.serving.embedded.protocol import BadRequest, Unavailable, unknown_model
from chimera.serving.vllm.publish import Published, ServedWeights


class Front:
    """Finds the weights of a slot.

    Args:
        weights: By slot; slots that share servers have the same.
        models: The slots as they are configured.
        context: Most tokens of a request.
        note: Called with what each publish did.
    """

    def __init__(
        self,
        weights: Mapping[str, ServedWeights],
        models: Mapping[str, ModelConfig],
        context: int,
        note: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._weights = dict(weights)
        self._models = models
        self._context = context
        self._note = note

    def versions(self) -> dict[str, str]:
        """The version of each slot's weights."""
        return {slot: weights.version for slot, weights in self._weights.items()}

    def describe(self) -> list[dict[str, Any]]:
        """One entry for each slot, as the embedded server gives it."""
        return [
            {
                **{"id": slot, "object": "model", "created": 0, "owned_by": "chimera", "kind": "vllm"},
                "weights_version": weights.version,
                "folder": str(weights.live.source),
                "max_model_len": self._context,
            }
            for slot, weights in self._weights.items()
        ]

    async def complete(self, request: Mapping[str, Any]) -> Response:
        """The server's answer, stamped.

        Raises:
            ApiError: No such slot, or no answer.
        """
        slot = str(request.get("model"))
        try:
            answer, version = await self._of(slot).answer(request, self._models[slot].call_limit_s)
        except ModelError as error:
            raise Unavailable(str(error)) from error
        if answer.status != 200:
            headers = {name: answer.headers[name] for name in ("retry-after",) if name in answer.headers}
            return Response(answer.content, answer.status, headers, media_type="application/json")
        try:
            body = json.loads(answer.content)
            body |= {"model": slot, "weights_version": version}
        except (ValueError, TypeError, RecursionError) as error:
            raise Unavailable(f"the vLLM server of {slot} answered 200 with what is no JSON object") from error
        return JSONResponse(body)

    async def publish(self, slot: str, folder: Path, version: str) -> Published:
        """Put the weights in `folder` behind `slot`.

        Raises:
            ApiError: They cannot be served, or other slots would get them too.
        """
        weights = self._of(slot)
        sharing = [other for other, served in self._weights.items() if served is weights and other != slot]
        if sharing:
            raise BadRequest(
                f"{slot} shares its vLLM servers with {', '.join(sharing)}, so its weights stay as they are"
            )
        try:
            done = await weights.publish(folder, version)
        except ChimeraError as error:
            raise BadRequest(str(error), param="folder") from error
        self._note({"slot": slot, "version": version, "seconds": done.seconds, "apart": done.apart})
        return done

    async def rest(self, *, asleep: bool) -> None:
        """Send the servers to sleep whose slots are configured so, or wake them.

        Raises:
            ApiError: One did not; nothing is answered by its slots any more.
        """
        slots = {weights: slot for slot, weights in reversed(self._weights.items()) if self._models[slot].sleep}
        work = [weights.sleep() if asleep else weights.wake() for weights in slots]
        results = await asyncio.gather(*work, return_exceptions=True)
        for (weights, slot), seconds in zip(slots.items(), results, strict=True):
            if isinstance(seconds, BaseException):
                raise Unavailable(str(seconds)) from seconds
            stage = "sleep" if asleep else "wake"
            self._note({"slot": slot, "version": weights.version, "seconds": {stage: round(seconds, 3)}})

    def _of(self, slot: str) -> ServedWeights:
        if slot not in self._weights:
            raise unknown_model(slot, self._weights)
        return self._weights[slot]


def create_front(front: Front, key: str) -> FastAPI:
    """The application, protected by `key`."""
    app = application("Chimera's vLLM servers", key)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": front.versions()}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": front.describe()}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await until_disconnected(request, front.complete(await json_object(request)))

    @app.post("/admin/weights")
    async def weights(request: Request) -> dict[str, Any]:
        match await json_object(request):
            case {"model": str(slot), "folder": str(folder), **rest} if set(rest) <= {"version"}:
                version = str(rest.get("version") or f"{slot}@{Path(folder).name}")
                done = await front.publish(slot, Path(folder), version)
                return {"model": slot, "weights_version": version, "seconds": done.seconds, "apart": done.apart}
        raise BadRequest('the body must be {"model": slot, "folder": path} with an optional "version"')

    @app.post("/admin/sleep")
    async def sleep(request: Request) -> dict[str, Any]:
        await front.rest(asleep=True)
        return {}

    @app.post("/admin/wake")
    async def wake(request: Request) -> dict[str, Any]:
        await front.rest(asleep=False)
        return {}

    @app.post("/admin/candidates")
    async def candidates(request: Request) -> dict[str, Any]:
        raise BadRequest(
            "vLLM serves one set of weights for each slot, so no candidate can be served beside it: use kind=embedded "
            "for algorithms that compare candidates (ppo.credit=counterfactual)"
        )

    return app
