"""Continuous batching: one thread owns all engines, admits waiting jobs between decode steps and samples for all rows.

Forced text is not sampled: if the grammar allows only one continuation (JSON keys, the rest of a sentence from an
enum), its tokens are appended to the answer at once and run through the model together in the next step.

A job stays in the lane (engine and cache rows) it was submitted to. New weights make a new lane: jobs submitted before
finish on the old weights, later jobs run on the new weights. No job waits, is dropped or mixes two versions. The old
lane is freed after its last job. A lane without jobs for some seconds gives its cache's memory back.
"""

import logging
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from chimera.serving.devices import release_memory
from chimera.serving.embedded.decoding.engine import Chunk, Engine, Singles
from chimera.serving.embedded.decoding.rows import RowTable
from chimera.serving.embedded.decoding.sampling import choose, penalise
from chimera.serving.embedded.grammar import allowed_tokens, forced_tokens
from chimera.serving.embedded.protocol import BadRequest, Unavailable

if TYPE_CHECKING:
    from llguidance import LLMatcher

logger = logging.getLogger(__name__)

IDLE_SECONDS = 10.0
"""After so long without jobs a lane gives its cache's memory back, such as while an update is computed."""
MOST_AT_ONCE = 2048
"""Tokens of a prompt that are read in one pass: the memory of a pass grows with their number times all before them."""

Finish = Literal["stop", "length", "error"]
"""Why an answer ends: the model or a stop string ended it, its limit was reached, or the grammar broke down."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parts of a tokenizer that decoding needs."""

    token_bytes: list[bytes]
    eos: frozenset[int]
    silent: frozenset[int]
    """Ids that never appear in an answer's text."""
    ordinary: Mapping[bytes, int]
    """Tokens by their bytes, without control tokens."""


@dataclass(frozen=True, slots=True)
class TokenLogProbs:
    """Log-probabilities of one generated token.

    `raw` is under the model (temperature 1, no mask). `sampled` is under the distribution that was sampled from (after
    grammar mask, temperature and top-p; 0 for a greedy or forced token). `top`: the most likely (token, raw) pairs.
    """

    raw: float
    sampled: float
    top: tuple[tuple[int, float], ...]


Listener = Callable[[bytes, list[int], list[TokenLogProbs]], None]
"""Told of new text that no stop string takes back, of new tokens and of their scores, on the batcher's thread."""


