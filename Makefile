# Everything a person does with this repository. Needs: make, Python 3.11 or later with venv and pip.
#
#   make demo    runs notebooks/01-first-task.ipynb without a screen; ISOLATION=docker|bubblewrap|process chooses
#   make demo MODEL=local   the same, with a real model for its first task, on this machine: fetches 1.1 GB, needs 3 GB of memory
#   make lab     opens that notebook in JupyterLab
#   make quick   tests that need no sandbox, server or browser          make check   style, spelling, types, imports
#   make test    tests of everything a change can break                 make test-all  and the long campaigns
#   make slowest the slowest of the tests that ran last                 make busy   make test beside LOOPS=6 busy loops
#   make measure IFBENCH=IFBench_test.jsonl   measures a real model on this machine, for hours; MODEL=local/NAME, MEASURE=... options
#   make lock    renews the versions that tests use                     make lowest the oldest versions that work
#   make labextension   builds what JupyterLab shows runs with; needs Node 20.19 or later with npm
#   make docs    the site of the documentation        make docs-release OUT=site   the same, under its version
#   make build   wheel and sdist into dist/                             make clean   removes what the above made
#   make wheel-check   the wheel of dist/ in an empty environment: the demo runs, JupyterLab lists the extension
#   make tag-check TAG=v0.1.0   the tag of a release names the package's version      make publish   dist/ to PyPI
#
# VENV=folder puts the environment elsewhere; PYTHON=python3.12 chooses the interpreter; PYTEST=... adds arguments to
# pytest; WORKERS=2 runs that many tests at once, those in a browser by one worker.

SHELL := /bin/bash
VENV ?= .venv
OUT ?= out
ISOLATION ?=
MODEL ?=
PYTEST ?=
WORKERS ?= 4
PYTHON ?=

LOOPS ?= 6

# Compiled files are kept, whatever the environment says: without them pytest rewrites each test in each worker, and each of
# the many kernels, servers and commands that tests start compiles the package.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check

