"""What reading a trace costs: our adapter beside Agent Lightning's TracerTraceToTriplet on the same trace.

A trace of one rollout is repeated within itself, so that it shows how the cost grows. Agent Lightning's adapter gets
the same calls as its own tracer would have written them, with token ids as lists; ours parses them from the gateway's
spans. Both give the same triplets, which is checked.

    python -m benchmarks.adapter [--tiny] [TRACE]

TRACE is a trace file of a run, runs/NAME/traces/PHASE/ID.jsonl.gz. Without one it is the newest below runs/ whose calls
have token ids. Where there is no such trace, one rollout is made with the bundled model.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from chimera.config.roles import JUNIORS
from chimera.config.sections.rollouts import RewardConfig
from training.learning import traces
from training.learning.adapter import HierarchicalTraceAdapter

# isort: split
import agentlightning as agl  # after training, which makes it leave out LiteLLM
from agentlightning.semconv import AGL_OBJECT

SENIORS = ("HypothesisRefiner", "ProtocolDesigner")
TIMES = (1, 4, 16, 64)
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="a trace file, runs/NAME/traces/PHASE/ID.jsonl.gz")
    parser.add_argument("--tiny", action="store_true", help="repeated 1 and 2 times, 1 round: shows that it runs")
    options = parser.parse_args()
    sizes, rounds = ((1, 2), 1) if options.tiny else (TIMES, ROUNDS)
    with tempfile.TemporaryDirectory() as scratch:
        path = options.trace or newest(Path("runs")) or made(Path(scratch))
        spans = traces.read(path)
    ours = HierarchicalTraceAdapter(RewardConfig(), SENIORS)
    print(f"{path.name}: {len(spans)} spans, {len(ours.adapt(spans))} senior calls; ms per 1,000 spans, processor time")
    compare(ours, spans, sizes, rounds)


def compare(ours: HierarchicalTraceAdapter, spans: list[agl.Span], sizes: tuple[int, ...], rounds: int) -> None:
    """Print the median time of each way to read the trace, for the trace repeated as often as each of `sizes` says."""
    theirs = agl.TracerTraceToTriplet(agent_match="|".join(SENIORS))
    print(f"{'spans':>7} {'adapt':>8} {'Tracer':>8} {'ratio':>6} {'sft':>8} {'ppo':>8}")
    for times in sizes:
        trace = repeated(spans, times)
        instrumented = traces.as_instrumented(trace)
        # Repeated, a rollout has one reward after each of its copies; theirs are matched by time, ours by number.
        assert ours.adapt(trace) == theirs.adapt(instrumented), "the two adapters give different triplets"
        reads = (
            (ours.adapt, trace),
            (theirs.adapt, instrumented),
            (partial(ours.adapt_for_sft, roles=JUNIORS), trace),
            (partial(ours.adapt_for_ppo, roles=SENIORS), trace),
        )
        seconds = [[timed(read, of) for read, of in reads] for _ in range(rounds)]
        adapt, tracer, sft, ppo = (
            1e6 * statistics.median(column) / len(trace) for column in zip(*seconds, strict=True)
        )
        ratio = adapt / tracer
        print(f"{len(trace):>7} {adapt:>8.1f} {tracer:>8.1f} {ratio:>6.2f} {sft:>8.1f} {ppo:>8.1f}")


def newest(runs: Path) -> Path | None:
    """The newest trace below `runs` of a finished rollout whose senior calls have token ids; None if there is none."""
    found = sorted(runs.glob("*/traces/*/*.jsonl.gz"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path for path in found if usable(traces.read(path))), None)


def usable(spans: list[agl.Span]) -> bool:
    """True if the rollout finished at its first attempt and all calls of seniors have token ids."""
    calls = traces.model_calls(spans, roles=SENIORS)
    reported = [span for span in spans if span.name == AGL_OBJECT]
    return len(reported) == 1 and bool(calls) and all(call.prompt_ids and call.response_ids for call in calls)


def made(folder: Path) -> Path:
    """The trace of one rollout, made now with the bundled model.

    Raises:
        SystemExit: The rollout failed, so its trace cannot be compared.
    """
    print("no trace below runs/ has token ids: making one rollout with the bundled model")
    settings = [f"runs_dir={folder}", "gather.tasks=1", "rollouts.runners=1", "wandb.mode=disabled"]
    command = [sys.executable, "-m", "chimera.train", "--phases", "gather", *settings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = newest(folder)
    if found is None:
        sys.exit("the rollout that was made failed: give the trace of a finished rollout as argument")
    return found


def repeated(spans: list[agl.Span], times: int) -> list[agl.Span]:
    """The rollout `times` times in a row as one trace: later visits, with calls, ids and times of their own."""
    length = max(span.sequence_id for span in spans)
    seconds = max(span.end_time or 0.0 for span in spans) - min(span.start_time or 0.0 for span in spans) + 1.0
    found = [again(span, copy, length, seconds) for copy in range(times) for span in spans if span.name != AGL_OBJECT]
    (reported,) = (span for span in spans if span.name == AGL_OBJECT)
    outcome = agl.get_object_value(reported)
    outcome["calls"] = [
        {**call, "visit": call["visit"] + 100 * copy, "response_id": f"{call.get('response_id', '')}-{copy}"}
        if call["kind"] == "ModelCall"
        else {**call, "visit": call["visit"] + 100 * copy}
        for copy in range(times)
        for call in outcome["calls"]
    ]
    last = again(reported, times - 1, length, seconds)
    last.attributes["agentlightning.object.json"] = json.dumps(outcome)
    return [*found, last]


def again(span: agl.Span, copy: int, length: int, seconds: float) -> agl.Span:
    attributes = dict(span.attributes)
    for key, value in attributes.items():
        if key.endswith("response_ids") and isinstance(value, list):
            attributes[key] = [f"{response}-{copy}" for response in value]
        elif key in ("llm.hosted_vllm.id", "gen_ai.response.id"):
            attributes[key] = f"{value}-{copy}"
        elif key == "visit" and isinstance(value, int):
            attributes[key] = value + 100 * copy
    return span.model_copy(
        update={
            "attributes": attributes,
            "span_id": f"{span.span_id}-{copy}",
            "parent_id": span.parent_id and f"{span.parent_id}-{copy}",
            "sequence_id": span.sequence_id + copy * length,
            "start_time": (span.start_time or 0.0) + copy * seconds,
            "end_time": (span.end_time or 0.0) + copy * seconds,
        }
    )


def timed(read, trace) -> float:
    started = time.process_time()
    read(trace)
    return time.process_time() - started


if __name__ == "__main__":
    main()
