"""`python -m chimera.data`: shows the tasks."""

from chimera.core.cli import run_command
from chimera.data.tasks import main

if __name__ == "__main__":
    run_command(main)
