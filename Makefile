# run and test set up all they need: see scripts/bootstrap.
.DEFAULT_GOAL := run
.PHONY: run test lint fmt schema bench screenshots eval soak requirements setup setup-dev

# Some machines set it; every start would then compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
UV = $(shell command -v uv || echo .tools/bin/uv)

run: setup
	@exec $(PYTHON) manage.py serve

test: setup-dev
	@scripts/chromium
	@$(PYTEST) -n 2 --dist worksteal

lint: setup-dev
	@$(PYTHON) -m ruff check
	@$(PYTHON) -m ruff format --check
	@$(PYTHON) -m mypy
	@# It would like to look at a database too, and complains that there is none.
	@AGENTSTATE_LOG_LEVEL=CRITICAL $(PYTHON) -W ignore manage.py makemigrations \
	  --check --dry-run
	@$(PYTHON) manage.py check

fmt: setup-dev
	@$(PYTHON) -m ruff check --fix
	@$(PYTHON) -m ruff format

schema: setup-dev
	@$(PYTHON) manage.py spectacular --validate --fail-on-warn --file docs/openapi.yaml
	@$(PYTHON) manage.py write_event_docs

# Pictures of every page in screenshots/, to look at after a change of their looks.
screenshots: setup-dev
	@scripts/chromium
	@$(PYTEST) tests/browser/screenshots.py --quiet --timeout 0

bench: setup-dev
	@$(PYTHON) -m bench

eval: setup-dev
	@$(PYTHON) bench/recall_eval.py

soak: setup-dev
	@# Each has a time of its own, or may take an hour on a busy machine.
	@$(PYTEST) -m soak --timeout 3600

requirements:
	@$(UV) pip compile --quiet --universal --python-version 3.13 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url \
	  requirements.in --output-file requirements.txt
	@$(UV) pip compile --quiet --universal --python-version 3.13 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url \
	  requirements-dev.in --output-file requirements-dev.txt

setup:
	@scripts/bootstrap run

setup-dev:
	@scripts/bootstrap dev
