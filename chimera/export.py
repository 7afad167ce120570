"""`python -m chimera export RUN --role ROLE`: writes what a role has learned as a folder that other programs load.

Weights become a Hugging Face folder (weights, tokenizer, chat template, generation settings) that transformers, vLLM
and `models.<slot>.path` load; adapters were merged when the phase saved them. A learned choice among hypotheses becomes
a folder with its parameters; what a role learned to be told becomes a configuration file, and demos of a DSPy program.
All get a model card (README.md), the role's prompt (role.json) and the origin (chimera.json).
"""

import argparse
import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from chimera.core.cli import parse_arguments
from chimera.core.errors import ConfigError, RunError, suggestion
from chimera.show.model_card import DSPY_FILE, GUIDANCE_FILE, ROLE_FILE, LearnedRole, model_card

if TYPE_CHECKING:
    from agents.context import Guided
    from chimera.config.sections.models import ModelConfig
    from chimera.config.tree import Config
    from chimera.run.directory import Run
    from chimera.run.policies import Policy

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
SETTINGS = (
    *("config.json", "tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "*.model"),
    *("*.jinja", "additional_chat_templates/*.jinja"),
)
"""Files of a model folder that are copied beside its weights."""
GENERATION = "generation_config.json"
CARD, ORIGIN = "README.md", "chimera.json"


def main(argv: list[str]) -> int | None:
    arguments = _parse(argv)
    from chimera.run.directory import Run
    from chimera.run.inputs import check_inputs
    from chimera.run.seals import checked

    run_path = Path(arguments.run)
    folder = Path(arguments.runs_dir or (run_path.parent if run_path.parent != Path() else "runs"))
    run = Run.latest(folder) if arguments.run == "latest" else Run.open(run_path.name, folder)
    check_inputs(run.events(), run.config)
    learned = find_learned(run, arguments.role)
    out = Path(arguments.out or f"{run.name}-{learned.role}")
    check_free(out)
    source = checked(run, learned.policy.folder)
    command = shlex.join(["python", "-m", "chimera", "export", *argv])
    write(learned, source, out, command)
    what = {"weights": "weights", "choice": "policy", "guidance": "guidance"}[learned.policy.part]
    print(f"{out}: {what} {learned.policy.version} of run {run.name}, for {learned.role}; {CARD} is its model card")
    return None


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chimera.export", description=__doc__)
    parser.add_argument("run", help="the run's name or folder, or 'latest'")
    parser.add_argument("--role", required=True, help="the role, such as HypothesisRefiner")
    parser.add_argument("--out", metavar="DIR", help="the folder to write, new or empty (default RUN-ROLE)")
    parser.add_argument("--runs-dir", metavar="DIR", help="where runs are (default runs)")
    return parse_arguments(parser, argv)


def find_learned(run: "Run", role: str) -> LearnedRole:
    """What `role` has learned in `run` and uses at its end.

    Raises:
        ConfigError: There is no such role, or its model is not on this machine.
        RunError: The role has learned nothing.
    """
    from agents.policies.guidance import load
    from chimera.config.roles import RolesConfig
    from chimera.run.policies import SOCIETY, WENT_LIVE, live

    config = run.config
    roles = list(RolesConfig.model_fields)
    if role not in roles:
        hint = suggestion(role, roles, "name one of them")
        raise ConfigError(f"--role {role}: there is no such role; {hint} (roles: {', '.join(roles)})")
    slot = config.slot(role)
    events = list(run.events())
    policies = live(events)
    instructions = policies.get(("guidance", SOCIETY))
    guidance = {} if instructions is None else load(run.path / instructions.folder)

    def learned_by(name: str) -> "Policy | None":
        weights = policies.get(("weights", config.slot(name)))
        return policies.get(("choice", name)) or weights or (instructions if name in guidance else None)

    policy = learned_by(role)
    if policy is None:
        learners = sorted(filter(learned_by, roles))
        kind = config.models[slot].kind
        played = f"models.{slot}, which is {'an endpoint' if kind == 'endpoint' else kind}"
        raise RunError(
            f"{role} has learned nothing in run {run.name!r}: it is played by {played}, as it was at the start; "
            f"roles that learned: {', '.join(learners) or 'none'}"
        )
    starts = [event for event in events if event["event"] == WENT_LIVE and event["policy"]["version"] == policy.version]
    return LearnedRole(run, config, role, slot, policy, str(starts[-1]["phase"]), guidance)


def check_free(out: Path) -> None:
    """Refuse a folder that exists and is not empty, or a file.

    Raises:
        ConfigError: `out` cannot be written without touching what is there.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file: name a new folder")
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"--out {out} is not empty: name a new folder, or empty this one yourself")


def write(learned: LearnedRole, source: Path, out: Path, command: str) -> None:
    """Write the folder, whole or not at all.

    Args:
        source: The policy's folder in the run, compared with the ledger's hashes.

    Raises:
        RunError: The disk is full, or the run's report was changed.
    """
    out = out.resolve()
    draft = out.with_name(f".{out.name}.draft")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        _fill(learned, source, draft, command)
        if out.exists():
            out.rmdir()
        draft.rename(out)
    except OSError as error:
        raise RunError(f"{out} cannot be written ({error.strerror}): make room, or name another folder") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fill(learned: LearnedRole, source: Path, draft: Path, command: str) -> None:
    from chimera.run.hashes import hash_artifact
    from chimera.run.seals import read_report

    model = learned.config.models[learned.slot]
    for file in _files(source, learned.is_weights) if learned.policy.part != "guidance" else ():
        (draft / file.relative_to(source)).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, draft / file.relative_to(source))
    if learned.is_weights:
        _dump(
            draft / GENERATION, generation_settings(source / GENERATION, model, learned.config.evaluation.temperature)
        )
    settings = role_settings(learned.role, learned.config, learned.guidance)
    _dump(draft / ROLE_FILE, settings)
    if learned.role in learned.guidance:
        fields = {learned.role: learned.guidance[learned.role].model_dump(mode="json", exclude_defaults=True)}
        text = yaml.safe_dump({"society": {"guidance": fields}}, allow_unicode=True, sort_keys=False, width=110)
        (draft / GUIDANCE_FILE).write_text(text, encoding="utf-8")
        _dump(draft / DSPY_FILE, dspy_state(settings))
    written = sorted(file for file in draft.rglob("*") if file.is_file())
    files = {file.relative_to(draft).as_posix(): hash_artifact(file) for file in written}
    origin = {
        "run": learned.run.name,
        "role": learned.role,
        "slot": learned.slot,
        "part": learned.policy.part,
        "version": learned.policy.version,
        "phase": learned.phase,
        "base": model.path if model.has_weights else model.model,
        "environment": {key: learned.run.environment.get(key) for key in ("created", "commit", "python")},
        "command": command,
        "sha256": files,
    }
    _dump(draft / ORIGIN, origin)
    licence = licence_of(model.path) if learned.is_weights else "mit"
    (draft / CARD).write_text(model_card(learned, read_report(learned.run), licence, command), encoding="utf-8")


def _files(source: Path, weights: bool) -> list[Path]:
    patterns = (*WEIGHTS, *SETTINGS) if weights else ("*",)
    files = {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}
    return sorted(file for file in files if not file.name.startswith("."))


def _dump(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def generation_settings(file: Path, model: "ModelConfig", temperature: float | None) -> dict[str, Any]:
    """The model's generation settings, sampled as the society answers: at `evaluation.temperature` at most."""
    from chimera.config.sections.models import OWN_SAMPLING
    from chimera.core.files import read_json_object

    settings = read_json_object(file) if file.exists() else {}
    settings.pop("_from_model_config", None)
    if model.kind != "embedded" or settings.get("do_sample") is not True:  # Then it was sampled without them.
        settings = {name: value for name, value in settings.items() if name not in OWN_SAMPLING}
    sampled: dict[str, Any] = {"do_sample": False}
    if (used := model.temperature if temperature is None else min(model.temperature, temperature)) > 0:
        sampled = {"do_sample": True, "temperature": used, "top_p": 1.0, "top_k": settings.get("top_k", 0)}
        sampled |= {name: value for name, value in model.extra_body.items() if name in ("top_p", *OWN_SAMPLING)}
    return {**settings, **sampled, "max_new_tokens": model.max_tokens}


def dspy_state(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A role's instructions and examples as the state of a `dspy.Predict("goal -> ...")`, as DSPy 3 saves it.

    Args:
        settings: The result of `role_settings`.
    """
    names = ["goal", *settings["response_format"]["json_schema"]["schema"]["properties"]]
    fields = [{"prefix": f"{name.replace('_', ' ').title()}:", "description": f"${{{name}}}"} for name in names]
    lessons = "".join(f"\n- {lesson}" for lesson in settings.get("lessons", ()))
    signature = {"instructions": settings["prompt"] + lessons, "fields": fields}
    demos = [{**example, "augmented": True} for example in settings.get("examples", ())]
    return {"traces": [], "train": [], "demos": demos, "signature": signature, "lm": None}


def role_settings(name: str, config: "Config", learned: "Guided | None" = None) -> dict[str, Any]:
    """The prompt, the guidance, the tools and the response format with which the role was trained.

    Args:
        learned: What roles have learned to be told.
    """
    from agents.roles import ROLES, form_of
    from agents.visit.prompting import opening, response_format
    from chimera.core.types import LABELS
    from evaluation.scores import judge

    role, labels = {**ROLES, judge.ROLE.name: judge.ROLE}[name], config.data.labels
    options = labels if labels and labels != LABELS else ()
    guidance = config.society.told(name)
    if learned and name in learned:
        guidance = guidance.model_copy(update=learned[name].given())
    usual = guidance.prompt or role.prompt
    form = form_of(config.society.graph, name)
    messages = opening(replace(role, prompt=usual), "", options=list(options) or None, form=form)
    return {
        "role": name,
        "prompt": messages[0]["content"],
        **guidance.payload(),
        "tools": list(config.roles.tool_names()[name]),
        "response_format": response_format(role, messages),
    }


def licence_of(path: str) -> str | None:
    """The licence of a base model: MIT for the bundled one, or what the model card in its folder says; else None."""
    from chimera.config.sections.bundled import BUNDLED, NAMED
    from chimera.serving.embedded.checkpoint import locate

    if path in BUNDLED:
        return "mit"
    card = (locate(path) if path in NAMED else Path(path).expanduser()) / CARD
    if not card.is_file():
        return None
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()[:60]
    named = [line.partition(":")[2].strip().strip("\"'") for line in lines if line.startswith("license:")]
    return next((name for name in named if name and name != "other"), None)


if __name__ == "__main__":
    from chimera.core.cli import run_command

    run_command(main)
