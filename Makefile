# The developer's interface. `make demo` and `make test` need only make and Python 3.11 or newer.
#
#   make demo        install perdure into .venv and run the demonstration
#   make test        every fast test, two processes
#   make test-slow   learning curves and other minutes-long checks; writes docs/results/
#   make lint        ruff, pyright, import contracts, documentation
#   make docs        the documentation site, into site/
#   make clean       remove what the other targets made (.venv included)
#
# PYTHON=... chooses the interpreter, VENV=... the environment's folder, JOBS=... the test processes.

VENV ?= .venv
JOBS ?= 2
SHELL := /bin/bash
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt

# The first interpreter that is new enough and can make an environment. A pyenv shim may exist and not work.
PYTHON ?= $(shell for candidate in python3.11 python3.12 python3.13 python3 python; do \
	"$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo "$$candidate" && break; done)

# Processes share the cores; one that takes them all slows the others.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 JAX_PLATFORMS=cpu \
	XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

.PHONY: demo test test-slow lint docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/perdure demo

test: $(VENV)/.installed-dev
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow"

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is at site/index.html"

clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with venv and ensurepip was found;" \
		"install one (Debian: apt-get install python3 python3-venv) or pass PYTHON=/path/to/python"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	touch $@

$(VENV)/.installed: $(VENV)/.created $(INPUTS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[report]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed $(INPUTS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[report,language,trl,openenv]" --group dev --group docs
	touch $@
