"""Weights & Biases: named steps for each phase, and rollouts' rewards live, for Chimera's runs and for any agent.

    trainer = agl.Trainer(..., hooks=[WandbLoggingHook(project="my-agents", group="run-7")])

A key is `<phase>/<value>`, drawn over the phase's own `<phase>/step`; single rollouts are `rollout/reward` and
`rollout/parts/<name>` over `rollout/index`.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import agentlightning as agl
from agentlightning.semconv import AGL_ANNOTATION
from agentlightning.types import SpanLike

from training.metrics import ROLLOUT

if TYPE_CHECKING:
    import wandb

PARTS = "reward_parts."
"""Attributes of the annotation with a reward's known parts when the reward itself has no value (`emit_parts`)."""

logger = logging.getLogger(__name__)


class PhaseSteps:
    """Logs to one W&B run, where every phase has its own step."""

    def __init__(self, run: "wandb.Run") -> None:
        self._run = run
        self._steps: dict[str, int] = {}
        self._counted: set[str] = set()

    def log(
        self,
        phase: str,
        step: int | None,
        values: Mapping[str, Any],
        *,
        row: int | None = None,
        time: datetime | None = None,
        send: bool = True,
    ) -> None:
        """Log `values` of `phase`.

        Args:
            phase: The prefix of the keys.
            step: The phase's own step; None is the phase's last step, or the next number if it has no steps.
            values: Numbers, texts, or mappings and lists of those; None is left out.
            row: Which row of W&B's history this is; the next one for None.
            time: When it was; now for None.
            send: False only takes note of the step: W&B has the row already.
        """
        if phase not in self._steps:
            self._run.define_metric(step_key(phase))
            self._run.define_metric(f"{phase}/*", step_metric=step_key(phase))
            if step is None:
                self._counted.add(phase)
        if step is None:
            step = self._steps.get(phase, -1) + 1 if phase in self._counted else self._steps[phase]
        self._steps[phase] = step
        if send:
            found = {f"{phase}/{key}": value for key, value in flat(values)}
            stamp = {} if time is None else {"_timestamp": time.timestamp()}
            self._run.log({step_key(phase): step, **found, **stamp}, step=row, commit=True)


class WandbLoggingHook(agl.Hook):
    """Logs each rollout's reward and its named parts to W&B as the rollout ends.

    A process that runs rollouts makes its own W&B run when its first rollout has ended: give the runs of one training
    a common `group`. A hook that fails, or that W&B cannot be reached from, says so once and does nothing more.

    Args:
        run: Log to this run, which must belong to the process that runs the rollouts.
        init: What `wandb.init` is called with when there is no `run`.
    """

    def __init__(self, run: "wandb.Run | None" = None, **init: Any) -> None:
        super().__init__()
        self._init = init
        self._steps = None if run is None else PhaseSteps(run)
        self._count = 0
        self._failed = False

    async def on_rollout_end(
        self,
        *,
        agent: agl.LitAgent[Any],
        runner: agl.Runner[Any],
        rollout: agl.Rollout,
        spans: Sequence[SpanLike],
    ) -> None:
        """Log what the rollout's spans say of its reward."""
        reward, parts = rewards(spans)
        values = {"rollout_id": rollout.rollout_id, "mode": rollout.mode, "reward": reward, "parts": parts}
        # W&B may have to start, which takes a second, or minutes when its server does not answer.
        await asyncio.to_thread(self._log_next, values)

    def _log_next(self, values: Mapping[str, Any]) -> None:
        if self._failed:
            return
        try:
            if self._steps is None:
                import wandb

                self._steps = PhaseSteps(wandb.init(**self._init))
            self._count += 1
            self._steps.log(ROLLOUT, self._count, values)
        except Exception as error:  # noqa: BLE001  whatever is wrong with W&B, rollouts go on without it
            self._failed = True
            logger.warning("rollouts are no longer logged to W&B: %s: %s", type(error).__name__, error)


def rewards(spans: Sequence[SpanLike]) -> tuple[float | None, dict[str, float]]:
    """The last reward in a rollout's spans and its named parts; without a reward, the parts that are known."""
    for span in reversed(spans):
        if dimensions := agl.get_rewards_from_span(span):
            primary, *others = dimensions
            return primary.value, {part.name: part.value for part in others}
        if (value := agl.get_reward_value(span)) is not None:
            return value, {}
        known = {key: value for key, value in (span.attributes or {}).items() if key.startswith(PARTS)}
        if span.name == AGL_ANNOTATION and known:
            return None, {key.removeprefix(PARTS): float(value) for key, value in known.items()}  # pyright: ignore[reportArgumentType]  numbers, as `emit_parts` wrote them
    return None, {}


def step_key(phase: str) -> str:
    """The key that a phase's values are drawn over."""
    return f"{phase}/index" if phase == ROLLOUT else f"{phase}/step"


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with slashes instead of nesting; items of lists are named by their position, and None is left out."""
    for key, value in values.items():
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", value
