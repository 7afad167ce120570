# make setup   creates .venv and installs everything, exactly as constraints.txt pins it
# make train   sets up, then trains on reviews; make train CONFIG=configs/pubmedqa.yaml ARGS="gather.tasks=20": another configuration
# make test    sets up, then tests;  make test ARGS="tests/chimera/config/test_config.py -k unknown" passes arguments on
# make test-all   also what starts whole commands, runs and teams of processes; .ci/run does this
# make bench   runs every benchmark, some ten minutes;  make bench ARGS=--tiny shows in one minute that they run
# make docs    builds the pages of docs/ into build/docs/index.html, and refuses broken links
# make real-size   serves and trains a model of Qwen2.5-0.5B's size with random weights: 11 GiB of memory, some minutes
# make picture REPORT=runs/NAME/report   puts a report's pictures of whether a team pays into docs/images/: pays.png, studies.png
# make notebooks   runs the notebooks again, outputs and all: the second shows the latest run that has a report, the third trains one
# Variables: PYTHON (3.11 or 3.12), VENV, TORCH_INDEX (package index to take torch from, such as one with CPU builds),
# CONFIG (what make train trains; configs/review.yaml), TEST_PROCESSES (test files run at a time).

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
ARGS ?=
CONFIG ?= configs/review.yaml
TEST_PROCESSES ?= 2

PY := $(VENV)/bin/python
IN_PARALLEL := -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
IMAGES ?= docs/images
STAMP := $(VENV)/.chimera-installed
# The nodejs wheel brings pyright's runtime; without this pyright also asks the web for its newest version.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help setup train test test-all lint types imports docs picture notebooks bench real-size clean

help:
	@sed -n '/^#/!q; s/^# //p' Makefile

setup: $(STAMP)

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else "error: Chimera needs Python 3.11 or 3.12, and $(PYTHON) is %d.%d: run make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)

# torch first and alone, so that TORCH_INDEX decides which build is installed.
$(STAMP): pyproject.toml constraints.txt | $(PY)
	$(PY) -m pip install --quiet torch -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(PY) -m pip install --quiet -e '.[dev]' -c constraints.txt
	@touch $@

train: setup
	$(PY) -m chimera.train --config $(CONFIG) $(ARGS)

test: setup
	$(PY) -m pytest -m "not long and not whole" $(ARGS) $(IN_PARALLEL)

test-all: setup
	$(PY) -m pytest $(ARGS) $(IN_PARALLEL)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: setup
	$(VENV)/bin/pyright

imports: setup
	$(VENV)/bin/lint-imports

docs: setup
	$(VENV)/bin/mkdocs build --strict --quiet

picture:
	cp "$(REPORT)/plots/tokens.png" $(IMAGES)/pays.png
	if test -f "$(REPORT)/plots/studies.png"; then cp "$(REPORT)/plots/studies.png" $(IMAGES)/studies.png; fi

notebooks: setup
	$(VENV)/bin/jupyter execute --inplace --timeout=900 notebooks/*.ipynb

bench: setup
	@set -e; for file in $$(grep -rl --include='*.py' '^    main()$$' benchmarks | sort); do \
		name=$$(echo "$${file%.py}" | tr / .); echo "== python -m $$name $(ARGS)"; $(PY) -m $$name $(ARGS); done

real-size: setup
	$(PY) -m benchmarks.real_size $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
