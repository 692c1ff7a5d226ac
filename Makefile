# Everything a person does with this repository. Needs: make, Python 3.11 or later with venv and pip.
#
#   make demo    runs notebooks/01-first-task.ipynb without a screen; ISOLATION=docker|bubblewrap|process chooses
#   make lab     opens that notebook in JupyterLab
#   make quick   tests that need no sandbox, server or browser          make check   style, spelling, types, imports
#   make test    tests of everything a change can break                 make test-all  and the long campaigns
#   make slowest the slowest of the tests that ran last
#   make labextension   builds what JupyterLab shows runs with; needs Node 20.19 or later with npm
#   make docs    the site of the documentation        make docs-release OUT=site   the same, under its version
#   make build   wheel and sdist into dist/                             make clean   removes what the above made
#
# VENV=folder puts the environment elsewhere; PYTHON=python3.12 chooses the interpreter; PYTEST=... adds arguments to
# pytest; WORKERS=2 runs that many tests at once, those in a browser by one worker.

SHELL := /bin/bash
VENV ?= .venv
OUT ?= out
ISOLATION ?=
PYTEST ?=
WORKERS ?= 4
PYTHON ?=

BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo docs docs-release lab labextension quick test test-all slowest check format build clean

help:
	@sed -n 's/^#  *\(make .*\)/\1/p' Makefile

setup: $(VENV)/.test $(VENV)/.lint $(VENV)/.demo

demo: $(VENV)/.demo
	@$(PY) notebooks/demo.py --out '$(OUT)' --isolation '$(ISOLATION)'

lab: $(VENV)/.lab
	$(call labextension_if_node,runs are shown without the JupyterLab extension)
	@$(BIN)/jupyter lab notebooks/01-first-task.ipynb

labextension: $(VENV)/.labextension

quick: $(VENV)/.test
	$(call pytest,not engine and not campaign)

test: $(VENV)/.test
	$(call labextension_if_node,tests in a browser cannot pass)
	$(call pytest,not campaign)

test-all: export LLM_SANDBOX_TESTS := $(or $(LLM_SANDBOX_TESTS),campaign)
# The tests of training install torch, which is large: only when all campaigns run, or one of theirs is named.
test-all: $(VENV)/.test $(if $(if $(PYTEST),$(findstring training,$(PYTEST)),all),$(VENV)/.rl)
	$(call labextension_if_node,tests in a browser cannot pass)
	$(call pytest,)

docs: $(VENV)/.docs
	@$(PY) -m sphinx -W --keep-going -q -b html -d out/docs/doctrees docs out/docs/html
	@echo 'The site is out/docs/html/index.html'

docs-release: $(VENV)/.docs
	@$(PY) docs/release.py '$(OUT)'

slowest:
	@$(PY) tests/slowest.py .cache/junit

# Most tests wait for other processes most of the time. So a few run at once, a file at a time.
define pytest
@mkdir -p .cache/junit
@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m '$(1)' --junitxml=.cache/junit/$@.xml $(PYTEST)
endef

check: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell llm_sandbox_nb labextension/src docs notebooks binder *.md
	$(BIN)/mypy
	PATH="$(abspath $(BIN)):$$PATH" lint-imports
	@if [ -d labextension/node_modules ]; then cd labextension && npm run --silent lint; else \
		echo 'The TypeScript is not checked: call make labextension first.'; fi

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(VENV)/.build
	@rm -rf dist
	@$(PY) -m build --outdir dist .

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
	@$(PIP) install --upgrade pip || true  # that of the system may be old, and take minutes to find what fits together

, := ,

define install
@echo 'Installing the package and what it needs ($(1)); the first time takes a minute or two'
@$(PIP) install --editable '.[$(1)]' $(2)
@touch $@
endef

$(VENV)/.demo: pyproject.toml | $(PY)
	$(call install,demo)

$(VENV)/.lab: pyproject.toml | $(PY)
	$(call install,demo$(,)lab)

$(VENV)/.test: pyproject.toml | $(PY)
	$(call install,test$(,)conformance)

# torch comes first, alone and in this version: the index's own build of it is that for the CPU.
$(VENV)/.rl: pyproject.toml | $(PY)
	@$(PIP) install torch==2.13.0
	$(call install,rl)

$(VENV)/.docs: pyproject.toml | $(PY)
	$(call install,docs)

$(VENV)/.lint: pyproject.toml | $(PY)
	$(call install,lint)

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

$(VENV)/.build: | $(PY)
	@$(PIP) install build
	@touch $@
