"""Configurations that tests write."""

from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"
HEIRS = ("supervisor", "senior", "refiner")
ENDPOINT = ["kind=endpoint", "base_url=http://127.0.0.1:9/v1", "model=m"]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    return file


def unread_data(folder: Path) -> Path:
    """A user's own questions, which the bundled model cannot read."""
    answers = ("no", "yes")
    rows = [f"Does drug {n} help?,Drug {n} helped {n}.,{answers[n % 2]}" for n in range(40)]
    file = folder / "mine.csv"
    file.write_text("\n".join(["question,context,label", *rows]))
    return file


def endpoint(model: str) -> list[str]:
    return [f"models.{model}.{setting}" for setting in ENDPOINT]
