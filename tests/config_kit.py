"""Configurations that tests write."""

from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"
HEIRS = ("supervisor", "senior", "refiner")
ENDPOINT = ["kind=endpoint", "base_url=http://127.0.0.1:9/v1", "model=m"]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    return file


def endpoint(model: str) -> list[str]:
    return [f"models.{model}.{setting}" for setting in ENDPOINT]
