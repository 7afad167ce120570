"""What is told of an online step: the seconds of its stages, and its line."""

import time
from collections.abc import Mapping
from typing import Any


class StepClock:
    """Measures the seconds of a step's stages."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._stages: dict[str, float] = {}

    def stop(self, stage: str) -> None:
        """End stage `stage` and begin the next."""
        now = time.perf_counter()
        self._stages[f"timing_s/{stage}"] = now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        return {**self._stages, "timing_s/step": self._last - self._started}


def step_line(phase: str, step: int, steps: int, metrics: Mapping[str, Any]) -> str:
    def figure(name: str, text: str, form: str = ".3f") -> str:
        value = metrics.get(name)
        return "" if value is None else f", {text} {value:{form}}"

    prompts, informative = metrics.get("branches/states"), metrics.get("branches/informative")
    if prompts is None and (prompts := metrics.get("group/count")) is not None:
        informative = round(prompts * (1 - metrics["group/zero_variance"]))
    return (
        f"{phase}: step {step}/{steps}"
        + figure("branches/value", "answers worth")
        + figure("reward/mean", "reward")
        + figure("alignment/mean", "answers right", ".0%")
        + figure("rollouts/good", "good rollouts", "d")
        + ("" if prompts is None else f", {informative:.0f} of {prompts:.0f} prompts informative")
        + figure("actor/optimizer_steps", "optimiser steps", ".0f")
        + figure("actor/entropy", "entropy")
        + figure("val-core/reward/mean", "validation reward")
        + figure("timing_s/step", "seconds", ".1f")
        + f", {metrics['policy']} is live"
    )
