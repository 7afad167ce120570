"""`python -m chimera.train`: run the phases; the society answers tasks, and its roles learn from the traces."""

import argparse
import gc
import shlex
from typing import TYPE_CHECKING

from chimera.config.arguments import add_config_arguments
from chimera.core.cli import add_trust_argument, parse_arguments, run_command
from chimera.core.errors import ConfigError

if TYPE_CHECKING:
    from chimera.config.tree import Config
    from chimera.data.tasks import Dataset


def main(argv: list[str]) -> int | None:
    parser = argparse.ArgumentParser(prog="python -m chimera.train", description=__doc__)
    parser.add_argument(
        "--phases",
        metavar="A,B",
        help="which entries of pipeline to run, in this order; all of them without it",
    )
    parser.add_argument("--name", help="the run's name; made from the time without it")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run --name, or the latest: finished rollouts and phases are kept, settings too unless given",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="say whether all phases can run with this configuration, and start nothing",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a trial of all phases: the sizes of the configuration are lowered to one to three minutes on two cores; "
        "its figures mean little",
    )
    add_trust_argument(parser)
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    if arguments.quick and arguments.resume:
        raise ConfigError("--resume goes on with the run's own settings: leave --quick out")
    if not arguments.check:
        print("loading configuration, data and libraries ...", flush=True)
    from training.configuration import load_config

    config = load_config(arguments.config, arguments.overrides, trial=arguments.quick)
    name, phase_list = arguments.name, arguments.phases
    if arguments.name is not None and not arguments.resume:
        from chimera.run.directory import check_free

        check_free(arguments.name, config.runs_dir)

    gc.disable()  # The collector would look through all that is loaded again and again: a third of the imports' time.
    from agents.person import check_unattended
    from chimera.config.sections.bundled import unread
    from chimera.config.trust import options_to_use
    from chimera.core.machine import allow_files
    from chimera.core.secrets import load_secrets
    from chimera.data.tasks import check_guidance, load
    from chimera.run.chain import head
    from chimera.run.directory import LEDGER, TRIAL, Run, is_trial
    from chimera.run.seals import seal
    from chimera.serving.embedded.checkpoint import check_trainable, locate
    from chimera.serving.process import check_models
    from chimera.show.next import after_interruption, after_training, print_next, runs_option
    from evaluation.measures.families import check as check_families
    from training.gate.decide import check as check_gate
    from training.phases import at_most, check_rollouts, choose_names, expected_costs, make_phases
    from training.session import train

    gc.enable()
    if arguments.resume:
        name, phase_list, config = _continued(arguments, config)
    names = choose_names(phase_list, config)
    secrets = load_secrets(config.secret_names())
    dataset = load(config.data)
    if arguments.quick:
        config = _fitted(config, dataset, arguments)
    for sentence in check_models(config.served(), secrets, learning=config.learning()):
        print(f"note: {sentence}", flush=True)
    if config.roles.foreign():
        from agents.tools.toolbox import check_tools

        check_tools(config.tools, config.roles, secrets)
    allow_files(config.rollouts.concurrency)
    check_unattended(config.society)
    check_guidance(config.society, dataset)
    check_families(config)
    phases = make_phases(names, config, dataset)
    for path in {config.models[phase.plan.slot].path for phase in phases if phase.algorithm.part == "weights"}:
        check_trainable(locate(path))
    check_rollouts(phases, recorded=arguments.resume and _has_rollouts(name, config))
    if any(phase.learns for phase in phases):
        check_gate(config, dataset)
    if toy := unread(config.used(), dataset.source):
        print(f"warning: {toy}", flush=True)
    if arguments.check:
        if arguments.resume and (config.runs_dir / name / "config.yaml").exists():
            Run.open(name, config.runs_dir).changed(config)
        print(f"nothing was started: {', '.join(names)} can run on {dataset.describe()}")
        print(at_most(phases, config))
        return 0
    with Run.create(name, config, resume=arguments.resume) as run:
        trial = arguments.quick or is_trial(run.events())
        costs = expected_costs(phases, config)
        run.ledger("planned", phases=list(names), families=config.evaluation.families, trial=trial, costs=costs)
        print(f"run {run.path}: {', '.join(names)} on {dataset.describe()}", flush=True)
        if arguments.resume and (changes := _own_settings(config)):
            print(f"its own settings, which are not today's defaults: {changes}", flush=True)
        if trial:
            print(TRIAL, flush=True)
        print(f"to look at it, now and later: python -m chimera view{runs_option(config.runs_dir)}", flush=True)
        try:
            try:
                train(run, config, dataset, phases, secrets)
            finally:
                for changed in seal(run):
                    print(f"warning: {changed} was changed after the run had written it")
        except KeyboardInterrupt:
            print_next(after_interruption(run.name, config.runs_dir, _needed_again(config, arguments)))
            raise
        print(f"ledger: last hash {head(run.path / LEDGER)} (publish it, and a rebuilt history is seen)")
        if trial:
            print(f"{TRIAL}; the same command without --quick makes a run whose figures mean more")
        print_next(after_training(run.name, config.runs_dir, options_to_use(config)))
    return 0


