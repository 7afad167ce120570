"""W&B: what a run shows there, offline and online, after a kill, and without a server that answers."""

import asyncio
import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import agentlightning as agl
import psutil
import pytest
from wandb_kit import FakeWandb

from chimera.config.tree import Config
from chimera.processes import forks
from chimera.run.directory import Run
from chimera.run.policies import Policy
from evaluation.records.rollouts import RolloutRecord
from evaluation.scores.rewards import Reward
from training.lab.runners.agent import emit_parts
from training.watch.metrics import Metrics
from training.watch.wandb_hook import WandbLoggingHook
from training.watch.wandb_mirror import COLUMNS, protocol_rows
from training.watch.wandb_run import open_sinks, run_id

pytestmark = pytest.mark.whole

KEY = "0123456789abcdef" * 2 + "01234567"
WAIT_SECONDS = 600.0
POLICY = Policy("weights", "junior", "junior@sft", "models/junior/sft")
PROTOCOL = {
    "design": "trial",
    "population": "adults",
    "intervention": "drug",
    "comparator": "placebo",
    "outcome": "rate",
    "sample_size": 120,
    "analysis": "log-rank",
    "safeguards": "board",
    "expected": "yes",
    "amendments": ["report harms", "blind the raters"],
}


def rollout(number, *, reward=0.5, phase="gather"):
    finished = {"research_goal": f"Does drug{number} work?", "final_protocol": PROTOCOL}
    return RolloutRecord(
        rollout_id=f"r{number}",
        task_id=f"t{number}",
        source="generated",
        level=1,
        phase=phase,
        repeat=0,
        seed=0,
        attempt=1,
        status="failed" if reward is None else "succeeded",
        error="no JSON" if reward is None else None,
        label="yes",
        answer=None if reward is None else "yes",
        decision=None if reward is None else "GO",
        reward=reward,
        parts={} if reward is None else {"alignment": reward / 2, "novelty": reward / 2},
        outputs={} if reward is None else finished,
        seconds=1.0,
    )


PATIENCE = dict.fromkeys(("WANDB_INIT_TIMEOUT", "WANDB_FINISH_TIMEOUT", "WANDB__SERVICE_WAIT"), str(WAIT_SECONDS))


@pytest.fixture(scope="module", autouse=True)
def patient():
    """W&B's time limits are those of a user who waits; on a busy machine it would be cut off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.watch.wandb_run.CLOSE_SECONDS", WAIT_SECONDS)
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def no_wandb_of_the_user(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_") and name not in PATIENCE]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    forks.prepare()


def config_for(folder, **wandb):
    return Config.model_validate({"runs_dir": folder, "wandb": wandb})


def log_a_run(run, metrics):
    """Two phases with steps, one without, rollouts, a table and an artifact."""
    for number, reward in enumerate((0.5, None, 0.75)):
        record = rollout(number, reward=reward)
        run.append_rollout(record.dump(), phase="gather")
        metrics.rollout(record)
    metrics.log("gather", None, {"reward": 0.625, "parts": {"novelty": 0.25}})
    metrics.protocols("gather", [])
    for step in range(1, 4):
        metrics.log("sft", 10 * step, {"loss": 1 / step})
    metrics.log("ppo", 1, {"actor/pg_loss": float("nan"), "actor/entropy": 2.0})
    metrics.log("sft", None, {"conversations": 12})
    weights = run.path / POLICY.folder / "model.safetensors"
    weights.parent.mkdir(parents=True, exist_ok=True)
    weights.write_bytes(b"weights" * 1000)
    metrics.artifact(POLICY)
    for stage in ("sft", "ppo"):
        metrics.log("gate", None, {"stage": stage})
    for stage, reward in (("base", 0.75), ("sft", 1.25)):
        metrics.log(f"gate-{stage}", None, {"reward": reward, "alignment_rate": 0.5})


EXPECTED = [
    {"rollout/index": 1, "rollout/reward": 0.5, "rollout/parts/alignment": 0.25, "rollout/failed": 0},
    {"rollout/index": 2, "rollout/failed": 1},
    {"rollout/index": 3, "rollout/reward": 0.75, "rollout/of": "gather"},
    {"gather/step": 0, "gather/reward": 0.625, "gather/parts/novelty": 0.25},
    {"protocols/gather/_type": "table-file", "protocols/gather/nrows": 2},
    {"sft/step": 10, "sft/loss": 1.0},
    {"sft/step": 20, "sft/loss": 0.5},
    {"sft/step": 30, "sft/loss": 1 / 3},
    {"ppo/step": 1, "ppo/actor/entropy": 2.0},
    {"sft/step": 30, "sft/conversations": 12},
    None,
    {"gate/step": 0, "gate/stage": "sft"},
    {"gate/step": 1, "gate/stage": "ppo"},
    {"gate-base/step": 0, "gate-base/reward": 0.75},
    {"gate-sft/step": 0, "gate-sft/reward": 1.25},
]
"""What W&B's history has for each line of metrics.jsonl, in part; an artifact is no row."""


