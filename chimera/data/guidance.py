"""What roles are told must not hold questions of validation or test tasks: an answer would stand beside them."""

from chimera.config.sections.society import SocietyConfig
from chimera.core.errors import ConfigError
from chimera.core.files import texts
from chimera.data.tasks import Dataset


def check_guidance(society: SocietyConfig, dataset: Dataset) -> None:
    """Raise ConfigError if guidance holds the question of a validation or test task."""
    texts_of = {name: list(texts(entry.model_dump())) for name, entry in society.guidance.items()}
    splits = {"validation": dataset.validation, "test": dataset.test} if texts_of else {}
    for split, task in ((split, task) for split, tasks in splits.items() for task in tasks):
        for name, guidance_texts in texts_of.items():
            if any(task.goal in text for text in guidance_texts):
                raise ConfigError(
                    f"society.guidance.{name} holds the question of the {split} task {task.id}, so its figures would "
                    "say nothing: take another task's"
                )
