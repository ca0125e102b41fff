# Works on a fresh machine that has make and Python 3.11 or newer. `make help` lists the targets.
# Another Python: make PYTHON=python3.13 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# The tests with Spark share one session, in one of the processes.
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --dist=loadgroup
# Tests sync thousands of small files: in memory, if there is room, that takes no time.
IN_MEMORY := $(shell test "$$(df --output=avail -BM /dev/shm 2>/dev/null | tr -dc 0-9)" -gt 4096 2>/dev/null && echo TMPDIR=/dev/shm)
# They start hundreds of processes, each of which would compile ondisk again.
unexport PYTHONDONTWRITEBYTECODE
SHORT := not slow and not crash and not cluster

.DEFAULT_GOAL := help
.PHONY: help demo test check lint docs man jar connector wheel minimum pythons sparks crash cluster soak mutants nightly bench benchspark clean java

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/installed java ## Install into .venv, and do the main job on a sample dataset.
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh sample_datasets/demo.sh

test: $(VENV)/installed-dev java lint ## Install into .venv, and pass lint, types and the tests that you wait for: under five minutes.
	$(IN_MEMORY) $(PYTEST) -m "$(SHORT) and not check" --hypothesis-profile=few

check: $(VENV)/installed-dev java ## Run the other tests that a change must pass: ten minutes.
	$(IN_MEMORY) $(PYTEST) -m "$(SHORT) and check"

lint: $(VENV)/installed-dev ## Check style and types.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/installed-dev ## Build the site of the documentation, with search and the Python API: build/site/README.html.
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs . build/site

man: $(VENV)/installed-dev ## Write the manual page docs/ondisk.1 from the parser of the command.
	COLUMNS=80 SOURCE_DATE_EPOCH=1795392000 $(BIN)/argparse-manpage --module ondisk.cli --function whole_parser \
		--prog ondisk --project-name ondisk --version "$$($(BIN)/ondisk --version | cut -d ' ' -f 2)" \
		--manual-title "Manual of ondisk" --description "datasets on disk: segments of data by time, one SQLite index" \
		--format single-commands-section --output docs/ondisk.1

jar: $(VENV)/installed-dev ## Build the connector for Spark, which the wheel contains; needs javac 17 or newer.
	$(BIN)/python tools/connector.py build

connector: $(VENV)/installed-dev ## Compare the connector with one that is built again.
	$(BIN)/python tools/connector.py compare

wheel: $(VENV)/installed-dev ## Build the wheel, install it elsewhere, and use it there.
	$(BIN)/python -m pytest tests/test_wheel.py

minimum: ## Run the tests without Spark on the lowest versions that pyproject.toml allows, in .venv-minimum.
	$(PYTHON) -m venv --clear .venv-minimum
	sed -nE 's/^ +"([a-z0-9-]+)>=([0-9.]+).*/\1==\2/p' pyproject.toml > .venv-minimum/lowest.txt
	.venv-minimum/bin/python -m pip install --quiet --constraint .venv-minimum/lowest.txt --editable '.[test]'
	$(IN_MEMORY) .venv-minimum/bin/python -m pytest --numprocesses=auto -m "$(SHORT)" --ignore=tests/spark

pythons: ## Run the tests without Spark on each Python from 3.11 to 3.13 that is installed, in .venv-VERSION.
	@status=0; for version in 3.11 3.12 3.13; do \
		if ! python$$version -c '' 2>/dev/null; then echo "python$$version is not installed"; continue; fi; \
		echo "python$$version"; \
		python$$version -m venv --clear .venv-$$version && \
		.venv-$$version/bin/python -m pip install --quiet --editable '.[test]' && \
		$(IN_MEMORY) .venv-$$version/bin/python -m pytest --numprocesses=auto -m "$(SHORT)" --ignore=tests/spark || status=1; \
	done; exit $$status

crash: $(VENV)/installed-dev ## Kill processes at every write, cut the power (root only): up to an hour.
	$(PYTEST) -m crash

sparks: ## Run the tests of Spark with each version that the connector may know, in .venv-spark-VERSION: half an hour.
	@status=0; for version in 4.2 4.3; do \
		echo "pyspark $$version"; \
		$(PYTHON) -m venv --clear .venv-spark-$$version && \
		.venv-spark-$$version/bin/python -m pip install --quiet --editable '.[test]' "pyspark==$$version.*" \
			adbc-driver-manager adbc-driver-sqlite pandas && \
		$(IN_MEMORY) .venv-spark-$$version/bin/python -m pytest -m "$(SHORT)" tests/spark || status=1; \
	done; exit $$status

cluster: $(VENV)/installed-dev java ## Test on a cluster of Spark's on loopback, and kill its workers: some minutes.
	$(BIN)/python -m pytest -m cluster tests/spark

soak: $(VENV)/installed-dev ## The slow tests, and those that draw examples, with many more of them: within 90 minutes.
	$(IN_MEMORY) $(PYTEST) -m "(slow or hypothesis) and not crash and not cluster" --hypothesis-profile=soak

mutants: $(VENV)/installed-dev ## Put faults into copies of the code, and count those that the tests notice: half an hour.
	$(IN_MEMORY) $(BIN)/python tests/mutants/run.py

nightly: $(VENV)/installed-dev ## Run crash, cluster and soak: all three, each for 90 minutes at most.
	@failed=; for part in crash cluster soak; do \
		timeout --kill-after=60s 90m $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

bench: $(VENV)/installed-dev ## Measure against a hand-written program with the same job.
	$(BIN)/python benchmarks/run.py

benchspark: $(VENV)/installed-dev java ## Measure Spark against Parquet of the same rows: ten minutes.
	$(BIN)/python benchmarks/spark.py

clean: ## Remove what make has made.
	rm -rf $(VENV) .venv-* build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
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
