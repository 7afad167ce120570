"""The society for LangGraph Studio, where one steps through its nodes, edits the state, and goes on from there."""

import atexit
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from agents.graph import Graph
from agents.society import Society
from agents.tools.toolbox import build_toolbox
from chimera.config.roles import JUDGE
from chimera.config.tree import Config
from chimera.core.cli import keep_direct
from chimera.core.errors import ConfigError
from chimera.core.secrets import load_secrets
from chimera.core.types import Brief
from chimera.data.tasks import Dataset, load
from chimera.serving.client import HttpModel
from chimera.serving.process import serve
from evaluation.rollout.answering import answering
from evaluation.scores.judge import Judge


def studio_graph(config: Config) -> Graph:
    """The society of `config` as a graph whose input is {"research_goal": a task's id or its question}.

    Its models run until this process ends.

    Raises:
        ConfigError: A key, a model's folder or a tool's database is missing.
        DataError: The data cannot be read.
        ModelError: The model server did not start.
    """
    keep_direct()
    secrets = load_secrets(config.secret_names())
    data = load(config.data)
    tools = build_toolbox(config.tools, data.documents(), secrets, roles=config.roles, conclusions=data.conclusions())
    running = ExitStack()
    atexit.register(running.close)
    log = Path(running.enter_context(tempfile.TemporaryDirectory())) / "models.log"
    servers = running.enter_context(serve(config.used(), config.serving, secrets, log_file=log))
    endpoints = answering(servers.endpoints, config, config.evaluation.temperature)
    model = HttpModel(endpoints, pause_s=config.rollouts.pause_s)
    judge, limit = Judge(model, config.slot(JUDGE)).evaluate, config.rollouts.timeout_s
    return Society(model, tools, config.society, config.roles, evaluate=judge, timeout_s=limit).standing(briefs(data))


def briefs(data: Dataset) -> Callable[[str], Brief]:
    """Finds the brief of a task by its id or its question.

    The function raises ConfigError for any other text: a question of a person's own has rules for its sources, which
    only `python -m chimera ask` follows.
    """
    tasks = {key: task for task in (*data.train, *data.validation, *data.test) for key in (task.id, task.goal)}

    def brief_of(query: str) -> Brief:
        if query.strip() not in tasks:
            raise ConfigError(
                f"research_goal {query[:80]!r} is not a task of {data.describe()}: give a task's id or question "
                '(`python -m chimera data` shows some), or ask your own by `python -m chimera ask "..."`'
            )
        return tasks[query.strip()].brief()

    return brief_of
