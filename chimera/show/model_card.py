"""The README.md of an exported folder: what was learned, from what, and what it gave by the run's report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chimera.config.sections.models import ModelConfig
    from chimera.config.sections.society import Guidance
    from chimera.config.tree import Config
    from chimera.run.directory import Run
    from chimera.run.policies import Policy

METRICS: Mapping[str, tuple[str, float, str]] = {
    "alignment": ("answers right", 100, " points"),
    "macro_f1": ("macro-F1", 100, " points"),
    "reward": ("reward", 1, ""),
}
"""The metrics of the card: title, scale and unit of a difference."""
NOT_MEASURED = "not measured"
LICENCE_UNKNOWN = "not known: see the licence of the base model"
ROLE_FILE, GUIDANCE_FILE, DSPY_FILE = "role.json", "guidance.yaml", "dspy.json"


@dataclass(frozen=True, slots=True)
class LearnedRole:
    """What a role of a run has learned: the policy, the phase that made it, and the slot whose model plays the role."""

    run: "Run"
    config: "Config"
    role: str
    slot: str
    policy: "Policy"
    phase: str
    guidance: "Mapping[str, Guidance]"
    """What roles have learned to be told in the run."""

    @property
    def is_weights(self) -> bool:
        """True for weights, False for a choice among hypotheses or guidance."""
        return self.policy.part == "weights"


def model_card(learned: LearnedRole, report: Mapping[str, Any] | None, licence: str | None, command: str) -> str:
    """The card as Markdown, with the front matter that the Hugging Face hub reads.

    Args:
        report: The run's report; None if there is none.
        licence: An identifier of the licence, or None if it is not known.
        command: What the folder was written with.
    """
    from chimera.config.sections.bundled import is_bundled

    run, config, model = learned.run, learned.config, learned.config.models[learned.slot]
    toy = model.has_weights and is_bundled(model.path)
    sharing = [name for name in type(config.roles).model_fields if config.slot(name) == learned.slot]
    commit = str(run.environment.get("commit") or "unknown")[:12]
    parts = [
        "---",
        f"license: {licence or 'other'}",
        "" if licence else "license_name: see-base-model",
        "tags:\n- chimera\n---\n",
        f"# {learned.role} of {run.name}\n",
        "**A toy that knows invented studies only. It does not understand medicine.**\n" if toy else "",
        f"`{learned.policy.version}` of the run `{run.name}`, exported for the role {learned.role}.\n",
        "| | |\n| --- | --- |",
        f"| plays | {', '.join(sharing if learned.is_weights else [learned.role])} |",
        f"| base model | {_base(model)} |",
        f"| learned by | {_algorithm(learned)} |",
        f"| data | {_data(config, report)} |",
        f"| licence | {licence or LICENCE_UNKNOWN} |",
        f"| made with | Chimera at commit {commit}, run of {run.environment['created'][:10]} |\n",
        "## Measured gain\n",
        _gain(learned, report),
        "## Use\n",
        {"weights": USE_WEIGHTS, "choice": USE_CHOICE, "guidance": USE_GUIDANCE}[learned.policy.part],
        "## Command\n",
        f"```bash\n{command}\n```\n",
    ]
    return "\n".join(part for part in parts if part)


def _base(model: "ModelConfig") -> str:
    """The model that training began with."""
    from chimera.config.sections.bundled import BUNDLED

    if not model.has_weights:
        return f"{model.model}, by its server" if model.model else "a rubric"
    return f"Chimera's bundled model, {model.path}" if model.path in BUNDLED else model.path


def _algorithm(learned: LearnedRole) -> str:
    """The algorithm of the phase, and whether an adapter was merged."""
    phase = learned.config.pipeline[learned.phase]
    words = f"`{phase.algorithm or learned.phase}` (phase `{learned.phase}`)"
    if not learned.is_weights:
        return words
    rank, start = getattr(phase, "lora_rank", 0), getattr(phase, "start", None)
    what = f"LoRA of rank {rank}, merged into the weights" if rank else "all weights"
    return f"{words}, {what}{f', beginning with the weights of {start!r} at that time' if start else ''}"


def _data(config: "Config", report: Mapping[str, Any] | None) -> str:
    if report is not None:
        return str(report["plan"]["data"])
    names = {"generated": "generated tasks (invented studies)", "hub": "PubMedQA (qiaojin/PubMedQA)"}
    return f"{names.get(config.data.path, config.data.path)}, seed {config.data.seed}"


def _gain(learned: LearnedRole, report: Mapping[str, Any] | None) -> str:
    if report is None:
        command = f"`python -m chimera eval --run {learned.run.name}`"
        return f"{NOT_MEASURED}: the run has no report. {command} makes one; export again after it.\n"
    # From "base" on, in the order of the run.
    stages = [stage for stage in report["plan"]["stages"] if stage["kind"] == "sequence"]
    gains = [
        _row(title, METRICS[name], report["comparisons"][pair][name])
        for pair, title in _comparisons(stages, learned.phase).items()
        if pair in report["comparisons"]
        for name in METRICS
        if name in report["comparisons"][pair]
    ]
    if not gains:
        return f"{NOT_MEASURED}: the run's report does not compare the stage of this policy with another one.\n"
    measured = f"{len(report['plan']['tasks'])} {report['plan']['split']} tasks"
    confidence = 100 * float(report["settings"]["confidence"])
    rows = [
        f"Paired on {measured}, with {confidence:.4g} % intervals, as in the run's report.\n",
        "| comparison | measure | before | after | difference | n | verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
        *gains,
    ]
    if learned.phase not in [stage["own_name"] for stage in stages]:
        rows.append("\nThe report has no stage of this policy, so its own gain is not measured.")
    return "\n".join(rows) + "\n"


def _comparisons(stages: Sequence[Mapping[str, Any]], phase: str) -> dict[str, str]:
    """The titles of comparisons about `phase`: its stage beside the stage before it, and the whole run beside base.

    The last is also there if the report lacks the stage of the phase, because it is part of the whole.
    """
    titles = {
        f"{before['name']}:{after['name']}": f"after {phase}, beside {before['title']}"
        for before, after in pairwise(stages)
        if after["own_name"] == phase
    }
    if len(stages) > 1:
        titles.setdefault(f"{stages[0]['name']}:{stages[-1]['name']}", "the whole run, beside base")
    return titles


def _row(title: str, metric: tuple[str, float, str], figure: Mapping[str, Any]) -> str:
    words, scale, unit = metric
    digits = 1 if scale == 100 else 3
    around = "no interval"
    if figure["low"] is not None:
        around = f"[{scale * figure['low']:+z.{digits}f}, {scale * figure['high']:+z.{digits}f}]"
    before, after = (
        f"{scale * figure[side]:z.{digits}f}{' %' if scale == 100 else ''}" for side in ("before", "after")
    )
    change = f"{scale * figure['difference']:+z.{digits}f}{unit} {around}"
    return f"| {title} | {words} | {before} | {after} | {change} | {figure['n']} | {figure['verdict'] or '–'} |"


USE_WEIGHTS = f"""```python
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = AutoModelForCausalLM.from_pretrained("FOLDER"), AutoTokenizer.from_pretrained("FOLDER")
```