def assert_rows(rows):
    """`rows` are W&B's history by step: every expected one, once, and no other."""
    assert sorted(rows) == [number for number, row in enumerate(EXPECTED) if row is not None]
    for number, row in rows.items():
        for key, value in EXPECTED[number].items():
            assert row.get(key) == pytest.approx(value), (number, key, row)
    assert "rollout/reward" not in rows[1]
    assert "ppo/actor/pg_loss" not in rows[8]


def read_offline(file):
    """The records of a .wandb file: history by step, and the other kinds as lists."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(file))
    found = SimpleNamespace(history={}, artifact=[], metric=[], run=[], exit=[])
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
            assert row["_step"] not in found.history
            found.history[row["_step"]] = row
        elif hasattr(found, kind):
            getattr(found, kind).append(getattr(record, kind))
    return found


def offline_files(run):
    return sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))


def mirrored(run, config, secrets, notes, log=log_a_run):
    """Log a run while W&B follows it; not ended before W&B has said something, which a short run is otherwise."""
    before = len(notes)
    with Metrics(run, open_sinks(run, config, secrets, notes.append), notes.append) as metrics:
        log(run, metrics)
        wait_for(lambda: len(notes) > before)


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """A run that was shown offline."""
    folder = tmp_path_factory.mktemp("runs")
    notes: list[str] = []
    config = config_for(folder, protocols=2)
    forks.prepare()
    with Run.create("shown", config) as run:
        mirrored(run, config, {}, notes)
    (file,) = offline_files(run)
    wait_for(lambda: read_offline(file).exit)  # W&B's service writes it, which need not have ended with the run.
    return SimpleNamespace(run=run, config=config, notes=notes, data=read_offline(file))


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
        (row["1 overview/stage"], row["1 overview/held-out reward by stage"])
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
    watch, send = offline.notes
    folder = Path(re.search(r"wandb leet (\S+)$", watch).group(1))
    assert (folder / "latest-run").resolve().is_dir()
    latest = Path(re.search(r"wandb sync (\S+)$", send).group(1))
    assert list(latest.glob("run-*.wandb"))
    help_text = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "wandb leet ./wandb" in help_text


def test_the_file_can_be_watched_before_it_is_full_and_a_resumed_run_is_the_same_and_complete(tmp_path):
    config = config_for(tmp_path, mode="offline")

    def watched(run, metrics):
        metrics.log("gather", None, {"reward": 0.5})
        wait_for(lambda: any(file.stat().st_size > 1000 for file in offline_files(run)))
        assert read_offline(*offline_files(run)).history[0]["gather/reward"] == 0.5
        metrics.log("sft", 1, {"loss": 0.5})

    def resumed(run, metrics):
        metrics.log("sft", 2, {"loss": 0.25})
        wait_for(lambda: len(offline_files(run)) == 2 and offline_files(run)[1].stat().st_size > 1000)

    with Run.create("again", config) as run:
        mirrored(run, config, {}, [], watched)
    with Run.create("again", config, resume=True) as run:
        mirrored(run, config, {}, [], resumed)
    first, second = map(read_offline, offline_files(run))
    assert first.run[0].run_id == second.run[0].run_id
    assert [row.get("sft/loss") for row in first.history.values()] == [None, 0.5]
    assert [row.get("sft/loss") for row in second.history.values()] == [None, 0.5, 0.25]
    assert second.history[0]["gather/reward"] == 0.5


@pytest.fixture
def server(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setenv("WANDB_BASE_URL", fake.url)
    yield fake
    fake.close()


def test_online_rows_arrive_once_each_also_those_of_a_time_without_wandb(server, tmp_path):
    config = config_for(tmp_path)
    secrets = {"WANDB_API_KEY": KEY}
    notes: list[str] = []

    def steps(first, last):
        return lambda run, metrics: [metrics.log("sft", step, {"loss": step / 8}) for step in range(first, last)]

    with Run.create("shown", config) as run:
        mirrored(run, config, secrets, notes, steps(0, 3))
        assert sorted(server.rows) == [0, 1, 2]
    with Run.create("shown", config, resume=True) as run:
        steps(3, 5)(run, Metrics(run))
    with Run.create("shown", config, resume=True) as run:
        mirrored(run, config, secrets, notes, steps(5, 7))
    assert server.refused == 0
    assert {step: row["sft/loss"] for step, row in server.rows.items()} == {step: step / 8 for step in range(7)}
    assert notes == [f"W&B: {server.url}/me/chimera/runs/{run_id(run)}"] * 2
    assert server.keys - {""} == {KEY}
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("trouble", ["closed", "down", "silent"])
def test_without_a_server_that_answers_the_run_is_written_offline(trouble, server, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    server.trouble = trouble
    if trouble == "closed":
        server.close()
    notes: list[str] = []
    config = config_for(tmp_path)

    def log(run, metrics):
        log_a_run(run, metrics)
        wait_for(lambda: len(notes) > 1)

    with Run.create("shown", config) as run:
        mirrored(run, config, {"WANDB_API_KEY": KEY}, notes, log)
    assert notes[0].startswith("W&B cannot be used online: CommError")
    assert notes[1].startswith("W&B is offline: watch live with: wandb leet")
    assert len(notes) == 3
    assert_rows(read_offline(*offline_files(run)).history)
    assert len(list(run.metrics())) == len(EXPECTED)


def test_online_without_a_key_is_written_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    notes: list[str] = []
    config = config_for(tmp_path, mode="online")
    with Run.create("shown", config) as run:
        mirrored(run, config, {}, notes, lambda run, metrics: wait_for(lambda: len(notes) > 1))
    assert "API key" in notes[0]
    assert notes[1].startswith("W&B is offline")


def test_an_interrupted_run_does_not_wait_for_a_silent_server(server, tmp_path):
    server.trouble = "silent"
    notes: list[str] = []
    config = config_for(tmp_path)

    def log(run, metrics):
        assert server.asked.wait(WAIT_SECONDS)
        processes.extend(wandb_processes())
        raise KeyboardInterrupt

    processes: list[psutil.Process] = []
    with Run.create("shown", config) as run, pytest.raises(KeyboardInterrupt):
        mirrored(run, config, {"WANDB_API_KEY": KEY}, notes, log)
    assert processes
    assert psutil.wait_procs(processes, timeout=WAIT_SECONDS)[1] == []
    assert notes == ["W&B was not done in time; metrics.jsonl has it all"]


def test_a_killed_wandb_is_told_and_stops_nothing(tmp_path):
    notes: list[str] = []
    config = config_for(tmp_path)
    with Run.create("shown", config) as run:
        (sink,) = open_sinks(run, config, {}, notes.append)
        with Metrics(run, [sink], notes.append) as metrics:
            wait_for(lambda: notes)
            os.kill(sink.pid, signal.SIGKILL)
            wait_for(lambda: len(notes) > 1)
            metrics.log("sft", 1, {"loss": 0.5})
    assert len(notes) == 2
    assert "was killed by SIGKILL: W&B gets no more" in notes[1]
    assert [line["loss"] for line in run.metrics()] == [0.5]


MAIN = """
import sys
from pathlib import Path
from chimera.config.tree import Config
from chimera.processes import forks
from chimera.run.directory import Run
from training.watch.metrics import Metrics
from training.watch.wandb_run import open_sinks