def _fitted(config: "Config", dataset: "Dataset", arguments: argparse.Namespace) -> "Config":
    """The configuration of a trial with sizes that the data are large enough for; a line says which were lowered."""
    from chimera.config.trial import too_large
    from training.configuration import load_config

    overrides, counts = arguments.overrides, {"train": len(dataset.train), "validation": len(dataset.validation)}
    lowered = [f"{key}={limit}" for key, limit in too_large(config, overrides, **counts).items()]
    if not lowered:
        return config
    print(f"the trial takes no more tasks than there are: {' '.join(lowered)}", flush=True)
    return load_config(arguments.config, [*overrides, *lowered], trial=True)


def _needed_again(config: "Config", arguments: argparse.Namespace) -> list[str]:
    """The arguments without which `--resume` could not go on: a run's folder keeps no secrets and is not trusted.

    A configuration file is read in place of the run's settings, so the settings of the command line belong to it.
    """
    from chimera.config.loader import effective
    from chimera.config.trust import options_to_use
    from chimera.core.secrets import redact_tree

    values = effective(config)
    if redact_tree(values) == values:
        return [options for options in [options_to_use(config, "training").strip()] if options]
    file = [] if arguments.config is None else ["--config", shlex.quote(str(arguments.config))]
    return [*file, *(shlex.quote(override) for override in arguments.overrides if "runs_dir" not in override)]


def _own_settings(config: "Config") -> str:
    """The settings that differ from the defaults. A run keeps those of the version that made it."""
    from chimera.config.differences import differences, first_few
    from chimera.config.loader import absent, effective
    from chimera.core.secrets import redact_tree
    from training.configuration import load_config

    changes = differences(effective(load_config()), redact_tree(effective(config)))
    left_out = {"runs_dir", *absent(config)}
    shown = {key: pair for key, pair in changes.items() if key not in left_out}
    return first_few([f"{key}={setting} ({default})" for key, (default, setting) in shown.items()])


def _has_rollouts(name: str, config: "Config") -> bool:
    """True if the run to continue, which may have been stopped early, has rollouts of a phase."""
    from chimera.run.directory import Run

    run = Run(config.runs_dir / name)
    return any(run.rollouts_file(phase).exists() for phase in config.pipeline)


def _continued(arguments: argparse.Namespace, command_line: "Config") -> "tuple[str, str | None, Config]":
    """Name, phases and configuration of the run to continue; the command line overrides those of the run.

    A run that was killed before it had recorded them begins with those of the command line.
    """
    from chimera.run.directory import SAFE_NAME, Run, is_blank
    from chimera.run.inputs import check_inputs
    from training.configuration import load_config

    name = arguments.name
    folder = command_line.runs_dir / name if name and SAFE_NAME.fullmatch(name) else None
    if folder is not None and folder.is_dir() and not (folder / "config.yaml").exists() and is_blank(folder):
        print(f"run {name} was stopped before its settings were written: it begins with the settings given now")
        return name, arguments.phases, command_line
    run = Run.open(arguments.name, command_line.runs_dir) if arguments.name else Run.latest(command_line.runs_dir)
    plans = [event["phases"] for event in run.events() if event["event"] == "planned"]
    phases = arguments.phases or (",".join(plans[-1]) if plans else None)
    if phases is None:
        print(f"run {run.name} was stopped before its phases were written: it runs all of them")
    if arguments.config is None:
        from chimera.config.tree import load_config as load_plain
        from chimera.config.trust import check_trusted

        check_trusted(
            load_plain(run.config_file, arguments.overrides, recorded=True),
            run.config_file,
            "training",
            arguments.trust,
            arguments.overrides,
        )
    config = load_config(arguments.config or run.config_file, arguments.overrides)
    check_inputs(run.events(), run.config, config)
    # Use the folder in which the run was found, because it may have been moved.
    return run.name, phases, config.model_copy(update={"runs_dir": command_line.runs_dir})


if __name__ == "__main__":
    run_command(main)
