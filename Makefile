# Works on a fresh machine that has make and Python 3.11 or newer; `make help` tells what there is.
# Another Python: make PYTHON=python3.13 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest --numprocesses=auto

.DEFAULT_GOAL := help
.PHONY: help demo test lint wheel crash cluster soak bench benchspark clean java

help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/installed java ## Install into .venv, and do the main job on a sample dataset.
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh sample_datasets/demo.sh

test: $(VENV)/installed-dev java lint ## Install into .venv, and pass lint and the tests (a few minutes).
	$(PYTEST) -m "not slow and not crash" --ignore=tests/spark
	$(PYTEST) -m "not slow and not crash" --dist=loadgroup tests/spark # one Spark session, in a process of its own

lint: $(VENV)/installed-dev ## Check style and types.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

wheel: $(VENV)/installed-dev ## Build the wheel, install it elsewhere, and use it there.
	$(BIN)/python -m pytest tests/test_wheel.py

crash: $(VENV)/installed-dev ## Kill processes at every write, cut the power (root only): some minutes.
	$(PYTEST) -m crash

cluster: $(VENV)/installed-dev java ## Test on a cluster of Spark's on loopback, and kill its workers: some minutes.
	$(BIN)/python -m pytest -m cluster tests/spark

soak: $(VENV)/installed-dev ## All tests but those of crash, the slow ones too, with many more examples: an hour.
	$(PYTEST) -m "not crash" --hypothesis-profile=soak --dist=loadgroup

bench: $(VENV)/installed-dev ## Measure against a hand-written program with the same job.
	$(BIN)/python benchmarks/run.py

benchspark: $(VENV)/installed-dev java ## Measure Spark against Parquet of the same rows: ten minutes.
	$(BIN)/python benchmarks/spark.py

clean: ## Remove what make has made.
	rm -rf $(VENV) build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || { \
		echo "Java 17 is missing. Only Spark needs it; all else works without, and the tests of Spark are skipped."; \
		echo "To get it: apt install openjdk-17-jre-headless, dnf install java-17-openjdk-headless, or from adoptium.net."; }

# Editable, so that it is always the code of this folder that runs.
$(VENV)/installed: $(VENV)/made pyproject.toml
	$(PIP) install --editable '.[spark]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/made pyproject.toml
	$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/installed

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "ondisk needs Python 3.11 or newer, and $(PYTHON) is not. Name one: make PYTHON=python3.13 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "$(PYTHON) has no venv. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
