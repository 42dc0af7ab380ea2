PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check format coverage docs results bench bench-quick results-reach clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(READY)  ## Create the virtual environment (other targets do this if needed)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("fedlgd needs Python 3.11 or newer; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
	@echo "Ready. To type fedlgd in this terminal: source $(BIN)/activate"

demo: setup  ## Compare FedAvg with FedLGD on built-in data, offline, and write a report
	$(BIN)/fedlgd demo

test: setup  ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: setup  ## Run all tests, including slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'slow or not slow'

check: setup  ## Check format and lint (ruff), types (mypy) and layers (import-linter)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

coverage: setup  ## Run the tests and show lines without coverage
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term-missing:skip-covered

docs: $(VENV)/.docs  ## Check the English of the pages, and build them as a site: out/site/index.html
	$(BIN)/python -m results.style
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Site: out/site/index.html"

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

results: setup  ## Write the pages that are generated from the code and from the stored runs
	$(BIN)/python -m results

bench: setup  ## Benchmark the published procedure and ours, phase by phase (most of an hour)
	$(BIN)/python -m bench.run

bench-quick: setup  ## A benchmark in under two minutes: smaller network, few repetitions
	$(BIN)/python -m bench.run --quick --out out/bench-quick.jsonl

results-reach: setup  ## CPU time to 84 % on the real digit sites (hours; needs: fedlgd data fetch digits)
	$(BIN)/python -m results.reach out/reach 0 1 2

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
