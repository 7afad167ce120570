"""`python -m chimera.trace RUN [ROLLOUT]`: one rollout step by step, or the list of a run's rollouts."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.core.cli import parse_arguments
from chimera.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from chimera.run.directory import Run
    from evaluation.records.rollouts import RolloutRecord
    from evaluation.traces.conversation import LearnedTokens
    from evaluation.traces.tree import Tree


def main(argv: list[str]) -> int | None:
    arguments = _parse(argv)
    from rich.console import Console

    from chimera.core.secrets import load_secrets
    from evaluation.traces.rollout_index import find, recorded_rollouts

    run = _run(arguments)
    load_secrets(run.config.secret_names())  # `redact` then hides them in all output.
    console = Console(highlight=False)
    records = recorded_rollouts(run, arguments.phase)
    if arguments.wrong:
        _list_wrong(console, run, records)
        return None
    if arguments.rollout is None:
        _list(console, run, records)
        return None
    matches = find(records, arguments.rollout)
    if len(matches) > 1:
        _list(console, run, matches)
        return None
    _show(console, run, matches[0], arguments)
    return None


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chimera.trace", description=__doc__)
    parser.add_argument("run", help="the run's name, or 'latest'")
    parser.add_argument("rollout", nargs="?", help="its id, the beginning of one, or a task's id; without it a list")
    parser.add_argument("--phase", help="only rollouts of this phase, such as gather, ppo or gate-base")
    parser.add_argument(
        "--wrong", action="store_true", help="list only the wrong answers, each with the step that lost it"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page instead")
    parser.add_argument("--messages", action="store_true", help="show what each model was sent, too")
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="show each token that PPO learned from, too: advantage, probability before and after the "
        "update, share of its loss and of its gradient",
    )
    parser.add_argument(
        "--gradient",
        action="store_true",
        help="also compute the gradient of each call that PPO learned from, by one backward pass with the weights "
        "before and after its update, as far as the run has kept them (shows tokens too)",
    )
    parser.add_argument("--runs-dir", metavar="DIR", help="where runs are (as runs_dir=DIR)")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="runs_dir=DIR")
    arguments = parse_arguments(parser, argv)
    if arguments.rollout is not None and "=" in arguments.rollout:
        arguments.overrides.insert(0, arguments.rollout)
        arguments.rollout = None
    arguments.tokens = arguments.tokens or arguments.gradient
    if arguments.wrong and arguments.rollout is not None:
        raise ConfigError(f"--wrong lists a run's wrong answers: leave {arguments.rollout!r} out")
    if arguments.rollout is None:
        for name in ("html", "messages", "gradient", "tokens"):
            if getattr(arguments, name):
                raise ConfigError(f"--{name} is about one rollout: name it after the run's name")
    return arguments


def _run(arguments: argparse.Namespace) -> "Run":
    """Open the run that the command line names; raises RunError if there is no such run."""
    from chimera.config.arguments import config_from
    from chimera.run.directory import Run

    arguments.config = None
    config = config_from(arguments, own_question=True, reads=("runs_dir",))
    folder = Path(arguments.runs_dir or config.runs_dir)
    return Run.latest(folder) if arguments.run == "latest" else Run.open(arguments.run, folder)


def _list_wrong(console: "Console", run: "Run", records: "Sequence[RolloutRecord]") -> None:
    """Print the wrong answers with who lost each, then how many each step lost."""
    from evaluation.causes.lost import TITLES, who_lost
    from evaluation.measures.metrics import answer_of

    wrong = [record for record in records if answer_of(record) != record.label]
    steps = [who_lost(record) for record in wrong]
    if wrong:
        _list(console, run, wrong, lost=[step or "not recorded" for step in steps])
    print(f"{len(wrong)} of {len(records)} answers are wrong", file=console.file)
    for step, title in TITLES.items():
        if step in steps:
            print(f"  {steps.count(step)} lost by {title}", file=console.file)


def _list(
    console: "Console", run: "Run", records: "Sequence[RolloutRecord]", *, lost: Sequence[str] | None = None
) -> None:
    """Print one line for each rollout, and the command that shows one; with `lost` the step that lost each, too."""
    from chimera.show.card import printable
    from chimera.show.next import runs_option

    rows = [_HEADER, *map(_row, records)]
    if lost is not None:
        rows = [(*row[:-1], step, row[-1]) for row, step in zip(rows, ("lost by", *lost), strict=True)]
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    for *cells, last in rows:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        print(printable(f"{line}  {last}"), file=console.file)
    phases = len({record.phase for record in records})
    where = runs_option(run.path.parent)
    for line in (
        "",
        f"{len(records)} rollouts of {phases} phase{'s' if phases > 1 else ''} of run {run.name}; repeats in brackets",
        f"one of them: python -m chimera.trace {run.name} {records[-1].rollout_id}{where} [--html FILE]",
    ):
        print(line, file=console.file)


_HEADER = ("phase", "rollout", "task", "answer", "label", "decision", "reward", "status")


def _row(record: "RolloutRecord") -> tuple[str, ...]:
    from evaluation.traces.text import number

    task = f"{record.task_id} ({record.repeat})" if record.repeat else record.task_id
    status = record.status if record.error is None else f"{record.status}: {record.error}"
    answer, decision = record.answer or "none", record.decision or "none"
    return (record.phase, record.rollout_id, task, answer, record.label, decision, number(record.reward), status)


def _show(console: "Console", run: "Run", record: "RolloutRecord", arguments: argparse.Namespace) -> None:
    """Show one rollout on the terminal or write it as a page."""
    from evaluation.traces.conversation import LearnedTokens
    from evaluation.traces.rollout_index import read_tree

    tree = read_tree(run, record)
    needs_tokens = arguments.tokens or arguments.html is not None
    pieces, missing = ({}, None)
    if needs_tokens:
        from evaluation.traces.token_texts import learned_texts

        pieces, missing = learned_texts(run, tree)
    gradients: Mapping[str, str] = {}
    if arguments.gradient:
        from training.ppo.gradients import gradient_lines

        gradients = gradient_lines(run, tree, pieces)
    if arguments.html is not None:
        _write_page(arguments.html, run, tree, LearnedTokens(pieces, gradients), missing)
        console.print(f"wrote {arguments.html}", soft_wrap=True, markup=False)
        return
    from chimera.show import terminal
    from evaluation.traces.conversation import conversation

    if missing:
        console.print(missing, soft_wrap=True, markup=False)
    learned = LearnedTokens(pieces, gradients) if arguments.tokens else None
    terminal.show(console, conversation(tree, run=run.name, learned=learned, messages=arguments.messages))


def _write_page(path: Path, run: "Run", tree: "Tree", learned: "LearnedTokens", note: str | None) -> None:
    from evaluation.traces.conversation import page

    text = page(tree, run=run.name, learned=learned, note=note)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RunError(f"--html={path} cannot be written ({error.strerror}): name another file") from error


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
