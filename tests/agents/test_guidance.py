"""What a role is told beside its task stands in its prompts, and nowhere else."""

import shutil
from pathlib import Path

import pytest
from message_kit import refused

from agents.roles import ROLES
from agents.visit.prompting import read_payload
from chimera.config.sections.bundled import NANO, TEMPLATE
from chimera.config.tree import dump_config
from chimera.core.errors import ConfigError
from chimera.data.tasks import check_guidance, load
from chimera.export import role_settings
from training.configuration import load_config

LESSON = "Check the p-value."
SKILL = {"name": "significance", "when": "a result has a p-value", "do": "compare it with 0.05"}
EXAMPLE = {"goal": "Does tea raise sleep?", "answer": "no"}
OWN = "You are the Geneticist.\nBe brief."
TOLD = f"society.guidance.juniors.lessons=[{LESSON}]"
HEARS = [f"models.junior.{one}" for one in ("kind=endpoint", "base_url=http://127.0.0.1:1/v1", "model=m")]
"""What the bundled model does not hear, an endpoint's may."""


async def test_prompts_of_the_role_begin_with_what_it_is_told(society_kit) -> None:
    itself = {"goal": society_kit.brief.goal, "answer": "yes"}
    told = {"lessons": [LESSON], "skills": [SKILL], "examples": [itself, EXAMPLE], "prompt": OWN}
    model = society_kit.Model()
    await society_kit.make(model, guidance={"Geneticist": told}).run(society_kit.brief)
    system, user = model.of("Geneticist")[0].messages[:2]
    assert system["content"] == OWN
    payload = read_payload(user)
    assert list(payload)[:3] == ["skills", "lessons", "examples"]
    assert (payload["skills"], payload["lessons"], payload["examples"]) == ([SKILL], [LESSON], [EXAMPLE])
    for name in set(ROLES) - {"Geneticist"}:
        system, user = model.of(name)[0].messages[:2]
        assert system["content"] == ROLES[name].prompt
        assert not {"skills", "lessons", "examples"} & set(read_payload(user))


def test_a_role_s_own_entry_goes_before_its_group_s() -> None:
    prompts = ["society.guidance.juniors.prompt=all", "society.guidance.Geneticist.prompt=own"]
    society = load_config(None, [*HEARS, TOLD, *prompts]).society
    assert (society.told("Neurologist").prompt, society.told("Neurologist").lessons) == ("all", (LESSON,))
    assert (society.told("Geneticist").prompt, society.told("Geneticist").lessons) == ("own", (LESSON,))
    assert not society.told("Supervisor").given()


def test_a_configuration_with_guidance_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    config = load_config(None, [*HEARS, TOLD])
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert load_config(file) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (TOLD, ("society.guidance.juniors.lessons", "models.junior.path=nano", "remove it")),
        ("society.guidance.PeerReviewer.prompt=strict", ("rubric plays PeerReviewer", "models.board.kind")),
        ("society.guidance.Judge.prompt=kind", ("names Judge", "leave it out")),
        ("society.guidance.junior.prompt=x", ("'junior'", "'juniors'")),
        ("society.guidance.juniors.lesson=[x]", "society.guidance.juniors.lessons"),
        ("society.guidance.juniors.lessons=3", ("society.guidance.juniors.lessons", "3", "array")),
    ],
)
def test_guidance_that_nobody_would_hear_is_refused(override: str, message: str) -> None:
    with refused(ConfigError, message):
        load_config(None, [override])


def test_weights_trained_from_nano_hear_only_without_its_template_s_file(tmp_path: Path) -> None:
    mine = f"models.junior.path={shutil.copytree(NANO, tmp_path / 'mine')}"
    with refused(ConfigError, "society.guidance.juniors.lessons", mine, "remove it"):
        load_config(None, [mine, TOLD])
    (tmp_path / "mine" / TEMPLATE).unlink()
    config = load_config(None, [mine, TOLD])
    assert config.society.told("Pharmacologist").lessons == (LESSON,)


def test_the_question_of_a_validation_or_test_task_is_refused() -> None:
    config = load_config(None, HEARS)
    society, dataset = config.society, load(config.data)
    for task, split in ((dataset.test[0], "test"), (dataset.validation[0], "validation"), (dataset.train[0], None)):
        example = {"goal": task.goal, "answer": "yes"}
        told = type(society).model_validate({"guidance": {"juniors": {"examples": [example]}}})
        if split:
            with refused(ConfigError, "society.guidance.juniors", split, task.id):
                check_guidance(told, dataset)
        else:
            check_guidance(told, dataset)


def test_an_exported_role_has_what_it_was_told() -> None:
    config = load_config(None, [*HEARS, TOLD])
    assert role_settings("Geneticist", config)["lessons"] == [LESSON]
    assert "lessons" not in role_settings("Supervisor", config)