UV_COMPILE = $(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

.DEFAULT_GOAL := help
.PHONY: help setup demo measure docs docs-release lab labextension quick test test-all slowest check lock lowest busy format build \
	wheel-check tag-check publish clean

help:
	@sed -n 's/^#  *\(make .*\)/\1/p' Makefile

setup: $(VENV)/.test $(VENV)/.lint $(VENV)/.demo

demo: $(VENV)/.demo $(if $(filter local local/%,$(MODEL)),$(VENV)/.local)
	@$(PY) notebooks/demo.py --out '$(OUT)' --isolation '$(ISOLATION)' --model '$(MODEL)'

lab: $(VENV)/.lab
	$(call labextension_if_node,runs are shown without the JupyterLab extension)
	@$(BIN)/jupyter lab notebooks/01-first-task.ipynb

labextension: $(VENV)/.labextension

quick: $(VENV)/.test
	$(call pytest,not engine and not campaign) $(if $(PYTEST),,tests/unit)

test: $(VENV)/.test
	$(call labextension_if_node,tests in a browser cannot pass)
	$(call pytest,not campaign)

test-all: export LLM_SANDBOX_TESTS := $(or $(LLM_SANDBOX_TESTS),campaign)
# The tests of training install torch, which is large: only when all campaigns run, or one of theirs is named.
test-all: $(VENV)/.test $(if $(if $(PYTEST),$(findstring training,$(PYTEST)),all),$(VENV)/.rl)
	$(call labextension_if_node,tests in a browser cannot pass)
	$(call pytest,)

# A model with and without a sandbox, and in other packages: docs/explanation/measured.md. It continues where it was killed.
measure: $(VENV)/.test
	@PYTHONPATH=tests $(PY) -m measure --model '$(or $(MODEL),local/qwen2.5-coder-1.5b)' $(if $(IFBENCH),--ifbench '$(IFBENCH)') $(MEASURE)

docs: $(VENV)/.docs
	@$(PY) -m sphinx -W --keep-going -q -b html -d out/docs/doctrees docs out/docs/html
	@$(PY) docs/ask_search.py out/docs/html
	@echo 'The site is out/docs/html/index.html'

docs-release: $(VENV)/.docs
	@$(PY) docs/release.py '$(OUT)'

slowest:
	@$(PY) tests/slowest.py .cache/junit

# Most tests wait for other processes most of the time. So a few run at once, a file at a time. A test that failed runs once
# more, alone, at the end: CONTRIBUTING.md says what is unsteady and what is red.
define pytest
@$(PY) tests/run_again.py $@ -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m '$(1)' $(PYTEST)
endef

check: $(VENV)/.lint $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell llm_sandbox_nb labextension/src docs notebooks binder *.md
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" lint-imports
	$(BIN)/zizmor --offline --quiet --pedantic .github
	$(PY) tests/check_tests.py
	$(PY) -m pytest -q -p no:cacheprovider -n 2 tests/project
	@if command -v shellcheck >/dev/null; then shellcheck .ci/*.sh .ci/run; else echo 'shellcheck is not installed: the scripts are not checked.'; fi
	@if [ -d labextension/node_modules ]; then cd labextension && npm run --silent lint; else \
		echo 'The TypeScript is not checked: call make labextension first.'; fi

# The index is pip's own; its address is in no lock. Each lock is for Python 3.11 and later on every system.
lock: $(VENV)/.uv
	@mkdir -p requirements
	@$(UV_COMPILE) --extra demo --extra benchmark --extra documents --extra local --extra ray --group test --group conformance -o requirements/test.txt
	@$(UV_COMPILE) --group lint -c requirements/test.txt -o requirements/lint.txt
	@$(UV_COMPILE) --group docs -c requirements/test.txt -o requirements/docs.txt

# The oldest versions that pyproject.toml allows, on its oldest Python, in an environment of their own.
lowest: $(VENV)/.uv $(VENV)/.test
	@$(PY) tests/lowest.py .cache/lowest

busy: $(VENV)/.test
	@$(PY) tests/busy.py $(LOOPS) $(MAKE) --no-print-directory test

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(VENV)/.build
	@rm -rf dist
	@$(PY) -m build --outdir dist .

wheel-check: | $(PY)
	@$(PY) tests/installed_wheel.py dist

tag-check: | $(PY)
	@version=$$($(PY) -c 'import runpy; print(runpy.run_path("llm_sandbox_nb/version.py")["__version__"])'); \
	[ '$(TAG)' = "v$$version" ] || { echo "The tag is '$(TAG)', but llm_sandbox_nb/version.py says $$version." >&2; exit 1; }

# Without a user name and a password, twine uploads from a workflow that PyPI trusts, and from nowhere else.
publish: $(VENV)/.publish
	@$(PY) -m twine check --strict dist/*
	@$(PY) -m twine upload --non-interactive dist/*

clean:
	rm -rf '$(VENV)' '$(OUT)' dist build labextension/node_modules labextension/lib \
		llm_sandbox_nb/labextension llm_sandbox_nb/notebook/page sandbox-runs notebooks/sandbox-runs *.egg-info \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment; each purpose adds its packages once, and again when pyproject.toml changes.
$(PY):
	@python=''; \
	for name in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
		if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo 'Python 3.11 or later is needed and was not found: install it, or name it with PYTHON=/path/to/python3.' >&2; exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv '$(VENV)' || { rm -rf '$(VENV)'; \
		echo 'The environment could not be made: install python3-venv (Debian, Ubuntu), then call make again.' >&2; exit 1; }
	@$(PIP) install --upgrade 'pip>=25.1'  # an older one takes minutes to find what fits together, and knows no groups

, := ,

define install
@echo 'Installing the package and what it needs ($(1)); the first time takes a minute or two'
@$(PIP) install --editable '.[$(1)]' $(2)
@touch $@
endef

$(VENV)/.demo: pyproject.toml | $(PY)
	$(call install,demo)

$(VENV)/.local: pyproject.toml | $(PY)
	$(call install,demo$(,)local)

$(VENV)/.lab: pyproject.toml | $(PY)
	$(call install,demo$(,)lab)

# For what is checked: the versions of requirements/*.txt, so that red never comes from outside; `make lock` renews them.
define install_locked
@echo 'Installing the package and what it needs ($(1)), in the versions of requirements/$(1).txt; the first time takes a minute or two'
@$(PIP) install --require-hashes --requirement requirements/$(1).txt || { \
	echo 'requirements/$(1).txt does not fit this Python or machine: installing the newest versions that pyproject.toml allows.' >&2; }
@$(PIP) install --editable '.$(2)' $(3)
@touch $@
endef

$(VENV)/.test: pyproject.toml requirements/test.txt | $(PY)
	$(call install_locked,test,[demo$(,)benchmark$(,)documents$(,)local$(,)ray],--group test --group conformance)
	@$(BIN)/llm-sandbox-nb models --fetch smollm2-135m

# torch comes first, alone and in this version: the index's own build of it is that for the CPU.
$(VENV)/.rl: pyproject.toml | $(PY)
	@$(PIP) install torch==2.13.0
	$(call install,rl)

$(VENV)/.docs: pyproject.toml requirements/docs.txt | $(PY)
	$(call install_locked,docs,,--group docs)

$(VENV)/.lint: pyproject.toml requirements/lint.txt | $(PY)
	$(call install_locked,lint,,--group lint)

# The extension is built in the checkout, and the environment's Jupyter is led there, so that it always shows the newest.
node_works = npm --version >/dev/null 2>&1 && node -e 'const [a, b] = process.versions.node.split("."); process.exit(+a > 20 || +a == 20 && +b >= 19 ? 0 : 1)' 2>/dev/null
define labextension_if_node
@if $(node_works); then $(MAKE) --no-print-directory labextension; else \
	echo 'Node 20.19 or later with npm was not found: $(1).' >&2; fi
endef
labextensions := $(VENV)/share/jupyter/labextensions

labextension/node_modules/.package-lock.json: labextension/package-lock.json
	@$(node_works) || { echo 'Node 20.19 or later with npm is needed and was not found.' >&2; exit 1; }
	@echo 'Installing what the JupyterLab extension is built with; this takes about half a minute'
	@cd labextension && npm ci --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@

$(VENV)/.labextension: labextension/node_modules/.package-lock.json $(shell find labextension/src labextension/style labextension/schema -type f) \
		labextension/package.json labextension/tsconfig.json $(wildcard labextension/build-*.mjs labextension/*.config.cjs) \
		labextension/generate-events.py labextension/generate-examples.py $(wildcard llm_sandbox_nb/trajectory/*event*.py) | $(VENV)/.demo
	@$(PY) labextension/generate-events.py --check
	@$(PY) labextension/generate-examples.py --check
	@cd labextension && npm run --silent build
	@mkdir -p '$(labextensions)' && rm -rf '$(labextensions)/llm-sandbox-nb'
	@ln -s '$(abspath llm_sandbox_nb/labextension)' '$(labextensions)/llm-sandbox-nb'
	@touch $@

$(VENV)/.uv: | $(PY)
	@$(PIP) install uv
	@touch $@

$(VENV)/.build: | $(PY)
	@$(PIP) install build
	@touch $@

$(VENV)/.publish: | $(PY)
	@$(PIP) install twine==7.0.0
	@touch $@