@dataclass(slots=True)
class DecodingJob:
    """One answer to generate, and its tokens so far; only the batcher's thread uses the latter."""

    prompt: list[int]
    max_new: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: str | None = None
    stops: tuple[bytes, ...] = ()
    matcher: "LLMatcher | None" = None
    log_probs: bool = False
    top_log_probs: int = 0
    done: "Future[FinishedJob]" = field(default_factory=Future)
    tokens: list[int] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    scores: list[TokenLogProbs] = field(default_factory=list)
    reused: int = 0
    cached: int = 0
    """Number of first tokens of prompt and answer whose keys and values are in the job's row."""
    finish: Finish | None = None
    listener: Listener | None = None
    """What is written last is in the result alone."""
    reported: tuple[int, int] = (0, 0)
    """Bytes of the text, and tokens, that the listener has."""
    generator: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.generator = random.Random(self.seed)

    @property
    def unscored(self) -> int:
        """Number of last tokens of the answer whose log-probabilities are wanted but not computed yet."""
        return len(self.tokens) - len(self.scores) if self.log_probs else 0

    def report(self) -> None:
        """Tell the listener, if there is one, what is new."""
        if self.listener is None:
            return
        start, first = self.reported
        end = max(start, len(self.text) - max(map(self._begun, self.stops), default=0))
        last = len(self.tokens) - self.unscored
        if (end, last) != self.reported:
            self.reported = end, last
            self.listener(bytes(self.text[start:end]), self.tokens[first:last], self.scores[first:last])

    def _begun(self, stop: bytes) -> int:
        """The most last bytes of the text that may be the beginning of `stop`."""
        sizes = range(min(len(stop) - 1, len(self.text)), 0, -1)
        return next((size for size in sizes if self.text.endswith(stop[:size])), 0)

    def chunk(self, row: int) -> Chunk:
        """The tokens that are not in the cache of `row` yet; the last ones give the logits that are needed."""
        start = self.cached - len(self.prompt)
        fresh = self.tokens[start:] if start >= 0 else self.prompt[self.cached :] + self.tokens
        return Chunk(row, fresh, self.cached, 1 + self.unscored)


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A finished job: `tokens` include the end-of-sequence token, `text` does not; `reused` counts cached ones."""

    tokens: list[int]
    text: str
    finish: Literal["stop", "length"]
    scores: list[TokenLogProbs]
    reused: int


@dataclass(slots=True)
class Counters:
    """Totals since the batcher started."""

    answers: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    decode_steps: int = 0


class Lane:
    """One engine with its rows and jobs. Its methods run on the batcher's thread."""

    def __init__(self, engine: Engine, slots: int, vocabulary: Vocabulary) -> None:
        self.engine = engine
        self.slots = slots
        self.waiting: deque[DecodingJob] = deque()
        self._vocabulary = vocabulary
        self._table = RowTable(slots, engine.rows - slots)
        self._live: dict[int, DecodingJob] = {}
        self._logits = torch.zeros(slots, engine.shape.vocab, device=engine.device)
        self._settings: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None] | None = None

    @property
    def busy(self) -> bool:
        """True if any job waits or runs in this lane."""
        return bool(self.waiting or self._live)

    def advance(self, counters: Counters) -> None:
        """Admit waiting jobs; then choose a token for every running job, and run it with the tokens that it forces."""
        while self.waiting and len(self._live) < self.slots:
            job = self.waiting.popleft()
            if not _given_up(job):
                self._admit(job, counters)
        for row in [row for row, job in self._live.items() if _given_up(job)]:
            self._release(row)
        if self._live:
            self._sample(counters)
        if self._live:
            self._decode(counters)

    def fail(self, error: Exception) -> None:
        """End all jobs with `error` and discard the cache."""
        for job in (*self._live.values(), *self.waiting):
            if job.done.set_running_or_notify_cancel():
                job.done.set_exception(error)
        self.waiting.clear()
        self._live.clear()
        self._settings = None
        self._forget()

    def rest(self) -> None:
        """Give back the memory of the cache; the lane must have no jobs."""
        if self.engine.device == "cpu":
            self.engine.release_cache()
            self._forget()

    def _forget(self) -> None:
        self._table = RowTable(self.slots, self.engine.rows - self.slots)

    def _admit(self, job: DecodingJob, counters: Counters) -> None:
        plan = self._table.place(job.prompt, self._live)
        if plan.stash_to is not None:
            self.engine.copy_prefix(plan.row, plan.stash_to, len(self._table.history(plan.stash_to)))
        if plan.copy_from is not None:
            self.engine.copy_prefix(plan.copy_from, plan.row, plan.reused)
        job.reused = job.cached = plan.reused
        counters.prefilled_tokens += len(job.prompt) - plan.reused
        counters.reused_tokens += plan.reused
        self._live[plan.row] = job
        self._settings = None
        while len(job.prompt) - job.cached > MOST_AT_ONCE:
            piece = job.prompt[job.cached : job.cached + MOST_AT_ONCE]
            self.engine.forward(Singles(), [Chunk(plan.row, piece, job.cached)])
            job.cached += len(piece)
        self._force(job, counters)
        self._run({}, {plan.row: job})
        self._finish_ended(counters)

    def _release(self, row: int) -> DecodingJob:
        job = self._live.pop(row)
        self._table.record(row, (job.prompt + job.tokens)[: job.cached])
        self._settings = None
        return job

    def _sample(self, counters: Counters) -> None:
        rows = list(self._live)
        jobs = list(self._live.values())
        logits = self._logits[rows]
        temperature, top_p, top_k, min_p = self._sampling_settings(jobs)
        device = self.engine.device
        uniform = torch.tensor([job.generator.random() for job in jobs], dtype=torch.float64, device=device)
        allowed = None
        if any(job.matcher is not None for job in jobs):
            allowed = torch.from_numpy(allowed_tokens([job.matcher for job in jobs], logits.shape[1])).to(device)
        chosen, log_probs = choose(
            _penalised(logits, jobs),
            temperature,
            top_p,
            uniform,
            allowed,
            want_log_probs=any(job.log_probs for job in jobs),
            top_k=top_k,
            min_p=min_p,
        )
        if log_probs is not None:
            self._score(jobs, logits, chosen, log_probs)
        counters.generated_tokens += len(jobs)
        for job, token in zip(jobs, chosen.tolist(), strict=True):
            if job.matcher is not None and not job.matcher.consume_token(token):
                job.finish = "error"
                continue
            self._append(job, token)
            self._force(job, counters)
        self._finish_ended(counters)

    def _sampling_settings(self, jobs: list[DecodingJob]) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Temperature, top-p, top-k and min-p of each job; None for one that no job uses."""
        if self._settings is None:
            tensor, vocab = partial(torch.tensor, device=self.engine.device), self.engine.shape.vocab
            top_p, min_p = [job.top_p for job in jobs], [job.min_p for job in jobs]
            top_k = [min(job.top_k, vocab) if job.top_k > 0 else vocab for job in jobs]
            self._settings = (
                tensor([job.temperature for job in jobs]),
                tensor(top_p) if min(top_p) < 1 else None,
                tensor(top_k) if min(top_k) < vocab else None,
                tensor(min_p) if max(min_p) > 0 else None,
            )
        return self._settings

    def _score(self, jobs: list[DecodingJob], logits: Tensor, tokens: Tensor, sampled: Tensor) -> None:
        raw = torch.log_softmax(logits, -1)
        raw_chosen = raw.gather(1, tokens[:, None])[:, 0].tolist()
        sampled_chosen = sampled.gather(1, tokens[:, None])[:, 0].tolist()
        for index, job in enumerate(jobs):
            if job.log_probs:
                job.scores.append(
                    TokenLogProbs(raw_chosen[index], sampled_chosen[index], _top(raw[index], job.top_log_probs))
                )

    def _append(self, job: DecodingJob, token: int) -> None:
        job.tokens.append(token)
        if token in self._vocabulary.eos:
            job.finish = "stop"
            return
        if token not in self._vocabulary.silent:
            seen = len(job.text)
            job.text += self._vocabulary.token_bytes[token]
            if job.stops and _cut(job, seen):
                job.finish = "stop"
                return
        if len(job.tokens) >= job.max_new:
            job.finish = "length"

    def _force(self, job: DecodingJob, counters: Counters) -> None:
        """Append all tokens that the grammar forces after the newest token, including the end of the answer."""
        if job.matcher is None or job.finish is not None:
            return
        forced = forced_tokens(job.matcher, self._vocabulary.ordinary)
        if job.matcher.is_error():
            job.finish = "error"
            return
        if job.matcher.is_stopped() and len(self._vocabulary.eos) == 1:
            forced += self._vocabulary.eos
        for token in forced:
            if job.finish is not None:
                break
            # Each token uses one random number, sampled or forced, so later samples do not depend on what was forced.
            job.generator.random()
            self._append(job, token)
            counters.generated_tokens += 1
            counters.forced_tokens += 1

    def _finish_ended(self, counters: Counters) -> None:
        """End the complete jobs and report on others. Those whose forced tokens lack scores wait for the next step."""
        for row in [row for row, job in self._live.items() if job.finish is not None and not job.unscored]:
            job = self._release(row)
            counters.answers += 1
            if not job.done.set_running_or_notify_cancel():
                continue
            if job.finish == "error" or job.finish is None:
                assert job.matcher is not None
                reason = job.matcher.get_error().partition("\n")[0]
                text = f"the JSON schemas of this request cannot constrain decoding, use simpler ones: {reason}"
                job.done.set_exception(BadRequest(text))
            else:
                text = job.text.decode("utf-8", "replace")
                job.done.set_result(FinishedJob(job.tokens, text, job.finish, job.scores, job.reused))
        for job in self._live.values():
            job.report()

    def _decode(self, counters: Counters) -> None:
        """Run the new tokens of every job's answer: one token, or several if some were forced."""
        several = {row: job for row, job in self._live.items() if len(job.prompt) + len(job.tokens) - job.cached > 1}
        self._run({row: job for row, job in self._live.items() if row not in several}, several)
        counters.decode_steps += 1
        self._finish_ended(counters)

    def _run(self, singles: Mapping[int, DecodingJob], several: Mapping[int, DecodingJob]) -> None:
        batch = max(singles, default=-1) + 1
        tokens, positions = [0] * batch, [self.engine.idle_position] * batch
        for row, job in singles.items():
            tokens[row], positions[row] = job.tokens[-1], job.cached
        columns = max((positions[row] + 1 for row in singles), default=0)
        chunks = [job.chunk(row) for row, job in several.items()]
        single_logits, chunk_logits = self.engine.forward(Singles(tokens, positions, columns), chunks)
        self._logits[:batch] = single_logits
        for (row, job), logits in zip(several.items(), chunk_logits, strict=True):
            self._logits[row] = logits[-1]
            _score_forced(job, logits[:-1])
        for job in (*singles.values(), *several.values()):
            job.cached = len(job.prompt) + len(job.tokens)


