# Everything that people type. Each target sets up what it needs; Python 3.11 and make are enough.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

LOWEST := .venvs/lowest
LOWEST_READY := $(LOWEST)/.ready
LOWEST_PINS := "celery==5.4.*" "kombu==5.3.4" "redis==5.0.1" "tenacity==8.2.3" "sqlalchemy==2.0.4" "django==4.2.*"

NEWEST := .venvs/newest

DEMO := .venvs/demo
DEMO_READY := $(DEMO)/.ready

CONTAINERS := .venvs/containers
CONTAINERS_READY := $(CONTAINERS)/.ready

BENCH := .venvs/bench
BENCH_READY := $(BENCH)/.ready

# Most targets start hundreds of interpreters; without bytecode each of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

PIP_FLAGS := --quiet --disable-pip-version-check

# The same versions today and tomorrow, of what the targets install and of what that asks for. The
# path is relative, because pip takes a blank in it for the end of the path.
CONSTRAINTS := constraints.txt
export PIP_CONSTRAINT = $(CONSTRAINTS)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml $(CONSTRAINTS)
	@echo "Setting up $(VENV), once; this takes a minute or a few."
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[embedded,cli,test,lint,docs,release]"
	@touch $@

$(LOWEST_READY): CONSTRAINTS := constraints-lowest.txt
$(LOWEST_READY): pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install $(PIP_FLAGS) -e ".[embedded,cli,test]"
	@touch $@

