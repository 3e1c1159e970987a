# Every target sets the project up first, inside this folder; where that is done already it takes no time.
# Works with GNU make, a POSIX shell and Python 3.11 or later; nothing else is expected on the machine.

SHELL := /bin/sh
PYTHON := .venv/bin/python
SEEDS ?= 100000
TESTS ?= tests
# What test-fast leaves out.
HEAVY := spark or airflow or server or browser or slow or sweep or s3

.DEFAULT_GOAL := help
.PHONY: help ready setup demo ui stop doctor test test-fast s3-jars test-s3 test-all check format simulate crash read-crash soak debezium bench build lock jars-lock expectations clean distclean

help: ## Show this list
	@awk 'BEGIN {FS = ":[^#]*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' Makefile

ready:
	@sh scripts/setup/setup.sh

setup: ## Set up, checking every piece again: environment, Java, jars
	@sh scripts/setup/setup.sh --full

demo: ready ## The main job: a small shop through real DAG runs and all that can go wrong
	@$(PYTHON) -m scripts.demo

ui: ready ## Start Airflow with the project's DAGs and a warm Spark; prints address and login
	@$(PYTHON) -m scripts.local_airflow.project start

stop: ready ## Stop what `make ui` started
	@$(PYTHON) -m scripts.local_airflow.project stop

doctor: ready ## Check versions, Java, jars, Spark and the store
	@.venv/bin/tidemark doctor

test: ready ## Run the tests, all but the long sweeps: make test TESTS=tests/unit
	@# Three on two cores: the stories in Airflow mostly wait.
	@$(PYTHON) -m pytest -n 3 --durations 15 -m "not sweep and not s3" $(TESTS)

test-fast: ready ## Run the tests that start no Spark and no server; under a minute
	@$(PYTHON) -m pytest -n 2 -m "not ($(HEAVY))" $(TESTS)

s3-jars: ready ## Fetch Hadoop's S3 connector, for tables and landing files on S3
	@$(PYTHON) -m tidemark.runtime.jars fetch s3

test-s3: s3-jars ## Run the tests on object stores; builds versitygw (S3) with Go and installs Azurite (Azure) with npm once
	@$(PYTHON) -m pytest -p no:xdist -v -m s3 tests

test-all: ready ## Before a release: `make test`, and what only this runs: tests marked sweep and s3, simulate, crash, read-crash, soak
	@$(PYTHON) -m pytest -n 3 --durations 15 tests
	@$(MAKE) simulate crash read-crash soak

check: ready ## Lint, format, types, import contracts, tidiness
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy include $(wildcard jobs/*.py)
	@.venv/bin/lint-imports --no-cache
	@$(PYTHON) -m pytest -q tests/tidy

format: ready ## Format the code and mend what the linter can mend
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

simulate: ready ## Run the seeded simulation: make simulate SEEDS=1000
	@$(PYTHON) -m tests.simulation --seeds $(SEEDS)

crash: ready ## Kill real processes at every durable step: make crash SEEDS=3
	@$(PYTHON) -m tests.crash $(if $(filter-out file,$(origin SEEDS)),--seeds $(SEEDS))

read-crash: ready ## Kill and stop real consumers while a writer appends: make read-crash SEEDS=3
	@$(PYTHON) -m tests.reading $(if $(filter-out file,$(origin SEEDS)),--seeds $(SEEDS))

soak: ready ## Writers, consumers and maintenance at once, with kills: make soak SECONDS=600
	@$(PYTHON) -m tests.maintenance $(if $(SECONDS),--seconds $(SECONDS))

debezium: ready ## Record again what a real Debezium sends, for the tests that read it
	@$(PYTHON) -m tests.debezium.record

bench: ready ## Measure
	@$(PYTHON) -m bench

build: ready ## Build the wheel into dist/
	@$(PYTHON) -m hatchling build --target wheel

lock: ready ## Resolve requirements.txt again into requirements.lock
	@$(PYTHON) scripts/setup/setup.py lock

jars-lock: ready ## Resolve Spark's extra jars again into jars.lock
	@$(PYTHON) -m tidemark.runtime.jars lock

expectations: ready ## Read Great Expectations' signatures again into a data file
	@$(PYTHON) -m scripts.expectations

clean: ## Remove what tests, checks and builds left behind
	@rm -rf build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -not -path './.tidemark/*' -not -path './include/*' -prune -exec rm -rf {} +

distclean: clean ## Remove the environment, the jars and the warehouse too
	@rm -rf .venv .tidemark
	@find include -name __pycache__ -prune -exec rm -rf {} +
