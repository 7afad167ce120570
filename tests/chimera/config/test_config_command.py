"""`python -m chimera config`: which keys it prints, for programs and for people."""

import sys

import pytest
from message_kit import refused

from chimera.config.command import main
from chimera.config.loader import keys
from chimera.core.errors import ConfigError
from training.configuration import load_config


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    main([*argv])
    return capsys.readouterr().out.splitlines()


def test_a_program_reads_one_line_a_key(capsys: pytest.CaptureFixture[str]):
    lines = printed(capsys, "--all")
    assert [line.split()[0] for line in lines] == [key.name for key in keys(load_config(), examples=True)]
    (line,) = (line for line in lines if line.startswith("pipeline.sft.lr "))
    assert "  0.001  (number > 0 <= 10)  peak learning rate" in line


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("gate", {"gate.margin", "gate.tasks"}),
        ("ppo.", {"pipeline.ppo.lr", "pipeline.ppo.verl"}),
        ("ppo.lr", {"pipeline.ppo.lr"}),
        ("lr", {"pipeline.sft.lr", "pipeline.bandit.lr"}),
    ],
)
def test_a_part_chooses_the_keys_that_have_it(capsys: pytest.CaptureFixture[str], part: str, names: set[str]):
    shown = {line.split()[0] for line in printed(capsys, part)}
    assert names <= shown
    assert {name for name in shown if f".{part.strip('.')}." not in f".{name}."} == set()


@pytest.mark.parametrize(
    ("part", "near"), [("pppo", "'ppo'"), ("learning_rate", "'lr'"), ("gate.task", "'gate.tasks'")]
)
def test_an_unknown_part_is_answered_with_the_nearest(part: str, near: str):
    with refused(ConfigError, f"'{part}'", near):
        main([part])
    with refused(ConfigError, "'qqzz'"):
        main(["qqzz"])


def test_a_terminal_of_80_columns_shows_whole_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = printed(capsys, "data")
    assert max(map(len, lines)) <= 80
    assert "    JSONL or Parquet file, a folder of them, or a data set of the hub as" in lines


def test_by_default_a_key_is_listed_once_and_only_if_it_exists(capsys: pytest.CaptureFixture[str]):
    rows = dict(line.split(maxsplit=1) for line in printed(capsys))
    assert rows["models.senior"] == "{like: junior}  (as models.junior)"
    assert "pipeline.ppo.lr" in rows
    assert rows["pipeline.design"].startswith("{")
    assert not {"models.junior.base_url", "pipeline.ppo.critic_lr", "pipeline.design.lr", "data.columns.goal"} & {*rows}
    common = {f"pipeline.{phase}.{key}" for phase in ("sft", "ppo") for key in ("algorithm", "shared")}
    assert common & {*rows} == {"pipeline.sft.algorithm", "pipeline.sft.shared"}
    assert rows["roles"].startswith("{Geneticist: {model: junior, ")
    assert {line.split()[0] for line in printed(capsys, "roles")} >= {"roles.Judge.model", "roles.Supervisor.tools"}
    assert rows["society.graph"].startswith("{choose: select, debate: 0, ")
    assert len(printed(capsys, "society.graph")) == 8
    (line,) = printed(capsys, "ppo.critic_lr")
    assert line.startswith("pipeline.ppo.critic_lr ")