$(DEMO_READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -m venv $(DEMO)
	@$(DEMO)/bin/python -m pip install $(PIP_FLAGS) -e ".[embedded,cli]"
	@touch $@

$(CONTAINERS_READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(CONTAINERS)
	$(CONTAINERS)/bin/python -m pip install $(PIP_FLAGS) -e ".[containers]" "pytest-timeout>=2.3" "pyyaml>=6"
	@touch $@

$(BENCH_READY): pyproject.toml bench/requirements.txt $(CONSTRAINTS)
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install $(PIP_FLAGS) -e ".[embedded,cli]" -r bench/requirements.txt
	@touch $@

.PHONY: demo
demo: $(DEMO_READY) ## half a minute: five nodes, a worker, faults, and what the lock does about them
	@$(DEMO)/bin/python -m examples.demo

.PHONY: demo-no-lock
demo-no-lock: $(DEMO_READY) ## the same work without the lock: updates are lost
	@$(DEMO)/bin/python -m examples.demo --no-lock

.PHONY: recording
recording: $(DEMO_READY) ## what `make demo` shows on a terminal, as a moving picture in docs/images
	@$(DEMO)/bin/python -m examples.demo --record docs/images/demo.svg

# Each process has its own broker, lock nodes and workers, and often waits for them.
PROCESSES ?= 8
PARALLEL = --numprocesses $(PROCESSES) --dist worksteal
BRIEF := --hypothesis-profile brief
QUICK = $(PARALLEL) $(BRIEF) --quiet -m "not full"

# What fails is tried once more by itself, after the others: see tests/support/rerun.py.
TESTS = -m tests.support.rerun $(PARALLEL) --durations 10

# Each promise once; with ALL=1, everything that needs nothing but wheels. Where files are short,
# those that use the same workers run in one process: see tests/conftest.py.
CHOSEN = $(if $(ALL),,$(BRIEF) --dist loadfile) -m "$(if $(ALL),,not full and )not duration and not system and not containers"

# Units wait for nobody.
.PHONY: quick
quick: PROCESSES := 3
quick: $(READY) ## before each commit: units, tables of rules, stale planted faults; SINCE=main runs what a change touches
ifdef SINCE
	@paths=$$($(BIN)/python -m tests.support.touched $(SINCE)) && \
	{ test -z "$$paths" || $(BIN)/python -m pytest $(QUICK) $$paths; }
else
	@$(BIN)/python -m pytest $(QUICK) $$($(BIN)/python -m tests.support.touched)
endif

.PHONY: test
test: $(READY) ## before each push: each promise once, on real servers and workers; ALL=1: each pool, mode, page and example
	$(BIN)/python $(TESTS) $(CHOSEN)

.PHONY: test-full
test-full: ## all evidence, step by step, with a table at the end; needs Debian packages, Docker and two to three hours
	@$(PYTHON) -m tests.steps full

.PHONY: gate
gate: ## what has to pass before a change lands: style, demo, documentation, wheel, `make test`
	@$(PYTHON) -m tests.steps gate

.PHONY: test-system
test-system: $(READY) ## tests with Debian packages (redis-server, postgresql, rabbitmq-server, nodejs, npm, chromium)
	@command -v redis-server >/dev/null || { echo "test-system needs redis-server: apt-get install redis-server" >&2; exit 1; }
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || { echo "test-system needs postgresql: apt-get install postgresql" >&2; exit 1; }
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server || { echo "test-system needs rabbitmq-server: apt-get install rabbitmq-server" >&2; exit 1; }
	@command -v npm >/dev/null && command -v node >/dev/null || { echo "test-system needs Node.js: apt-get install nodejs npm" >&2; exit 1; }
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { echo "test-system needs Chromium: apt-get install chromium" >&2; exit 1; }
	$(BIN)/python $(TESTS) -m system

.PHONY: test-containers
test-containers: $(CONTAINERS_READY) ## tests with hosts of their own: a Docker engine with compose, which gets public images
	@docker info >/dev/null 2>&1 || { echo "test-containers needs a Docker engine that answers: apt-get install docker.io" >&2; exit 1; }
	@docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || { echo "test-containers needs docker compose: apt-get install docker-compose" >&2; exit 1; }
	$(CONTAINERS)/bin/python -m pytest tests/containers -m containers --durations 0

.PHONY: test-lowest
test-lowest: $(LOWEST_READY) ## as test, with the lowest versions that are declared
	$(LOWEST)/bin/python $(TESTS) $(CHOSEN)

.PHONY: test-newest
test-newest: ## lint, documentation and test with the newest version of everything
	rm -rf $(NEWEST)
	$(MAKE) --keep-going lint docs test VENV=$(NEWEST) CONSTRAINTS=

.PHONY: test-durations
test-durations: $(READY) ## tests whose fact is a duration, with nothing beside them
	$(BIN)/python -m pytest -m duration --durations 0

.PHONY: lint
lint: $(READY) ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: proof
proof: $(READY) ## models, simulation and planted faults; some twenty minutes on two cores
	$(BIN)/python -m evidence.proof

.PHONY: proof-nightly
proof-nightly: $(READY) ## the same with a budget of hours
	$(BIN)/python -m evidence.proof --nightly

DURATION ?= 60

.PHONY: chaos
chaos: $(READY) ## real servers, workers and publishers under a nemesis for DURATION seconds
	$(BIN)/python -m evidence.chaos --duration $(DURATION)
	$(BIN)/python -m evidence.chaos --duration 20 --outside

.PHONY: calls
calls: $(READY) ## calls of unique tasks with real workers in 24 set-ups, on Redis and RabbitMQ; prints a table
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server || { echo "calls needs rabbitmq-server: apt-get install rabbitmq-server" >&2; exit 1; }
	$(BIN)/python -m evidence.calls

.PHONY: mixed
mixed: $(READY) ## clients of the commit OLD and of this version on the same nodes; prints what they counted
	@test -n "$(OLD)" || { echo "mixed needs a commit: make mixed OLD=..." >&2; exit 1; }
	$(BIN)/python -m evidence.mixed $(OLD)

.PHONY: reference
reference: $(READY) ## the parts of the pages that are made from the code, and their pictures
	PYTHONPATH=docs/_ext $(BIN)/python -m redlock_docs.repository

.PHONY: docs
docs: $(READY) ## the documentation site, into build/docs
	rm -rf build/docs build/doctrees
	$(BIN)/python -m sphinx -E -a -W --keep-going -q -j auto -b html -d build/doctrees docs build/docs

.PHONY: screenshots
screenshots: $(READY) ## pictures of the page of `celery-redlock web`, into docs/images; needs Chromium
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { echo "screenshots needs Chromium: apt-get install chromium" >&2; exit 1; }
	$(BIN)/python -m pytest tests/integration/web/browser/test_pictures.py -m system
	mkdir -p docs/images
	cp build/screenshots/*.png docs/images/

.PHONY: bench
bench: $(BENCH_READY) ## measure against peers, as ratios in one run; writes build/results.json; QUICK=1: fewer rounds
	$(BENCH)/bin/python -m bench $(if $(QUICK),--quick)

.PHONY: examples
examples: $(READY) ## every example, one after the other
	$(BIN)/python -m tests.examples

.PHONY: dist
dist: $(READY) ## wheel and source archive: built twice alike, looked at, and the wheel installed alone
	$(BIN)/python -m tests.release --python $(PYTHON)

.PHONY: test-dist
test-dist: $(READY) ## the same, and tests of the source archive against the installed wheel
	$(BIN)/python -m tests.release --python $(PYTHON) --tests --processes $(PROCESSES)

.PHONY: licences
licences: $(READY) $(CONTAINERS_READY) ## write LICENSES.md from what is installed
	PYTHONPATH=$$($(CONTAINERS)/bin/python -c "import site; print(site.getsitepackages()[0])") $(BIN)/python -m tests.release.licences

.PHONY: lock
lock: CONSTRAINTS :=
lock: $(READY) ## write the constraints anew: the newest versions that fit, and the lowest ones
	$(BIN)/python -m tests.support.lock constraints.txt ".[embedded,cli,test,lint,docs,release,containers]"
	$(BIN)/python -m tests.support.lock constraints-lowest.txt ".[embedded,cli,test,release]" $(LOWEST_PINS)

.PHONY: clean
clean: ## remove environments and caches
	rm -rf $(VENV) .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
