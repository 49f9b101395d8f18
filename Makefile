# Everything runs in .venv, which these targets create and keep up to date. You need Python 3.11 or newer, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
FULL := $(VENV)/.full
# Most installed modules are never imported: those that are get compiled then, once.
export PYTHONDONTWRITEBYTECODE :=
export NO_MKDOCS_2_WARNING := 1
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
LOCKED := $(PIP) --no-deps --require-hashes -r
# The blocks of the lock that belong to torch's build for CUDA, or all the others.
BLOCKS := awk '/^[^ ]/ {cuda = /^(nvidia|cuda)-/} cuda == wanted'
# A build of torch that PyPI does not have: for CPUs, CPython 3.11 and Linux on x86-64.
TORCH := 2.13.0
CPU_TORCH := sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
PACKAGE := $(shell find src -type f -not -name '*.pyc') pyproject.toml
REST := $(shell find tests benchmarks experiments examples docs results -type f -not -name '*.pyc') README.md

BROWSER := command -v chromium || command -v chromium-browser || command -v google-chrome

.PHONY: demo test docs gallery bench lint types unit browser format lock release audit clean install

install: $(FULL)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "besnn needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# What a user gets, the library and the command line, in the versions of the lock.
$(BASE): pyproject.toml requirements.lock | $(BIN)/python
	grep == requirements.lock | tr -d '\\' > $(VENV)/constraints.txt
	$(PIP) -c $(VENV)/constraints.txt -e .
	touch $@

# The same with the extras and the development tools: exactly the files whose hashes are in the lock. With hashes, pip would
# prefer PyPI's torch to a build for this machine, so it comes first and its hash is looked up.
$(FULL): pyproject.toml requirements.lock | $(BIN)/python
	$(BIN)/python -m pip download --quiet --no-deps --dest $(VENV)/torch torch==$(TORCH)
	grep -q "$$(sha256sum $(VENV)/torch/torch-*.whl | cut -d ' ' -f 1)" requirements.lock
	$(PIP) --no-deps $(VENV)/torch/torch-*.whl
	rm -r $(VENV)/torch
	$(BLOCKS) wanted=0 requirements.lock > $(VENV)/requirements.txt
	$(LOCKED) $(VENV)/requirements.txt
	$(BLOCKS) wanted=1 requirements.lock > $(VENV)/cuda.txt
	! grep -qE '^Requires-Dist: (nvidia|cuda)-' $(VENV)/lib/python*/site-packages/torch-*/METADATA || $(LOCKED) $(VENV)/cuda.txt
	$(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	touch $(BASE) $@

# Resolves all versions again, except torch's. Commit the lock once `make test` passes with it.
lock: $(BIN)/python
	$(PIP) uv
	echo torch==$(TORCH) > $(VENV)/constraints.txt
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11.7 --generate-hashes --upgrade --quiet \
		--no-annotate --custom-compile-command "make lock" -c $(VENV)/constraints.txt -o requirements.lock
	sed -i 's/^torch==.*/&\n    --hash=$(CPU_TORCH) \\/' requirements.lock

# Runs again only if the package has changed.
demo: demo/summary.txt
	@cat demo/summary.txt

demo/summary.txt: $(BASE) $(PACKAGE)
	$(BIN)/besnn demo --output demo

test: $(VENV)/.tested
	@cat $(VENV)/.tested

$(VENV)/.tested: $(FULL) $(PACKAGE) $(REST)
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory -j2 types unit
	echo "lint, types and tests passed" > $@

# The documentation site, in site/: start with site/index.html.
docs: $(FULL)
	$(BIN)/python -m mkdocs build --quiet

# The pictures of the gallery, by running its examples.
gallery: $(FULL)
	cd docs/gallery && for name in *.png; do MPLBACKEND=agg ../../$(BIN)/python ../../examples/$${name%.png}.py || exit 1; done

# How fast besnn is on this machine; see docs/speed.md.
bench: $(FULL)
	$(BIN)/python -m benchmarks

lint: $(FULL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(FULL)
	$(BIN)/mypy

unit: $(FULL) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --cov-fail-under=95 -q -rs

# The page is tested in a real browser: an installed one, or Debian's if it may be installed.
browser:
	@{ $(BROWSER); } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no browser: the page's tests are skipped (apt-get install chromium, or set BESNN_CHROMIUM)"

format: $(FULL)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# What is published, in dist/: wheel, source distribution, bill of materials (CycloneDX), and the checksums of all three.
release: $(FULL)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/python -m benchmarks sbom dist/besnn.cdx.json
	cd dist && sha256sum * > SHA256SUMS

# Known vulnerabilities of the versions in requirements.lock. Also fails if PyPI cannot be asked about one of them.
audit: $(BIN)/python
	$(BIN)/python -m venv $(VENV)/.audit
	$(VENV)/.audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/.audit/bin/pip-audit --requirement requirements.lock --no-deps --disable-pip --strict

clean:
	rm -rf $(VENV) demo dist site