def _penalised(logits: Tensor, jobs: list[DecodingJob]) -> Tensor:
    """The logits (B, V) after each job's repetition penalty; the same tensor if no job has one."""
    if all(job.repetition_penalty == 1 for job in jobs):
        return logits
    rows = [
        row
        if job.repetition_penalty == 1
        else penalise(row, torch.tensor(sorted({*job.prompt, *job.tokens}), device=row.device), job.repetition_penalty)
        for row, job in zip(logits, jobs, strict=True)
    ]
    return torch.stack(rows)


def _score_forced(job: DecodingJob, logits: Tensor) -> None:
    """Add the log-probabilities of the newest tokens of `job`, one for each row of `logits` (n, V)."""
    if len(logits):
        raw = torch.log_softmax(logits, -1).cpu()
        for scores, token in zip(raw, job.tokens[-len(logits) :], strict=True):
            job.scores.append(TokenLogProbs(float(scores[token]), 0.0, _top(scores, job.top_log_probs)))


def _top(raw: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` most likely (token, log-probability) pairs of `raw` (V,)."""
    if not count:
        return ()
    values, ids = raw.topk(min(count, len(raw)))
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))


def _given_up(job: DecodingJob) -> bool:
    """True if the client cancelled `job`; then also notify all that wait for the job's end."""
    return job.done.cancelled() and not job.done.set_running_or_notify_cancel()


def _cut(job: DecodingJob, seen: int) -> bool:
    """Cut the text before the first stop string that ends after byte `seen`; returns True if there was one."""
    positions = [job.text.find(stop, max(0, seen - len(stop) + 1)) for stop in job.stops]
    starts = [start for start in positions if start >= 0]
    if starts:
        del job.text[min(starts) :]
    return bool(starts)


class Batcher:
    """The thread that runs all lanes."""

    def __init__(self, threads: int) -> None:
        self.counters = Counters()
        self._threads = threads
        self._inbox: queue.SimpleQueue[tuple[Lane, DecodingJob] | None] = queue.SimpleQueue()
        self._worked: WeakKeyDictionary[Lane, float] = WeakKeyDictionary()
        """When each lane that may hold cached prefixes last had a job."""
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, lane: Lane, job: DecodingJob) -> None:
        """Queue `job` on `lane`; cancelling its future takes it out of the batch."""
        self._inbox.put((lane, job))

    def close(self) -> None:
        """Stop the thread after its current step; unfinished jobs end with `Unavailable`."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        busy: list[Lane] = []
        with torch.inference_mode():
            while self._receive(busy):
                for lane in busy:
                    try:
                        lane.advance(self.counters)
                    except Exception as error:
                        # Every waiting client gets the error, and the server continues.
                        logger.exception("a batch failed")
                        lane.fail(error)
                    del lane  # While this thread waits, it must not keep weights that nobody else has.
                self._worked.update(dict.fromkeys(busy, time.monotonic()))
                busy = [lane for lane in busy if lane.busy]
                self._rest_idle()
        while not self._inbox.empty():
            if item := self._inbox.get():
                item[0].waiting.append(item[1])
                busy.append(item[0])
        for lane in busy:
            lane.fail(Unavailable("the server is shutting down"))

    def _receive(self, busy: list[Lane]) -> bool:
        """Move arrived jobs to their lanes; if no lane is busy, wait for a job. Returns False to stop."""
        while True:
            try:
                item = self._inbox.get(block=not busy, timeout=IDLE_SECONDS if self._worked else None)
            except queue.Empty:
                if busy:
                    return True
                self._rest_idle()
                continue
            if item is None:
                return False
            lane, job = item
            lane.waiting.append(job)
            if lane not in busy:
                busy.append(lane)

    def _rest_idle(self) -> None:
        """Let the lanes rest that had no job for `IDLE_SECONDS`."""
        now = time.monotonic()
        idle = [lane for lane, worked in self._worked.items() if not lane.busy and now - worked >= IDLE_SECONDS]
        for lane in idle:
            lane.rest()
            del self._worked[lane]
        if idle:
            release_memory()
