"""The section `data`: where tasks come from, which columns hold what, which answers they offer, and the split."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from chimera.config.loader import AnyPath, ConfigSection, When

GENERATED, HUB = "generated", "hub"
FAILED = "none"
"""Reports count rollouts without an answer under this name, so no label can have it."""

Family = Literal["abstract", "review"]
"""Families of generated tasks."""
Columns = str | tuple[str, ...] | None
"""One column, several, or the usual one."""
IF_GENERATED, IF_REAL = When.equal("path", GENERATED), When.unless("path", GENERATED)
IF_OWN = When.unless("path", GENERATED, HUB)


class ColumnsConfig(ConfigSection):
    """Which columns (or JSON keys) of your data hold the parts of a task. A dot leads into a nested record."""

    goal: str | None = Field(default=None, min_length=1, description="the question; null: 'goal', or else 'question'")
    label: str | None = Field(
        default=None,
        min_length=1,
        description="the right answer, or its place in a list of options, counted from 0; null: 'label'",
    )
    context: Columns = Field(
        default=None,
        description="the abstract: a text, a list of texts, or texts by heading; or a list of columns, whose names are "
        "the headings; null: 'context' if there is one",
    )
    id: str | None = Field(
        default=None, min_length=1, description="the task's id; null: 'id', or else a hash of the row's content"
    )
    options: Columns = Field(
        default=None,
        description="the answers to choose from: texts by name, or a list of texts or of columns, which data.labels "
        "names, or else A, B, C and so on; null: 'options' if there is one",
    )
    long_answer: str | None = Field(
        default=None,
        min_length=1,
        description="the conclusion, which roles never see and live searches hide; null: 'long_answer' if there is one",
    )
    level: str | None = Field(
        default=None, min_length=1, description="a whole number by which reports and splits group tasks"
    )

    @field_validator("context", "options")
    @classmethod
    def _named(cls, value: Columns) -> Columns:
        if value is not None and (not value or not all(value)):
            raise ValueError("it must name a column, or a list of columns")
        return value


class DataConfig(ConfigSection):
    """Where tasks come from and how they are split."""

    path: str = Field(
        default=GENERATED,
        min_length=1,
        description="'generated'; 'hub' (qiaojin/PubMedQA) or the authors' JSON file; a CSV, TSV, JSONL or Parquet "
        "file, a folder of them, or a data set of the hub as owner/name",
    )
    family: Annotated[Family, IF_GENERATED] = Field(
        default="abstract",
        description="generated tasks: abstract, one study answers the question; review, the balance of up to 16 "
        "studies does, which four searches find",
    )
    size: Annotated[int, IF_GENERATED] = Field(
        default=1000, ge=10, le=100_000, description="how many generated tasks to make; other sources are used whole"
    )
    levels: Annotated[tuple[Literal[1, 2, 3, 4], ...], IF_GENERATED] = Field(
        default=(1, 2, 3, 4), min_length=1, description="difficulty levels of generated tasks"
    )
    columns: Annotated[ColumnsConfig, IF_OWN] = Field(default_factory=ColumnsConfig)
    labels: Annotated[tuple[str, ...] | None, IF_OWN] = Field(
        default=None,
        min_length=2,
        description="the answers that your data offer, such as [A, B, C, D, E]; null: the names of the options, or "
        "yes, no and maybe",
    )
    subset: Annotated[str | None, IF_OWN] = Field(
        default=None, min_length=1, description="hub and folders: the data set's configuration"
    )
    split: Annotated[str, IF_OWN] = Field(
        default="train", min_length=1, description="hub and folders: which split to take, such as train or train+test"
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="seed of the generator and of the split")
    test_ids: Annotated[AnyPath | None, IF_REAL] = Field(
        default=None, description="file of the test tasks' ids, such as PubMedQA's official 500"
    )
    validation_share: float = Field(
        default=0.2, gt=0, lt=1, description="share of tasks for the gate and for searches; of the rest with test_ids"
    )
    test_share: Annotated[float, When.unset("test_ids")] = Field(
        default=0.2, gt=0, lt=1, description="share of tasks for reports, which no decision uses"
    )

    @field_validator("labels", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """YAML reads labels such as 0 and 1 as numbers."""
        is_list = isinstance(value, list | tuple)
        return tuple(str(label) if type(label) is int else label for label in value) if is_list else value

    @field_validator("labels")
    @classmethod
    def _different(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("each label must occur once")
        if value is not None and not all(label.strip() == label and label for label in value):
            raise ValueError("a label must not be empty, or begin or end with white space")
        if value is not None and FAILED in value:
            raise ValueError(f"no label may be {FAILED!r}, because reports count failed rollouts under that name")
        return value
