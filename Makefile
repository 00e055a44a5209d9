# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each creates the environment in .venv by itself if it is missing.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LLMCTL := $(BIN)/llmctl
DEMO ?= demo
DEMO_CONFIGS ?= configs/demo
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo check format lint types unit architecture test test-distributed test-faults docs wheel clean

help:  ## show what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: $(STAMP)  ## create the environment in .venv

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --constraint constraints.txt
	touch $@

# The chain of llmctl commands from raw text to an aligned model; each target is a stage's manifest.
include src/llmctl/demo/chain.mk

demo: $(DEMO)/report/manifest.json  ## run the whole chain on the corpus that ships with the package
	@echo "The demo is in $(DEMO)/: open $(DEMO)/report/index.html, or run: $(LLMCTL) show $(DEMO)/ppo"

format: $(STAMP)  ## put the code in shape
	$(BIN)/ruff format src tests docs benchmarks
	$(BIN)/ruff check --fix src tests docs benchmarks

lint: $(STAMP)
	$(BIN)/ruff format --check src tests docs benchmarks
	$(BIN)/ruff check src tests docs benchmarks

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest tests/unit tests/cli -q -n $(WORKERS) -m "not slow"

architecture: $(STAMP)
	$(BIN)/python -m pytest tests/architecture -q

check: lint types unit architecture  ## format, lint, types, fast tests, architecture

test: check  ## everything that `make check` runs, and the whole chain, several processes, injected faults (small part)
	$(BIN)/python -m pytest tests -q -n $(WORKERS) -m "slow or distributed or faults" --ignore=tests/architecture -k "not full_grid"
	$(BIN)/python -m pytest tests/pipeline -q -k "not full_grid"

test-distributed: $(STAMP)  ## the whole grid of layouts on several processes
	$(BIN)/python -m pytest tests/distributed -q

test-faults: $(STAMP)  ## every injected fault, and the whole shared corpus killed and resumed
	$(BIN)/python -m pytest tests/faults -q
	$(BIN)/python -m pytest tests/pipeline -q -k full_grid

docs: $(STAMP)  ## write the generated reference pages
	$(BIN)/python docs/generate_reference.py

wheel: $(STAMP)  ## build the wheel into dist/
	$(BIN)/python -m build --wheel

clean:  ## remove what was built (not the environment)
	rm -rf dist build $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis
