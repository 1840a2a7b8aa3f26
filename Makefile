# `make help` lists the targets. Everything runs in .venv, which is set up on the first call.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Real graphs for tests and benchmarks, where they lie beside the project.
ifeq ($(origin FARFLUNG_DATA), undefined)
ifneq ($(wildcard ../shared/data),)
export FARFLUNG_DATA := $(abspath ../shared/data)
endif
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

setup: $(READY) ## create .venv with the tested versions of everything

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY) ## train three methods on handwritten digits over 4 parts and compare them
	$(BIN)/farflung compare digits --methods 'centralised,super-tma,retexo' --parts 4 --seeds 2 --out runs/demo

test: lint ## lint, types and the whole test suite
	$(BIN)/python -m pytest

lint: $(READY) ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## let ruff rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## the measurements of docs/benchmarks.md
	set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done
	$(BIN)/python benchmarks/link_prediction.py --what failures

clean: ## remove .venv and caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
