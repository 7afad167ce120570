"""Fine-tunes the juniors' first weights on labels alone, for the baseline `evaluation.baselines.labels`."""

import json
from collections.abc import Sequence
from pathlib import Path

from chimera.core.errors import RunError
from chimera.core.types import ResearchTask
from chimera.run.directory import Run
from chimera.run.policies import Policy
from chimera.run.seals import seal
from evaluation.baselines.labels import label_prompt, label_text
from evaluation.baselines.simple import LABELS
from evaluation.rollout.progress import ProgressView
from training.learning.examples import FirstWeights, Row
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
        lines = label_lines(first.folder, tasks, settings.max_length)
        if left_out := len(tasks) - len(lines):
            view.note(f"labels: {left_out} of {len(tasks)} training tasks are longer than {settings.max_length} tokens")
        write_lines(file, lines)
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


def label_lines(model: Path, tasks: Sequence[ResearchTask], longest: int) -> list[dict[str, object]]:
    """The rows of those tasks that fit into so many tokens; raises RunError if none does."""
    render = Renderer(model, 0).rows
    rows: dict[str, Row] = {}
    for task in tasks:
        answer = {"role": "assistant", "content": label_text(task.label)}
        (rows[task.id],) = render(Conversation(LABELS, 1, [*label_prompt(task), answer], None, {}, True))
    fitting = {id_: row for id_, row in rows.items() if len(row.ids) <= longest}
    if not fitting:
        shortest = min((len(row.ids) for row in rows.values()), default=0)
        raise RunError(
            f"the baseline of labels alone has nothing to learn from: no task fits max_length={longest} of the run's "
            f"first phase that fine-tunes (the shortest has {shortest} tokens); set evaluation.labels=false"
        )
    return [{"task_id": id_, "input_ids": row.ids, "labels": row.labels} for id_, row in fitting.items()]
