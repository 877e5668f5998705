# digen: `make` lists what there is to do. Needs bash, make and Python 3.11 to 3.14.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup train test test-fast coverage test-slow test-ci test-slice test-layouts test-algorithms test-families test-nightly test-operation test-gpu fuzz lint bench ui docs docs-images golden clean

# No telemetry: without these, each start also waits for name look-ups where there is no network.
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := true
export MLFLOW_DISABLE_TELEMETRY := true
export HF_HUB_DISABLE_TELEMETRY := 1
export ORT_DISABLE_TELEMETRY := 1
# Bytecode is kept, also where images of Python turn that off: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
STAMP := .venv/digen-is-set-up
CONFIG ?= deployments/configs/shapes.toml
ARGS ?=
# Tests run side by side, each process with a Prefect server of its own; a file stays in one process.
# They wait for servers and workers a third of their time: one process more than this machine's cores.
JOBS ?= 3
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder
PUSHED := not gpu and not layouts and not algorithms and not families and not nightly and not operation
DAILY := $(PUSHED) and not ci
COVERED := control algorithms maths training transport checkpoints
FAST := --ignore tests/integration --ignore tests/wheel
RANDOM_ORDERS := control maths sim trace training transport
SEED ?= 0
SLICE ?= 30
MINUTES ?= 60

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | column -t -s $$'\t'
	@echo
	@echo 'make train ARGS="--num-iterations 3 --name try" passes settings on to digen.'

setup: $(STAMP) ## make .venv and install digen in it; does nothing if nothing has changed

$(STAMP): pyproject.toml constraints.txt
	@python=""; \
	for name in "$$PYTHON" $(BIN)/python python3 python3.{14..11}; do \
	  test -n "$$name" || continue; \
	  "$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' \
	    2>/dev/null && python="$$name" && break; \
	done; \
	test -n "$$python" || { echo "digen needs Python 3.11 to 3.14; this machine's python3 is:" \
	  "$$(python3 --version 2>&1). Name another one: make setup PYTHON=/path/to/python" >&2; \
	  exit 1; }; \
	test -x $(BIN)/pip || "$$python" -m venv .venv || { echo "$$python cannot make a virtual" \
	  "environment; install its venv module (on Debian: apt install python3-venv)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

train: setup ## the main job: RL post-training of the embedded model on this machine
	$(BIN)/digen train $(CONFIG) $(ARGS)

lint: setup ## style, types and the import rule
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint, then the tests of every change: all but the marks below and what needs a GPU
	$(PYTEST) -m "$(DAILY)" $(ARGS)

test-fast: setup ## for every save: all but whole runs, the wheel and what is slow
	HYPOTHESIS_PROFILE=fast $(PYTEST) -m "$(DAILY) and not slow" $(FAST) $(ARGS)

coverage: setup ## which lines and branches of the decisions, the maths and what is kept no fast test reaches; 95% is the floor
	HYPOTHESIS_PROFILE=fast $(PYTEST) -m "$(DAILY)" $(FAST) tests/digen_core tests/deployments/views \
	  $(addprefix --cov digen_core/,$(COVERED)) --cov-branch --cov-report= $(ARGS)
	@for folder in $(COVERED); do \
	  $(BIN)/coverage report --skip-covered --show-missing --fail-under 95 --include "digen_core/$$folder/*" || exit 1; \
	done

test-slow: setup ## only the tests of every change that take long
	$(PYTEST) -m "$(DAILY) and slow" $(ARGS)

test-ci: setup ## the longest tests of every push, which continuous integration runs after `make test`
	$(PYTEST) -m "ci and $(PUSHED)" $(ARGS)

test-slice: setup ## some of the cases of the five targets below: SEED chooses which, SLICE how many
	$(PYTEST) -m "not gpu" --slice $(SEED):$(SLICE) --dist load $(ARGS)

test-layouts: setup ## the weights of every layout on every split of workers; up to 45 minutes
	$(PYTEST) -m layouts --dist load $(ARGS)

test-algorithms: setup ## the weights of every algorithm under every layout; up to 30 minutes
	$(PYTEST) -m algorithms --dist load $(ARGS)

test-families: setup ## the weights of every model family, image and video, and what takes long of each; up to an hour
	$(PYTEST) -m families --dist load $(ARGS)

test-nightly: setup ## proofs by many real processes or at real sizes, and more random orders; up to 40 minutes
	$(PYTEST) -m "nightly and not layouts and not algorithms and not families and not operation" --dist load $(ARGS)
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m "$(PUSHED)" $(addprefix tests/digen_core/,$(RANDOM_ORDERS))

test-operation: setup ## servers that go away, killed runs, browsers, whole sessions, pages followed, stories of failures; up to an hour
	$(PYTEST) -m operation --dist load $(ARGS)

test-gpu: setup ## every family at real width, attention, memory, the search for settings, and gangs of two GPUs and more; skipped where there is none
	$(BIN)/pytest -q -rs -m gpu $(ARGS)

fuzz: setup ## damaged files for all that reads files, for MINUTES; what breaks a reader is kept in tests/fuzz/cases
	FUZZ_MINUTES=$(MINUTES) OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/fuzz -k damaged --timeout 0 $(ARGS)

bench: setup ## what a task costs: bare Dask, digen's runner, Prefect's Dask runner
	$(BIN)/digen bench runner $(ARGS)

ui: setup ## Prefect and MLflow with their pages, for runs of this folder; `digen down` ends them
	$(BIN)/digen up --no-workers

docs: setup ## the pages of docs/ as a site in site/
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict --site-dir site

docs-images: setup ## the pictures of docs/images again, from real runs; up to an hour; ARGS="--only NAME"
	$(BIN)/digen bench pictures $(ARGS)

golden: setup ## the rewards of a short run of the main job, beside those that the repository keeps
	$(BIN)/digen bench golden $(ARGS)

clean: ## remove caches and the virtual environment; runs/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	rm -rf dask-worker-space dask-scratch-space
	find digen_core deployments flows tasks tests -name __pycache__ -type d -prune -exec rm -rf {} +
