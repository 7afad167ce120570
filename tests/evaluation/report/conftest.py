"""The run made by hand, and its report."""

import copy

import pytest
from report_kit import PLAN, write_run

from evaluation.conduct.recorded_study import load_study
from evaluation.report.build import build
from evaluation.report.plots.base import Plot


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def study(run):
    return load_study(run, PLAN)


@pytest.fixture(scope="session")
def built(study, run):
    return build(study, [Plot("curve", "Curve", missing="there are no metrics")], run.path / "report")


@pytest.fixture
def report(built):
    return copy.deepcopy(built)
