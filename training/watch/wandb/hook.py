"""Weights & Biases for any Agent Lightning agent: rewards and their parts live, as rollouts end.

    trainer = agl.Trainer(..., hooks=[WandbLoggingHook(project="my-agents", group="run-7")])

The keys are those of Chimera's own runs: `rollout/reward` and `rollout/parts/<name>` over `rollout/index`.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import agentlightning as agl
from agentlightning.semconv import AGL_ANNOTATION
from agentlightning.types import SpanLike

from training.watch.metrics import ROLLOUT
from training.watch.wandb.rows import flat, step_key

if TYPE_CHECKING:
    import wandb

PARTS = "reward_parts."
"""Prefix of the attributes for a reward's known parts when the reward has no value (`spans.reward_span`)."""

logger = logging.getLogger(__name__)


class WandbLoggingHook(agl.Hook):
    """Logs each rollout's reward and its named parts to W&B as the rollout ends.

    Each process that runs rollouts makes its own W&B run when its first rollout has ended. Give the runs of one
    training a common `group`. If the hook fails or cannot reach W&B, it warns once and does nothing more.

    Args:
        run: The W&B run, which must belong to the process that runs the rollouts.
        init: Arguments of `wandb.init` if there is no `run`.
    """

    def __init__(self, run: "wandb.Run | None" = None, **init: Any) -> None:
        super().__init__()
        self._run, self._init = run, init
        self._count = 0
        self._failed = False

    async def on_rollout_end(
        self, *, agent: agl.LitAgent[Any], runner: agl.Runner[Any], rollout: agl.Rollout, spans: Sequence[SpanLike]
    ) -> None:
        reward, parts = rewards(spans)
        values = {"rollout_id": rollout.rollout_id, "mode": rollout.mode, "reward": reward, "parts": parts}
        # Starting W&B takes a second, or minutes if its server does not answer.
        await asyncio.to_thread(self._log_next, values)

    def _log_next(self, values: Mapping[str, Any]) -> None:
        if self._failed:
            return
        try:
            self._run = self._run or _start(self._init)
            if not self._count:
                self._run.define_metric(f"{ROLLOUT}/*", step_metric=step_key(ROLLOUT))
            self._count += 1
            self._run.log({step_key(ROLLOUT): self._count, **flat(values, f"{ROLLOUT}/")})
        except Exception as error:  # noqa: BLE001  whatever is wrong with W&B, rollouts go on without it
            self._failed = True
            logger.warning("rollouts are no longer logged to W&B: %s: %s", type(error).__name__, error)


def _start(init: dict[str, Any]) -> "wandb.Run":
    import wandb

    run = wandb.init(**init)
    # W&B finishes its runs at exit, but not in processes of the multiprocessing module, such as Agent Lightning's.
    # `run.finish` alone does not wait until W&B's service has written the end.
    Finalize(None, wandb.teardown, exitpriority=1)
    return run


def rewards(spans: Sequence[SpanLike]) -> tuple[float | None, dict[str, float]]:
    """The last reward in a rollout's spans and its named parts; without a reward, the known parts."""
    for span in reversed(spans):
        if dimensions := agl.get_rewards_from_span(span):
            primary, *others = dimensions
            return primary.value, {part.name: part.value for part in others}
        if (value := agl.get_reward_value(span)) is not None:
            return value, {}
        parts = {key: value for key, value in (span.attributes or {}).items() if key.startswith(PARTS)}
        if span.name == AGL_ANNOTATION and parts:
            return None, {key.removeprefix(PARTS): float(value) for key, value in parts.items()}  # pyright: ignore[reportArgumentType]  numbers, as `reward_span` writes them
    return None, {}