if __name__ == "__main__":
    forks.PRELOAD = "chimera.processes.parent"
    config = Config.model_validate({"runs_dir": Path(sys.argv[1])})
    run = Run.create("killed", config)
    metrics = Metrics(run, open_sinks(run, config, {}, lambda text: print(text, flush=True)))
    metrics.log("sft", 1, {"loss": 0.5})
    sys.stdin.read()
"""


def test_nothing_is_left_when_the_main_process_is_killed(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as main:
        assert main.stdout is not None
        assert "offline" in main.stdout.readline()
        processes = psutil.Process(main.pid).children(recursive=True)
        assert any(process.name() == "wandb-core" for process in processes)
        main.kill()
        main.wait()
        assert psutil.wait_procs(processes, timeout=WAIT_SECONDS)[1] == []


class Scored(agl.LitAgent):
    async def rollout_async(self, task, resources, rollout):
        if task == "plain":
            agl.emit_reward(0.25)
        elif task == "parts":
            emit_parts(Reward({"alignment": 0.5, "novelty": 0.25}, 0.75))
        elif task == "unscored":
            emit_parts(Reward({"alignment": 0.5, "novelty": None}, None))
        else:
            raise ValueError(task)


async def run_with(hook, tasks):
    """Run `Scored` on `tasks` with Agent Lightning's own runner, tracer and store."""
    store = agl.InMemoryLightningStore()
    await store.update_resources("none", {})
    runner = agl.LitAgentRunner(tracer=agl.OtelTracer())
    with runner.run_context(agent=Scored(), store=store, hooks=[hook]):
        for task in tasks:
            try:
                await runner.step(task, mode="train")
            except ValueError as error:
                assert str(error) == task  # noqa: PT017  the runner raises what the agent raises
    return [rollout.status for rollout in await store.query_rollouts()]


