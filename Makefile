# Everything a developer does, on a machine with nothing but Python >= 3.11 and make.
# `.state/` holds stamps, so that a second call installs only what has changed.

PYTHON ?= python3
# Processes that share the tests. Two is what the CI machine has cores for.
TEST_WORKERS ?= 2
PYTEST_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/pytest --numprocesses $(TEST_WORKERS) --dist worksteal
AGENTS := $(CURDIR)/.state/agents/node_modules/.bin
CLAUDE := $(AGENTS)/claude
CODEX := $(AGENTS)/codex
CLAUDE_ACP := $(AGENTS)/claude-agent-acp
CODEX_ACP := $(AGENTS)/codex-acp
CHROMIUM := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
# A failed part of a pipe is a failed step, which plain sh can't say.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | \
		while IFS='|' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

.PHONY: install
install: .state/dev ## Make .venv with everything that development needs

.PHONY: check
check: style types contracts ## Format check, lint, types, import contracts and the fast tests
	$(PYTEST) -m 'not (slow or scenario or real_agents or browser)' $(PYTEST_ARGS)

.PHONY: test
test: style types contracts agents ## Everything: the checks, and all tests against real services
	SEGUE_TEST_CLAUDE="$$(test -x '$(CLAUDE)' && echo '$(CLAUDE)')" \
		SEGUE_TEST_CODEX="$$(test -x '$(CODEX)' && echo '$(CODEX)')" \
		SEGUE_TEST_CLAUDE_ACP="$$(test -x '$(CLAUDE_ACP)' && echo '$(CLAUDE_ACP)')" \
		SEGUE_TEST_CODEX_ACP="$$(test -x '$(CODEX_ACP)' && echo '$(CODEX_ACP)')" SEGUE_TEST_CHROMIUM='$(CHROMIUM)' \
		$(PYTEST) $(PYTEST_ARGS)

.PHONY: style
style: .state/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

.PHONY: types
types: .state/dev
	$(BIN)/mypy

.PHONY: contracts
contracts: .state/dev
	$(BIN)/lint-imports --no-cache

.PHONY: format
format: .state/dev ## Format the code and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: agents
agents: .state/agents/installed ## Install the real agent CLIs that tests run

.PHONY: coverage
coverage: .state/dev ## Run all tests and show the lines that none of them reaches
	$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

.PHONY: demo
demo: .state/runtime ## Run the whole system once, end to end, in a temporary folder
	$(BIN)/segue demo

.PHONY: bench
bench: .state/dev ## Measure, each number as a ratio to its floor in the same run
	$(BIN)/python -m bench

.PHONY: clean
clean: ## Remove everything that make has made
	rm -rf .venv .state build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Segue needs Python 3.11 or newer: make PYTHON=/path/to/python3 ...' >&2; exit 1; }
	@$(PYTHON) -m venv --clear .venv || \
		{ echo 'No venv could be made; on Debian: apt-get install python3-venv' >&2; exit 1; }

.state/runtime: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@mkdir -p .state
	@echo 'Installing Segue into .venv'
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

.state/dev: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@mkdir -p .state
	@echo 'Installing Segue and its development tools into .venv'
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch .state/runtime $@

.state/agents/installed: tests/real_agents/package.json scripts/install_agents.sh
	@scripts/install_agents.sh tests/real_agents/package.json .state/agents
