"""What a run shows in W&B: the rows, tables and artifacts of its offline file."""

import base64
import hashlib
import json
import re
import tempfile
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from mirror_kit import POLICY, assert_rows, config_for, mirrored, offline_files, read_offline, wait_for, wandb_sync

from chimera.run.directory import Run
from training.watch.wandb.mirror import run_id
from training.watch.wandb.rows import COLUMNS

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """A run that was shown offline."""
    folder = tmp_path_factory.mktemp("runs")
    notes: list[str] = []
    config = config_for(folder)
    with pytest.MonkeyPatch.context() as patch, Run.create("shown", config) as run:
        patch.setattr("training.watch.wandb.feed.PROTOCOL_ROWS", 2)
        patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("temporary")))
        mirrored(run, config, {}, notes)
        assert not list(Path(tempfile.gettempdir()).glob("wandb-*/port"))
    (file,) = offline_files(run)
    return SimpleNamespace(run=run, config=config, notes=notes, data=read_offline(file))


def test_the_file_has_its_end_when_the_run_has_ended(offline):
    assert len(offline.data.exit) == 1


def test_every_line_is_a_row_over_its_phases_own_step(offline):
    assert_rows(offline.data.history)
    steps = {metric.glob_name: metric.step_metric for metric in offline.data.metric if metric.glob_name}
    assert steps == {
        "rollout/*": "rollout/index",
        "gather/*": "gather/step",
        "sft/*": "sft/step",
        "ppo/*": "ppo/step",
        "gate/*": "gate/step",
        "gate-base/*": "gate-base/step",
        "gate-sft/*": "gate-sft/step",
    }


def test_the_first_section_is_an_overview_and_most_metrics_have_no_chart_of_their_own(offline):
    data = offline.data
    rows = data.history
    assert rows[0]["1 overview/reward, last 30 rollouts"] == 0.5
    assert rows[2]["1 overview/reward, last 30 rollouts"] == pytest.approx(0.625)
    assert rows[2]["1 overview/failed, last 30 rollouts"] == pytest.approx(1 / 3)
    held_out = [
        (row["1 overview/stage"], row["1 overview/validation reward by stage"])
        for row in rows.values()
        if "1 overview/stage" in row
    ]
    assert held_out == [(0, 0.75), (1, 1.25)]
    hidden = {metric.glob_name or metric.name: metric.options.hidden for metric in data.metric}
    assert {"rollout/*", "sft/*", "sft/step", "gate/*"} <= {name for name, value in hidden.items() if value}
    shown = {name for name, value in hidden.items() if not value}
    assert {name.partition("/")[0] for name in shown if "overview" in name} == {"1 overview"}
    assert "sft/loss" in shown
    assert min(name.partition("/")[0] for name in shown) == "1 overview"


def test_rows_have_the_time_at_which_they_were_logged(offline):
    times = [datetime.fromisoformat(line["time"]).timestamp() for line in offline.run.metrics()]
    for number, row in offline.data.history.items():
        assert number == 4 or row["_timestamp"] == pytest.approx(times[number])


def test_protocols_are_a_table_with_what_became_of_them(offline):
    files = offline.run.path / "wandb" / "latest-run" / "files"
    table = json.loads((files / offline.data.history[4]["protocols/gather/path"]).read_text())
    assert table["columns"] == list(COLUMNS)
    assert [row[:6] for row in table["data"]] == [
        ["t2", "Does drug2 work?", "yes", "GO", "yes", 0.75],
        ["t0", "Does drug0 work?", "yes", "GO", "yes", 0.5],
    ]
    assert table["data"][0][-1] == "report harms; blind the raters"


