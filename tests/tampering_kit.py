"""How somebody tampers with a finished run and its report: changes of files, entries, traces, plans and the ledger."""

import dataclasses
import gzip
import json
from hashlib import sha256

from chimera.run.chain import link, read_chain
from evaluation.conduct.recorded_study import load_study
from evaluation.records.study import Plan
from evaluation.report.build import build
from evaluation.report.files import write_report
from evaluation.verify.asked import RunThen

REPORT = "report/report.json"


def read(folder, name=REPORT):
    return json.loads((folder / name).read_text())


def rollouts(folder, stage="base"):
    plan = read(folder)["plan"]
    return f"rollouts/eval-{plan['split']}-{stage}-at-{plan['stages'][0]['temperature']:g}.jsonl"


def side(folder, name):
    return f"evaluation/{read(folder)['plan']['split']}/{name}.jsonl"


def lines(folder, name, change):
    """Rewrite a file of lines: `change` gets the list of them."""
    file = folder / name
    file.write_text("".join(f"{line}\n" for line in change(file.read_text().splitlines())))


def compact(record):
    """As the run writes it, so that nothing changes but what is meant to."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def records(folder, name, change, at=0):
    """Rewrite one JSON line of a file."""

    def changed(given):
        record = json.loads(given[at])
        change(record)
        return [*given[:at], compact(record), *given[at:][1:]]

    lines(folder, name, changed)


def report(folder, change):
    """Rewrite report.json, and the pages that show it."""
    found = read(folder)
    change(found)
    write_report(found, folder / "report")


def replace(folder, name, old, new):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def trace_of(folder, at=0):
    return json.loads((folder / rollouts(folder)).read_text().splitlines()[at])["trace"]


def trace(folder, change, at=0):
    """Rewrite the spans of a rollout's trace."""
    file = folder / trace_of(folder, at)
    spans = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    file.write_bytes(gzip.compress("".join(json.dumps(span) + "\n" for span in change(spans)).encode()))


def outcome(spans):
    return next(span for span in spans if "agentlightning.object.json" in span["attributes"])


def everywhere(folder, change, at=0):
    """Rewrite a rollout's record and the outcome in its trace alike."""

    def in_trace(spans):
        attributes = outcome(spans)["attributes"]
        told = json.loads(attributes["agentlightning.object.json"])
        change(told)
        attributes["agentlightning.object.json"] = json.dumps(told)
        return spans

    records(folder, rollouts(folder), change, at)
    trace(folder, in_trace, at)


def answered(folder, role, old, new):
    """Rewrite what a model answered, in the trace alone."""

    def change(spans):
        for span in spans:
            attributes = span["attributes"]
            key = "llm.hosted_vllm.choices"
            asked = f"You are the {role}." in attributes.get("llm.hosted_vllm.messages", "")
            if asked and old in attributes.get(key, ""):
                attributes[key] = attributes[key].replace(old, new)
                return spans
        raise AssertionError(f"no answer of {role} holds {old}")

    trace(folder, change)


def replan(folder, change):
    """A report of another plan, computed by the rules."""
    found = read(folder)
    plan = change(Plan.load(found["plan"]))
    study = load_study(RunThen(folder, called="finished", sizes=dict.fromkeys(found, 0) | _sizes(folder)), plan)
    again = build(study, (), folder / "report") | {"plots": found["plots"], "written": found["written"]}
    again["settings"] = found["settings"]
    write_report(again, folder / "report")


def _sizes(folder):
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in folder.rglob("*.jsonl")}


def tasks(choose):
    return lambda folder: replan(folder, lambda plan: dataclasses.replace(plan, tasks=tuple(choose(plan.tasks))))


def stages(choose):
    return lambda folder: replan(folder, lambda plan: dataclasses.replace(plan, stages=tuple(choose(plan.stages))))


def chain(folder, change):
    """Rewrite the ledger's events and compute all its hashes again, as somebody does who knows how."""
    file = folder / "ledger.jsonl"
    events = change([entry.record for entry in read_chain(file)])
    data = b""
    for event in events:
        data += link(json.dumps(event).encode(), data[-200:]) + b"\n"
    file.write_bytes(data)


def rebuild(folder, change=lambda events: events):
    """The ledger anew, so that it holds the hash of every file as it is now."""
    from chimera.run.hashes import hash_artifact
    from evaluation.verify.asked import hashes_of

    def files(report):
        found = (
            file for file in sorted(folder.rglob("*")) if file.is_file() and file.name not in (".lock", "ledger.jsonl")
        )
        names = {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}
        names = {
            name: data
            for name, data in names.items()
            if name.startswith("report/") == report and not name.startswith("logs/")
        }
        return {name: [sha256(data).hexdigest(), len(data)] for name, data in names.items()}

    def events(given):
        kept = [event for event in change(given) if event["event"] != "sealed"]
        for event in kept:
            event.update({"artifacts": {name: hash_artifact(folder / name) for name in event.get("artifacts", {})}})
            if event["event"] == "evaluated":
                event["report"]["files"] = hashes_of(folder / "report")
        last = next(place for place, event in enumerate(kept) if event["event"] == "evaluated")
        before, after = ({"event": "sealed", "files": files(report)} for report in (False, True))
        return [*kept[:last], before, *kept[last:], after]

    chain(folder, events)


def place(folder, name):
    return name(folder) if callable(name) else name


def changed_lines(name, change):
    return lambda folder: lines(folder, place(folder, name), change)


def replaced(name, old, new):
    return lambda folder: replace(folder, place(folder, name), old, new)


def set_in(record, path, value):
    *keys, last = path
    for key in keys:
        record = record[key]
    record[last] = value


def reported(*path, to):
    return lambda folder: report(folder, lambda found: set_in(found, path, to))


def recorded(*path, to):
    return updated(rollouts, lambda record: set_in(record, path, to))


def updated(name, change):
    return lambda folder: records(folder, place(folder, name), change)


def scored(name, to):
    """The score of impact in the first line of what `evaluation` holds under `name`."""
    return updated(lambda folder: side(folder, name), lambda row: set_in(row, ("scores", "impact"), to))


def told(*path, to):
    return lambda folder: everywhere(folder, lambda record: set_in(record, path, to))


def appended(name, text="{}\n"):
    def tamper(folder):
        file = folder / place(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as opened:
            opened.write(text)

    return tamper


def removed(name):
    return lambda folder: (folder / place(folder, name)).unlink()
