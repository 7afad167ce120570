"""`python -m chimera.train`: run the phases; the society answers tasks, and its roles learn from the traces."""

import argparse

from chimera.cli import add_config_arguments, config_from, parse_arguments, run_command


def main(argv: list[str]) -> int | None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m chimera.train", description=__doc__)
    parser.add_argument("--phases", metavar="A,B", help="which phases to run, in this order; all of them without it")
    parser.add_argument("--name", help="the run's name; made from the time without it")
    add_config_arguments(parser)
    arguments = parse_arguments(parser, argv)
    config = config_from(arguments)

    from chimera.data import load
    from chimera.runs import Run
    from chimera.secrets import api_key_names, load_secrets
    from chimera.serving.process import check_models
    from training.phases import check_names, make_phases
    from training.session import train

    phases = make_phases(check_names(arguments.phases))
    secrets = load_secrets(api_key_names(config.models.model_dump()))
    dataset = load(config.data)
    check_models(config.models, secrets)
    for phase in phases:
        phase.check(config, dataset)
    with Run.create(arguments.name, config) as run:
        print(f"run {run.path}: {', '.join(phase.name for phase in phases)} on {dataset.describe()}", flush=True)
        train(run, config, dataset, phases, secrets)
    return 0


if __name__ == "__main__":
    run_command(main)
