"""Runs for tests of the viewer, with markup planted wherever a model, a task or a folder can put text."""

from pathlib import Path

from record_kit import answered

from chimera.config.tree import Config
from chimera.run.directory import Run
from evaluation.traces.spans import Position, exchange_span, operation_span, outcome_span, write
from evaluation.traces.token_records import Objective, TokenRecord, tokens_file, write_tokens
from evaluation.traces.token_texts import load_tokenizer

PLANTED = "<script>window.planted = 1</script><img src=x onerror='window.planted = 1'>"
"""Would set `window.planted` if it became markup."""
ODD_FOLDER = "<img src=x onerror=alert(1)>"
KEY = "a-key-of-this-test"
PORT = 8765
HOST = f"http://127.0.0.1:{PORT}"
ANSWER = '{"evidence":["It fell."],"comparison":"c","claim":"d","answer":"yes"}'

SAID = {"author": "Geneticist", "evidence": ["It fell."], "comparison": "c", "claim": "d"}
LOST_BY_THE_REFINER = {
    "research_goal": "Does t-1 work?", "initial_hypotheses": [{**SAID, "answer": "no"}, {**SAID, "answer": "yes"}],
    "selected_hypothesis": {**SAID, "answer": "yes"}, "refined_hypothesis": {**SAID, "answer": "no"},
}  # fmt: skip


def rollout(number, phase, task, **changes):
    values = {
        "phase": phase, "seed": 1, "parts": {"alignment": 1.0, "clarity": 0.0}, "seconds": 1.0,
        "visits": {"Geneticist/1": {"calls": 2, "prompt": 7, "completion": 3}, "Supervisor/1": {"calls": 1}},
        "tool_calls": {"Geneticist": 1}, "outputs": {"research_goal": f"Does {task} work?"}, **changes,
    }  # fmt: skip
    return answered(f"ro-{number:012x}", task, **values)


def learned(run, record, text=ANSWER):
    """A trace of one call of the refiner, from which an update of the phase "ppo" learned."""
    ids = load_tokenizer("nano").encode(text, add_special_tokens=False).ids
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", "token_ids": ids}
    call = {
        "kind": "ModelCall", "role": "HypothesisRefiner", "model": "senior", "visit": 1, "step": 1, "response_id": "r",
        "weights_version": PLANTED, "finish_reason": "stop", "prompt_tokens": 1, "completion_tokens": len(ids),
        "seconds": 0.1, "parsed": True, "repair": False, "error": None, "attempt": 1,
    }  # fmt: skip

    def at(number):
        return Position(record.rollout_id, "at-1", number, 1.0, 2.0)

    request = {"messages": [{"role": "user", "content": f"a question {PLANTED}"}]}
    visit = {"role": "HypothesisRefiner", "model": "senior", "visit": 1, "attempt": 1}
    spans = [
        exchange_span(at(1), request, {"id": "r", "prompt_token_ids": [5, 6, 7], "choices": [choice]}),
        operation_span(at(2), "HypothesisRefiner", visit, ["r"]),
        outcome_span(at(3), {"calls": [call]}),
    ]
    write(spans, run.path / record.trace)
    many = [0.25] * len(ids)
    objective = Objective(0.5, 1.0, 1.0, 4.0, 0.2, 0.28, 3.0)
    tokens = TokenRecord(
        record.rollout_id, "r", "HypothesisRefiner", 1, 1, 1, 0.5, "v", [1.0] * len(ids), many, [-1.0] * len(ids),
        objective=objective,
    )  # fmt: skip
    write_tokens([tokens], tokens_file(run.path, "ppo", 1))


def make_runs(folder: Path) -> Path:
    """Two runs, "first" with six rollouts of three stages and a verdict, "second" with two, and an odd folder."""
    with Run.create("first", Config(runs_dir=folder)) as run:
        run.ledger("planned", phases=["gather", "ppo"])
        run.ledger("phase_started", phase="gather")
        records = [
            rollout(1, "gather", "t-1", trace="traces/gather/a.jsonl.gz"),
            rollout(2, "gather", f"t-2{PLANTED}", answer="no", decision="NO-GO", reward=0.25, veto=f"issue {PLANTED}",
                    outputs={"research_goal": PLANTED, "final_rationale": PLANTED}),
            rollout(3, "gather", "t-3", status="failed", error=f"HypothesisRefiner: timed out after 17 s {PLANTED}",
                    answer=None, decision=None, reward=None, parts={}),
            rollout(4, "gate-base", "t-1", reward=0.5, answer="no", outputs=LOST_BY_THE_REFINER),
            rollout(5, "gate-ppo", "t-1", reward=0.75),
            rollout(6, "gate-ppo", "t-9", reward=0.5, decision="UNDECIDED"),
        ]  # fmt: skip
        for one in records:
            run.append_rollout(one.dump(), phase=one.phase)
            run.append_metrics({"phase": "rollout", "step": 1, "rollout_id": one.rollout_id, "of": one.phase})
        learned(run, records[0])
        for step in (1, 2):
            run.append_metrics({"phase": "ppo", "step": step, "branches/value": 0.5 + step})
        run.ledger("phase_finished", phase="gather", figures={})
        run.ledger("phase_started", phase="ppo")
        policy = {"part": "weights", "target": "refiner", "version": "refiner@ppo-1", "folder": "models/refiner/ppo-1"}
        run.ledger("rolled_back", phase="ppo", policy=policy, verdicts={"base": "worse"}, reasons=["reward fell"])
        run.ledger("phase_finished", phase="ppo", figures={}, kept=False)
        (run.path / "gate").mkdir()
        (run.path / "gate" / "ppo.json").write_text(
            '{"comparisons": [{"before": "base", "after": "ppo", "verdict": "worse", "alignment": null, "reward": '
            '{"before": 0.5, "after": 0.625, "difference": 0.125, "low": -0.1, "high": 0.3, "verdict": "worse"}}]}'
        )
        (run.path / "report").mkdir()
        (run.path / "report" / "index.html").write_text("<p>The report</p>")
    with Run.create("second", Config(runs_dir=folder, seed=7)) as run:
        for one in (rollout(11, "gather", "t-1", answer="no", reward=0.5), rollout(12, "gather", "t-5")):
            run.append_rollout(one.dump(), phase=one.phase)
    odd = folder / ODD_FOLDER
    odd.mkdir()
    (odd / "config.yaml").write_text("seed: 1\n")
    return folder
