# Two commands do everything on a fresh machine:  make audit   and   make test
PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
OUT    ?= audit
BIN     = $(VENV)/bin
# torch is pinned to its CPU build; see constraints.txt
PIP     = $(BIN)/python -m pip --disable-pip-version-check
export PIP_CONSTRAINT = $(CURDIR)/constraints.txt

.PHONY: help setup audit test test-engines test-bundles test-kills test-all calibrate kills bench lint format wheel clean
.DEFAULT_GOAL := help

help:  ## Show this help
	@echo 'engine-NAME Make the environment of an engine: $(ENGINES)'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Strict editable mode links single files, so a new file needs a new install: every source file is
# a prerequisite, and a repeated run that finds nothing new installs nothing.
SOURCES := $(shell find conformance adapters suites reports -name '*.py' -o -name '*.j2' -o -name '*.json' -o -name '*.txt' 2>/dev/null)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.packages: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet 'setuptools>=77' torch
	$(PIP) install --quiet '.[dev]'
	$(PIP) uninstall --quiet --yes specdec-conformance
	@touch $@

$(VENV)/.installed: $(VENV)/.packages $(SOURCES)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable . \
	    --config-settings editable_mode=strict
	@touch $@

setup: $(VENV)/.installed  ## Create .venv with everything needed

audit: setup  ## Judge transformers' assisted generation; leaves audit/report.html
	$(BIN)/conformance run transformers transformers:prompt-lookup --jobs $(JOBS) --out $(OUT)

# virtual environments of their own, in $CONFORMANCE_ENGINES or the user's data folder
ENGINES = xllamacpp openvino-genai vllm mlx-lm
.PHONY: $(ENGINES:%=engine-%)
$(ENGINES:%=engine-%): engine-%: setup
	$(BIN)/conformance setup $*

# each of the processes that run tests is one thread: more would wait for each other
ONE = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
test: setup  ## Run the tests, without the long ones and without other processes' engines
	$(ONE) $(BIN)/python -P -m pytest -n $(JOBS) --dist loadfile -m "not long and not engines"

test-engines: setup  ## Run the tests that ask engines and servers in processes of their own
	$(ONE) $(BIN)/python -P -m pytest -n $(JOBS) --dist loadfile -m "engines and not long"

FORGERIES = hostile_bundle forged_evidence forged_report forged_run forged_files fuzzed altered verify_command
test-bundles: setup  ## Run the tests of 'verify' on forged and hostile bundles
	$(ONE) $(BIN)/python -P -m pytest -n $(JOBS) --dist loadfile $(FORGERIES:%=tests/verify/test_%.py) -k "not hundred"

KILLS = power/test_power test_diagnosis verifier/test_verifier_kills
test-kills: setup  ## Run the whole catalogue of faults: each killed, and named
	$(ONE) $(BIN)/python -P -m pytest -n $(JOBS) $(KILLS:%=tests/%.py)

test-all: setup  ## Run every test
	$(ONE) $(BIN)/python -P -m pytest -n $(JOBS) --dist loadfile

# QUICK=1 takes a minute or two and leaves the written page alone; FULL=1 adds hours of judging;
# ONLY=detection, judging, shares or engines runs one part again, ONLY=e-process of detection what
# is ours; ONLY=judging CELL='152000 1000000' one cell (vocabulary, tokens)
BENCH = $(if $(QUICK),build/bench,tests/benchmarks)/results.json
BENCH_PAGE = $(if $(QUICK),build/bench,docs)/benchmarks.md
bench: setup  ## Run the benchmarks; writes docs/benchmarks.md (QUICK=1: build/bench)
	$(ONE) PYTHONPATH=tests $(BIN)/python -P -m benchmarks \
	    $(if $(QUICK),--quick) $(if $(FULL),--full) $(if $(ONLY),--only $(ONLY)) $(if $(CELL),--cell $(CELL)) --jobs $(JOBS) \
	    --json $(BENCH) --page $(BENCH_PAGE)

# false alarms of every test and of whole runs, and the kill matrix of both tiers; about four hours
TABLES = build/measured
calibrate: setup  ## Measure false alarms and kills; writes docs/measured.md and what reports carry
	rm -rf $(TABLES) && mkdir -p $(TABLES)
	CONFORMANCE_TABLES=$(abspath $(TABLES)) $(BIN)/python -P -m pytest -n $(JOBS) tests/calibration
	$(MAKE) kills

POWER = $(ONE) $(BIN)/python -P tests/power
kills: setup  ## The kill matrix alone: every fault where it shows; goes on if interrupted
	mkdir -p $(TABLES)
	$(POWER)/kill_matrix.py --jobs $(JOBS) --out $(TABLES)/kills_engine_standard.json
	$(POWER)/kill_matrix.py --jobs $(JOBS) --profile audit --out $(TABLES)/kills_engine_audit.json
	$(POWER)/kill_matrix.py --jobs $(JOBS) --tier verifier --out $(TABLES)/kills_verifier_standard.json
	$(POWER)/kill_matrix.py --jobs $(JOBS) --tier verifier --profile audit --out $(TABLES)/kills_verifier_audit.json
	$(POWER)/share_check.py --jobs $(JOBS) --out $(TABLES)/shares.json
	$(POWER)/naming.py --jobs $(JOBS) --out $(TABLES)/named.json
	$(BIN)/python -P tests/measure.py $(TABLES)

# mypy runs from elsewhere: here, the folder conformance/ would hide the package with its subpackages
lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd tests && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml

format: setup  ## Let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: setup  ## Build sdist and wheel into dist/
	$(BIN)/python -m build --outdir dist

clean:  ## Remove everything that was made here
	rm -rf $(VENV) build dist *.egg-info $(OUT) conformance-report .pytest_cache .mypy_cache .ruff_cache