```bash
vllm serve FOLDER --generation-config FOLDER
python -m chimera train models.junior.path=FOLDER          # or any other slot
```

`{ROLE_FILE}` holds the prompt, the names of the tools and the JSON schema with which the role was trained.
"""
USE_CHOICE = """This folder holds no language model. It is the supervisor's learned choice among the juniors'
hypotheses: `policy.json` (settings) and `arrays.safetensors` (the reward model's parameters).

```python
from pathlib import Path
from agents.context import Candidates
from agents.policies.bandit import load_policy
chances = load_policy(Path("FOLDER")).probabilities(Candidates(goal, hypotheses, sources), greedy=True)
```

No setting loads it into another run: `python -m chimera ask --run` and `eval --run` use it from the run itself.
"""


USE_GUIDANCE = f"""This folder holds no language model. It is what the role learned to be told beside its task.

```bash
python -m chimera train --config FOLDER/{GUIDANCE_FILE}     # or copy what it holds into your own configuration
```

`{ROLE_FILE}` holds the whole prompt with examples, lessons and the JSON schema of the answer, for any other program.
`{DSPY_FILE}` is the state of a DSPy program:

```python
import dspy, json
predict = dspy.Predict("goal -> ...")           # the outputs that `{DSPY_FILE}` names
predict.load_state(json.load(open("FOLDER/{DSPY_FILE}")))
```
"""