def test_a_policy_is_an_artifact_by_reference_and_nothing_is_copied(offline):
    (artifact,) = [artifact for artifact in offline.data.artifact if artifact.type == "model"]
    weights = offline.run.path / POLICY.folder / "model.safetensors"
    (entry,) = artifact.manifest.contents
    assert entry.ref == weights.resolve().as_uri()
    assert entry.digest == base64.b64encode(hashlib.md5(weights.read_bytes()).digest()).decode()
    assert POLICY.version in artifact.aliases
    assert json.loads(artifact.metadata) == POLICY.dump()
    copies = [
        path for path in (offline.run.path / "wandb").rglob("*") if path.is_file() and path.stat().st_size >= 7000
    ]
    assert [path for path in copies if b"weightsweights" in path.read_bytes()] == []


def test_the_run_has_its_configuration_and_an_id_of_its_own(offline):
    (record,) = offline.data.run
    assert (record.run_id, record.display_name, record.project) == (run_id(offline.run), "shown", "chimera")
    config = {item.key: json.loads(item.value_json) for item in record.config.update}
    assert config["gate"]["tasks"] == offline.config.gate.tasks
    # Neither the machine nor the code is anybody's business.
    assert record.host == ""
    assert record.git.remote_url == ""


def test_the_user_is_told_how_to_watch_and_how_to_send(offline):
    from wandb.cli.cli import cli

    watch, send = offline.notes
    folder = Path(re.search(r"wandb leet (\S+)$", watch).group(1))
    assert (folder / "latest-run").resolve().is_dir()
    unsent = Path(re.search(r"wandb sync (\S+)$", send).group(1))
    assert list(unsent.glob("offline-run-*/run-*.wandb")) == offline_files(offline.run)
    assert "wandb leet ./wandb" in CliRunner().invoke(cli, ["leet", "--help"]).output


def test_the_file_can_be_watched_before_it_is_full(tmp_path):
    config = config_for(tmp_path, mode="offline")

    def watched(run, metrics):
        metrics.log("gather", None, {"reward": 0.5})
        wait_for(lambda: any(file.stat().st_size > 1000 for file in offline_files(run)))
        assert read_offline(*offline_files(run)).history[0]["gather/reward"] == 0.5

    with Run.create("again", config) as run:
        mirrored(run, config, {}, [], watched)


@pytest.mark.parametrize("sent_between", [True, False])
def test_a_second_start_writes_only_new_rows_so_that_wandb_gets_each_once(sent_between, server, tmp_path):
    config = config_for(tmp_path, mode="offline")

    def first(run, metrics):
        metrics.log("sft", 30, {"loss": 0.5})
        for stage in ("base", "sft"):
            metrics.log(f"gate-{stage}", None, {"reward": 1.0})

    def second(run, metrics):
        metrics.log("sft", None, {"conversations": 12})
        metrics.log("gate-ppo", None, {"reward": 1.5})

    with Run.create("again", config) as run:
        mirrored(run, config, {}, [], first)
    if sent_between:
        wandb_sync(run)
        assert sorted(server.rows) == sorted(read_offline(*offline_files(run)).history)
    with Run.create("again", config, resume=True) as run:
        mirrored(run, config, {}, [], second)
    before, after = map(read_offline, offline_files(run))
    assert before.run[0].run_id == after.run[0].run_id
    conversations, validation = after.history.values()
    assert conversations["sft/step"] == 30, "the phase's last step, which only the first start has written"
    assert validation["1 overview/stage"] == 2
    wandb_sync(run)
    assert server.refused == 0
    assert sorted(server.rows) == sorted([*before.history, *after.history])


def test_what_a_killed_start_left_torn_is_written_again(tmp_path):
    config = config_for(tmp_path, mode="offline")
    with Run.create("again", config) as run:
        mirrored(run, config, {}, [], lambda run, metrics: metrics.log("gather", None, {"reward": 0.5}))
        (file,) = offline_files(run)
        file.write_bytes(file.read_bytes()[:900])
    with Run.create("again", config, resume=True) as run:
        mirrored(run, config, {}, [], lambda run, metrics: metrics.log("gate", None, {"stage": "sft"}))
    _, again = offline_files(run)
    again = read_offline(again).history
    assert {row: values.get("gather/reward") for row, values in again.items()} == {0: 0.5, 1: None}
