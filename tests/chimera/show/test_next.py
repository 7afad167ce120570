"""The commands that a command ends with can be typed as they stand."""

import shlex
from pathlib import Path

from chimera.show.next import after_evaluation, after_training, print_next


def test_commands_name_the_run_and_where_it_is_if_that_is_not_the_usual_folder(capsys):
    assert after_training("mine", Path("runs"))[0] == "python -m chimera.eval --run mine"
    elsewhere = after_training("mine", Path("/data/my runs"))[0]
    assert shlex.split(elsewhere) == ["python", "-m", "chimera.eval", "--run", "mine", "runs_dir=/data/my runs"]
    found = after_evaluation("mine", Path("runs/mine/report"), Path("runs"))
    assert found == ["python -m chimera.trace mine", "python -m chimera.eval --verify runs/mine/report"]
    print_next(found)
    assert capsys.readouterr().out.splitlines() == [f"next: {found[0]}", f"      {found[1]}"]
