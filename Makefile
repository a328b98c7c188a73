# Everything runs in a virtual environment that make builds itself; `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.lockctl-ready
WORKERS ?= 2
PYTEST_ARGS ?=
SOURCES := $(wildcard lockctl tests alembic benchmarks)

# Every test that runs the command would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-real check format bench docs lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## the whole story on a PostgreSQL of its own, under a minute
	@$(BIN)/lockctl demo

test: check ## check, then every test (WORKERS=2, PYTEST_ARGS='-k …')
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

test-real: $(READY) ## tests with the real software of others, installed with npm (needs Node; not part of `make test`)
	LOCKCTL_TEST_REAL=1 $(BIN)/python -m pytest tests/real $(PYTEST_ARGS)

check: $(READY) ## ruff (format and lint), mypy strict, import-linter
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

format: $(READY) ## let ruff format and mend what it can
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: $(READY) ## measure beside the peers; writes benchmarks/results.md
	$(BIN)/python -m benchmarks

docs: $(READY) ## write docs/commands.md from the program
	$(BIN)/python -m lockctl.cli.reference > docs/commands.md

lock: $(READY) ## resolve requirements.txt anew from pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --upgrade --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --group dev --output-file requirements.txt pyproject.toml

clean: ## remove what building and testing left (the virtual environment stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find lockctl tests alembic benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A virtual environment of another Python, or one that was moved, is made anew; any other is brought up to date.
$(READY): requirements.txt pyproject.toml lockctl/__init__.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lockctl needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	@touch $@