def run_hook(folder):
    """A runner process of some Agent Lightning user."""
    hook = WandbLoggingHook(project="theirs", mode="offline", dir=folder)
    asyncio.run(run_with(hook, ["plain", "parts", "failing", "unscored"]))


def test_the_hook_logs_every_rollouts_reward_and_parts_from_agent_lightnings_own_runner(tmp_path):
    child = forks.Fork("runner", run_hook, (str(tmp_path),), tmp_path / "log")
    child.start()
    child.join(WAIT_SECONDS)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    data = read_offline(file)
    rows = [{key: value for key, value in row.items() if key[0] != "_"} for row in data.history.values()]
    assert len({row.pop("rollout/rollout_id") for row in rows}) == 4
    assert rows == [
        {"rollout/index": 1, "rollout/mode": "train", "rollout/reward": 0.25},
        {
            "rollout/index": 2,
            "rollout/mode": "train",
            "rollout/reward": 0.75,
            "rollout/parts/alignment": 0.5,
            "rollout/parts/novelty": 0.25,
        },
        {"rollout/index": 3, "rollout/mode": "train"},
        {"rollout/index": 4, "rollout/mode": "train", "rollout/parts/alignment": 0.5},
    ]
    assert data.run[0].project == "theirs"
    assert ("rollout/*", "rollout/index") in {(metric.glob_name, metric.step_metric) for metric in data.metric}


class BrokenRun:
    def __init__(self):
        self.calls = 0

    def define_metric(self, *arguments, **options):
        self.calls += 1
        raise OSError("W&B is gone")


async def test_a_hook_that_fails_says_so_once_and_rollouts_go_on(caplog):
    broken = BrokenRun()
    statuses = await run_with(WandbLoggingHook(broken), ["plain", "plain", "plain"])
    assert statuses == ["succeeded"] * 3
    assert broken.calls == 1
    assert [record.message for record in caplog.records if record.name == "training.watch.wandb_hook"] == [
        "rollouts are no longer logged to W&B: OSError: W&B is gone"
    ]


def test_switched_off_there_is_no_wandb(tmp_path):
    config = config_for(tmp_path, mode="disabled")
    with Run.create("shown", config) as run:
        assert open_sinks(run, config, {"WANDB_API_KEY": KEY}, pytest.fail) == []


@pytest.mark.parametrize(("limit", "kept"), [(0, []), (1, [9]), (2, [9, 1]), (3, [9, 8, 1]), (99, [9, 8, 7, 3, 2, 1])])
def test_of_many_protocols_the_best_and_the_worst_are_shown(limit, kept):
    records = [rollout(number, reward=reward) for number, reward in enumerate((3.0, 9.0, None, 1.0, 7.0, 8.0, 2.0))]
    rows = protocol_rows(records, limit)
    assert [row[COLUMNS.index("reward")] for row in rows] == kept
    assert all(len(row) == len(COLUMNS) for row in rows)


def wait_for(condition):
    """Until `condition` holds that another process or thread brings about."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


def wandb_processes():
    """W&B's own processes below this one."""
    return [process for process in psutil.Process().children(recursive=True) if process.name().startswith("wandb")]
