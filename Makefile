# `make reproduce` and `make test` work on a fresh clone with git, make and Python >= 3.11.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The longest first.
NOTEBOOKS = $(shell ls -r notebooks/*.ipynb)
CANDIDATES := python3 python3.11 python3.12 python3.13 python3.14 python

# A file of tests, or a notebook, stays with one worker: fixtures and kernels are made once for it.
# A worker that dies, or is ended because a test hangs, is not replaced: the run fails there.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=10

export NUMBA_CACHE_DIR := $(CURDIR)/build/numba

.PHONY: help reproduce test tests check-notebooks tests-and-notebooks test-slow tests-slow tests-without-jit tests-of-bounds mutants nightly lint lab warmup bench bench-peers audit clean

help:
	@echo "make reproduce   run every study into build/"
	@echo "make warmup      compile the kernels and plan some networks, once for a version and machine"
	@echo "make test        lint, import contract, tests, notebooks against their stored outputs"
	@echo "make test-slow   the tests that need minutes or the network; kernels as Python and with bounds"
	@echo "make mutants     break one line at a time: the tests of its room must notice (half an hour)"
	@echo "make nightly     the slow lanes: test-slow, a sample of the mutants, audit, bench"
	@echo "make lab         open JupyterLab on the notebooks"
	@echo "make bench       measure planning, simulation and memory, beside the release before"
	@echo "make bench-peers the same network in simulators of other accelerators (they are installed)"
	@echo "make audit       look up known vulnerabilities of the pinned versions (needs the network)"
	@echo "make clean       remove build/ and caches"
	@echo "make VENV=PATH   with any of these: another place for the environment (.venv)"

PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

# Pinned versions need no resolver and are unpacked on two cores; then pip finds what they left open.
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
	@-grep -v '^#' constraints.txt | xargs -P 2 -n 40 $(PIP) --no-deps 2>/dev/null
	$(PIP) -c constraints.txt -e ".[test]"
	@touch $@

reproduce: warmup
	$(BIN)/ipusim reproduce --out build

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Kernels are compiled once, before several processes would each compile them.
warmup: $(STAMP)
	$(BIN)/ipusim warmup

TESTS = -m "not slow" tests
COMPARED = --nbval-lax --nbval-current-env --nbval-cell-timeout=900 \
  --nbval-sanitize-with tests/nbval_sanitize.cfg $(NOTEBOOKS)

tests: warmup
	$(BIN)/python -m pytest $(PARALLEL) -p no:nbval $(TESTS)

check-notebooks: warmup
	$(BIN)/python -m pytest $(PARALLEL) $(COMPARED)

# As one, so that no core waits for the last file of the other.
tests-and-notebooks: warmup
	$(BIN)/python -m pytest $(PARALLEL) $(COMPARED) $(TESTS)

tests-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# Kernels as Python, and compiled with a check of every index: small shapes, a cache of their own.
KERNEL_TESTS := -m "not slow" tests/numerics tests/compiler/vertices

tests-without-jit: $(STAMP)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest $(KERNEL_TESTS)

tests-of-bounds: $(STAMP)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/numba-bounds \
	  $(BIN)/python -m pytest $(KERNEL_TESTS)

test: PARTS = lint tests-and-notebooks
test-slow: PARTS = tests-slow tests-without-jit tests-of-bounds
nightly: PARTS = test-slow mutants audit bench
nightly: export MUTANTS ?= --sample 40

# All parts run, whichever of them fail.
test test-slow nightly: $(STAMP)
	@failed=""; \
	for part in $(PARTS); do \
	  $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	done; \
	if [ -n "$$failed" ]; then echo "make $@: failed:$$failed" >&2; exit 1; fi

mutants: warmup
	$(BIN)/python tests/mutants.py $(MUTANTS)

lab: warmup
	$(BIN)/jupyter lab --notebook-dir notebooks $(LAB_OPTIONS)

bench: $(STAMP)
	PYTHONPATH=tests/study/argonne $(BIN)/python benchmarks/bench.py

bench-peers: warmup
	$(BIN)/python benchmarks/peers.py

# In an environment of its own; --strict also fails for what cannot be looked up.
audit: $(STAMP)
	$(BIN)/python -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

clean:
	rm -rf build dist .hypothesis .pytest_cache .ruff_cache .import_linter_cache .coverage
	find ipusim tests notebooks -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
