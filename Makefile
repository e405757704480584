# `make reproduce` and `make test` work on a fresh clone with git, make and Python >= 3.11.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NOTEBOOKS = $(wildcard notebooks/*.ipynb)
CANDIDATES := python3 python3.11 python3.12 python3.13 python3.14 python

# A file of tests, or a notebook, stays with one worker: fixtures and kernels are made once for it.
# A worker that dies, or is ended because a test hangs, is not replaced: the run fails there.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=10

export NUMBA_CACHE_DIR := $(CURDIR)/build/numba

.PHONY: help reproduce test test-slow lint lab bench clean

help:
	@echo "make reproduce   run every study into build/"
	@echo "make test        lint, import contract, tests, notebooks against their stored outputs"
	@echo "make test-slow   the tests that need minutes or the network"
	@echo "make lab         open JupyterLab on the notebooks"
	@echo "make bench       measure planning, simulation and memory"
	@echo "make clean       remove build/ and caches"

# PYTHON=/path/to/python chooses the interpreter; otherwise the first that is new enough.
$(STAMP): pyproject.toml constraints.txt
	@found=""; \
	for candidate in $(if $(PYTHON),$(PYTHON),$(CANDIDATES)); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	     >/dev/null 2>&1; then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "No Python >= 3.11 with venv was found: install one or call make PYTHON=/path/to/python." >&2; \
	  exit 1; \
	fi; \
	echo "Making $(VENV) with $$found"; \
	"$$found" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	@touch $@

reproduce: $(STAMP)
	$(BIN)/ipusim reproduce --out build

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" tests
	$(BIN)/python -m pytest $(PARALLEL) --nbval-lax --nbval-current-env --nbval-cell-timeout=900 \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg $(NOTEBOOKS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

lab: $(STAMP)
	$(BIN)/jupyter lab --notebook-dir notebooks $(LAB_OPTIONS)

bench: $(STAMP)
	$(BIN)/python -m ipusim.bench

clean:
	rm -rf build dist .hypothesis .pytest_cache .ruff_cache .import_linter_cache .coverage
	find ipusim tests notebooks -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
