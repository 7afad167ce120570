"""Fine-tunes the juniors' first weights on labels alone, for the baseline `evaluation.baselines.labels`."""

import json
from collections.abc import Sequence
from pathlib import Path

from chimera.core.types import ResearchTask
from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.run.seals import seal
from evaluation.baselines.labels import label_prompt, label_text
from evaluation.baselines.simple import LABELS
from evaluation.rollout.progress import ProgressView
from training.learning.examples import FirstWeights
from training.learning.experience import Conversation
from training.learning.fine_tuning import TuneSettings
from training.tune.fine_tune import MANIFEST, fingerprint, finished, specify, write_lines
from training.tune.process import TuningProcess
from training.tune.render import Renderer

FILE = f"evaluation/{LABELS}.jsonl"
"""The rows of tokens that it learns from, relative to the run."""


async def learn_labels(
    run: Run,
    slot: str,
    first: FirstWeights,
    settings: TuneSettings,
    tasks: Sequence[ResearchTask],
    view: ProgressView,
    seed: int,
) -> Policy:
    """Fine-tune `first` on `tasks`; weights that were made from the same before are kept.

    Raises:
        RunError: The training process ended early, or no task is short enough for `max_length`.
    """
    policy = Policy.made("weights", slot, LABELS)
    folder, file = run.path / policy.folder, run.path / FILE
    async with TuningProcess(run.path / "logs" / f"{LABELS}.log", settings.unsloth) as process:
        write_lines(file, _lines(first.folder, tasks, settings.max_length))
        spec = specify(settings, file, first.folder, folder, seed)
        digest = fingerprint(spec, first.version)
        if finished(folder, digest) is None:
            figures = {}
            reports = process.train(spec)
            with view.work("the baseline of labels alone", (await anext(reports))["total"]) as advance:
                async for report in reports:
                    figures = report
                    advance(report.get("step", report.get("steps", 0)), f"loss {report['loss']:.4f}")
            manifest = json.dumps({"fingerprint": digest, "figures": figures}, indent=2)
            (folder / MANIFEST).write_text(f"{manifest}\n", encoding="utf-8")
            seal(run, policy.folder)
    return policy


def _lines(model: Path, tasks: Sequence[ResearchTask], longest: int) -> list[dict[str, object]]:
    render = Renderer(model, 0).rows
    lines: list[dict[str, object]] = []
    for task in tasks:
        answer = {"role": "assistant", "content": label_text(task.label)}
        (row,) = render(Conversation(LABELS, 1, [*label_prompt(task), answer], None, {}, True))
        if len(row.ids) <= longest:
            lines.append({"task_id": task.id, "input_ids": row.ids, "labels": row.labels})
    return lines
