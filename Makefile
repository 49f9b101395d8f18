# Everything runs in .venv, which these targets make and keep up to date; nothing but Python 3.11 or newer, pip and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := $(shell find src tests benchmarks -name '*.py' -o -name '*.yaml' -o -name '*.j2' -o -name '*.html' -o -name '*.js' -o -name '*.css') pyproject.toml README.md $(wildcard docs/*.md)

.PHONY: demo test lint types unit format clean install

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "besnn needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,ray,onnx,dev]'
	touch $@

demo: $(VENV)/.demo
	@cat demo/summary.txt

# Runs again only when something it is made of has changed.
$(VENV)/.demo: $(STAMP) $(SOURCES)
	$(BIN)/besnn demo --output demo
	touch $@

test: $(VENV)/.tested
	@cat $(VENV)/.tested

$(VENV)/.tested: $(STAMP) $(SOURCES)
	$(MAKE) --no-print-directory lint types unit
	echo "lint, types and tests passed" > $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --cov-fail-under=95 -q

format: $(STAMP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo
