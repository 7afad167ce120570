"""`python -m recipes.nano`: make the bundled small model again, from the generator to the weights.

Two parts: first faultless transcripts, so that reading is learned, then transcripts with deliberate weaknesses, so that
the model is mediocre in a way that training can mend. Everything follows from the seed.
"""

import argparse
import copy
import itertools
import json
import multiprocessing
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.config.roles import JUNIORS
from chimera.data.generated import review as review_tasks
from chimera.data.generated.tasks import GeneratedTask, generate
from recipes.nano import review
from recipes.nano.fit import NanoShape, Schedule, TokenizedTranscript, encode
from recipes.nano.transcripts import Habits, Transcript, careful, junior, stream

HASTY_READERS = Habits(careless_expert=0.0, careless_other=0.0, believing_refiner=0.0)
"""Only the habits of the family `review`, and a vague designer."""
FAULTLESS_READERS = replace(HASTY_READERS, hasty_reader=0.0, equal_refiner=0.0)
"""Who reads is faultless; the designer is vague, which it learns to mend in its own phase."""

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ASSETS = Path(__file__).parents[2] / "chimera" / "assets" / "nano"
BLOCK = 500
TRAIN_SEED, EXAM_SEED = 7_000_003, 9_000_011
"""Seeds of the generator that no configuration default uses, so that users' tasks are new to the model."""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipes.nano", description=__doc__)
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder to write (default: the bundled model's)")
    parser.add_argument("--steps", type=int, default=8500, help="updates on faultless transcripts")
    parser.add_argument("--habit-steps", type=int, default=260, help="updates on transcripts with planted habits")
    parser.add_argument(
        "--review-steps", type=int, default=0, help="updates on both families, after the others (default 0)"
    )
    parser.add_argument("--review-habits", action="store_true", help="with the habits of this family in these updates")
    parser.add_argument("--review-share", type=float, default=0.9, help="share of the family review in these")
    parser.add_argument("--done", type=int, default=0, help="with --start: updates of the last kind made before a stop")
    parser.add_argument("--warm-up", type=int, default=2000, help="updates on the copy task")
    parser.add_argument("--batch", type=int, default=64, help="transcripts per update")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3, 4], help="levels of the generated tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--start", type=Path, help="continue from this folder instead of from scratch")
    parser.add_argument("--workers", type=int, default=0, help="processes that write transcripts (0: this one)")
    parser.add_argument("--exam", type=int, default=400, help="held-out tasks for the exam")
    for name, value in asdict(NanoShape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser


def tasks(seed: int, levels: list[int]) -> Iterator[GeneratedTask]:
    """Endless generated tasks in blocks, each block with its own seed."""
    for block in itertools.count():
        yield from generate(BLOCK, seed=seed + block, levels=levels)


def examples(
    tokenizer: "PreTrainedTokenizerFast", seed: int, levels: list[int], habits: Habits, workers: int
) -> Iterator[TokenizedTranscript]:
    """Endless encoded transcripts in blocks. Transcripts and order do not depend on the number of workers."""
    jobs = ((tokenizer, seed + block, levels, habits) for block in itertools.count())
    if not workers:
        yield from itertools.chain.from_iterable(map(_encode_block, jobs))
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        while True:
            # Work in rounds, because imap reads all jobs before it yields a result, and they never end.
            yield from itertools.chain.from_iterable(pool.imap(_encode_block, itertools.islice(jobs, 4 * workers)))


def _encode_block(job: tuple["PreTrainedTokenizerFast", int, list[int], Habits]) -> list[TokenizedTranscript]:
    tokenizer, seed, levels, habits = job
    items = generate(BLOCK, seed=seed, levels=levels)
    return [encode(tokenizer, transcript) for transcript in stream(iter(items), seed, habits)]


def of_both(
    tokenizer: "PreTrainedTokenizerFast", seed: int, levels: list[int], share: float, habits: Habits
) -> Iterator[TokenizedTranscript]:
    """Endless encoded transcripts, of which `share` are of the family `review`."""
    rng = random.Random(seed)
    tasks = (item for block in itertools.count() for item in generate(50, seed=seed + block, levels=levels))
    of_one = stream(tasks, seed, habits)
    items = (
        item for block in itertools.count() for item in review_tasks.generate(50, seed=seed + block, levels=levels)
    )
    of_several = review.stream(items, seed, habits)
    while True:
        yield encode(tokenizer, next(of_several if rng.random() < share else of_one))


def review_exams(levels: list[int], count: int) -> dict[str, list[Transcript]]:
    """Transcripts of held-out tasks of the family `review`, by who reads."""
    rng = random.Random(EXAM_SEED)
    items = [review.renamed(rng, item) for item in review_tasks.generate(count, seed=EXAM_SEED, levels=levels)]
    return {
        "a junior": [
            review.junior(item, rng.choice(list(review.DATABASES)), rng.choice(review_tasks.NAMES), rng)
            for item in items
        ],
        "refiner": [review.refiner(item, rng, true=True) for item in items],
    }


def exam_set(levels: list[int], count: int) -> list[Transcript]:
    """Faultless junior transcripts of held-out tasks, with the same mix of search results as in training."""
    items = generate(count + 1, seed=EXAM_SEED, levels=levels)
    rng = random.Random(EXAM_SEED)
    return [junior(item, other, rng.choice(JUNIORS), careful(item), rng) for item, other in itertools.pairwise(items)]


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    import torch
    from transformers import AutoTokenizer, Qwen2ForCausalLM

    from recipes.nano.exam import examine, score
    from recipes.nano.fit import Fitter, new_model, save
    from recipes.nano.tokenizer import read_chat_template, train_tokenizer
    from recipes.nano.transcripts import text_of

    torch.set_num_threads(options.threads)
    shape = NanoShape(**{name: getattr(options, name) for name in asdict(NanoShape())})
    if options.start:
        tokenizer = AutoTokenizer.from_pretrained(options.start)
        model = Qwen2ForCausalLM.from_pretrained(options.start, dtype=torch.float32, use_safetensors=True)
        model.config.max_position_embeddings = shape.context_length
    else:
        sample = itertools.islice(stream(tasks(TRAIN_SEED - 1, options.levels), options.seed, Habits()), 8000)
        tokenizer = train_tokenizer((text_of(t) for t in sample), shape.vocab_size, read_chat_template(ASSETS))
        model = new_model(shape, tokenizer, options.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    exam, started, log = exam_set(options.levels, options.exam), time.perf_counter(), []

    def report(step: int, loss: float, speed: float = 0.0) -> None:
        line = f"{time.perf_counter() - started:6.0f} s  step {step:5d}  loss {loss:.3f}  {speed:,.0f} tokens/s"
        print(line, flush=True)
        if speed and step % 1000 == 0:
            marks = examine(model, tokenizer, exam)
            print("        " + marks.line(), flush=True)
        if speed and step % 50 == 0:
            save_copy()

    def save_copy() -> None:
        options.out.mkdir(parents=True, exist_ok=True)
        save(copy.deepcopy(model).cpu(), tokenizer, options.out)

    parts = (
        (Schedule(options.steps, options.batch, 0 if options.start else options.warm_up), Habits.none()),
        # Lower rates keep what was learned. Still lower rates would not teach which junior is careful on which field.
        (Schedule(options.habit_steps, options.batch, 0, adamw_rate=2e-3, muon_rate=0.01), Habits()),
    )
    for part, (schedule, habits) in enumerate(parts):
        if not schedule.steps:
            continue
        fitter = Fitter(model, schedule, options.seed + part, device=options.device)
        fitter.warm_up(report)
        seed = TRAIN_SEED + 100_000 * part
        fitter.fit(examples(tokenizer, seed, options.levels, habits, options.workers), report)
        marks = examine(model, tokenizer, exam)
        log.append({"part": part, "steps": schedule.steps, "line": marks.line()})
        print("after part", part, marks.line(), flush=True)
        save_copy()
    if options.review_steps:
        schedule = Schedule(options.review_steps, options.batch, 0, adamw_rate=2e-3, muon_rate=0.01)
        fitter = Fitter(model, schedule, options.seed + len(parts), device=options.device)
        seed = TRAIN_SEED + 100_000 * len(parts) + options.done
        habits = HASTY_READERS if options.review_habits else FAULTLESS_READERS
        fitter.fit(of_both(tokenizer, seed, options.levels, options.review_share, habits), report, done=options.done)
        save_copy()
        log.append({"part": len(parts), "steps": schedule.steps, "line": examine(model, tokenizer, exam).line()})
        for reader, transcripts in review_exams(options.levels, options.exam).items():
            log.append({"part": len(parts), "reads": reader, **score(model, tokenizer, transcripts)})
    print(json.dumps(log, indent=1))
    return 0


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
