# TaskHub: `make help` lists what there is. Everything is installed into .venv, at the versions of constraints.txt.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BIN := .venv/bin
UV = .ci/install.sh $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -b constraints.txt
INPUTS := setup.cfg pyproject.toml constraints.txt
# make demo KEEP=1 STORAGE=azurite SPARK=standalone|connect MONTHS=1,2; make demo-kill N=20
STORAGE ?= sqlite
SPARK ?= local
DEMO = $(BIN)/taskhub demo --storage $(STORAGE) --spark $(SPARK) $(if $(MONTHS),--months $(MONTHS)) $(if $(filter 1 yes true,$(KEEP)),--keep)
N ?= 20
# arguments of make crash, storm, soak, explore, mapped and publish-kills, such as CRASH="--scenario chain --kind lost" STORM="--store sqlite"
CRASH ?=
STORM ?=
HOUR ?=
SOAK ?=
EXPLORE ?=
MAPPED ?=
PUBLISH ?=
SECONDS := 300
RUNS ?= 20
# arguments of the benchmarks, such as BENCH="--store embedded --workloads a0,d --repeat 5"
BENCH ?=
# make simulate HOURS=1000 SEED=7: of virtual time, and the first seed
HOURS ?= 100
SEED ?= 1
WORLDS ?= 100

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1 /p' Makefile | while read -r name text; do printf '  make %-15s %s\n' "$$name" "$$text"; done

.PHONY: demo
demo: .venv/.demo ## Airflow hands a Spark pipeline to a task hub; a worker is killed in the middle (KEEP=1, STORAGE=azurite, SPARK=standalone or connect)
	@.ci/preflight.sh . 1024 >/dev/null
	@$(DEMO)

.PHONY: demo-kill
demo-kill: .venv/.demo ## the demo's pipeline and kill N times in a row, on SQLite and on Azurite; the numbers must not change
	@.ci/preflight.sh . 1024 >/dev/null
	@$(BIN)/taskhub demo --storage sqlite --storage azurite --spark $(SPARK) --runs $(N) $(if $(MONTHS),--months $(MONTHS))

.PHONY: env
env: .venv/.test ## only make the environment in .venv, to run single tests: .venv/bin/python -m pytest FILE -k WORD
	@echo "the environment is ready; one test: .venv/bin/python -m pytest FILE -k WORD"

# Two at once: the types take one core for a while, and what is installed waits for the network.
.PHONY: .ready
.ready: check docs .venv/.azurite .compiled

.PHONY: test
test: .browser .machine ## check, docs, and all tests but those of tests/extra.toml (TESTS="tests/engine -k timer": only these)
	@$(MAKE) --no-print-directory -j2 .ready
ifdef TESTS
	@$(BIN)/python -m pytest $(TESTS)
else
	@$(BIN)/python -m tests.run
endif

.PHONY: test-all
test-all: .browser .redis .machine ## check, docs, and all tests
	@$(MAKE) --no-print-directory -j2 .ready
	@$(BIN)/python -m tests.run --all

.PHONY: quick
quick: check ## the inner loop, under 2 minutes on 2 cores: check, then the tests that start no process and are not long
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q --numprocesses $$(nproc) --dist worksteal -m 'not process and not long' $(TESTS)

.PHONY: check
check: .venv/.test ## lint, format, types and layers
	@echo "lint, format, types, layers"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check . || { echo "make format writes these files in the wanted form"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --config setup.cfg

.PHONY: format
format: .venv/.test ## mend what the linter can mend, and format the code, also the code blocks of pages
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: docs
docs: .venv/.test ## the documentation as HTML into docs/_build/html; warnings and broken links are errors
	@echo "documentation"
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --quiet --write-all --jobs auto \
		docs docs/_build/html --doctree-dir docs/_build/doctrees
	@$(BIN)/python docs/_ext/check_links.py docs/_build/html

.PHONY: pictures
pictures: .venv/.test .browser ## take the documentation's pictures of the page again, in both themes, into docs/_static
	@WRITE_PICTURES=1 $(BIN)/python -m pytest tests/browser/test_page.py -k pictures

.PHONY: rows
rows: .venv/.test ## which rows of the specification have tests, which have none, which are met otherwise
	@$(BIN)/python -m tests.rows

.PHONY: sample
sample: .venv/.test ## N=40 docstrings and comments of the package, picked at random from SEED, to give to a reader
	@$(BIN)/python -m tests.sample --seed $(SEED) --count $(if $(filter file,$(origin N)),40,$(N))

.PHONY: simulate
simulate: .venv/.test ## the partition service under all that can go wrong: HOURS virtual hours, seeds from SEED on
	@$(BIN)/python -m tests.simulation.partitions --hours $(HOURS) --seed $(SEED) --jobs $$(nproc)

.PHONY: simulate-deaths
simulate-deaths: .venv/.test ## the long form of the simulation: workers die at every storage call of every scenario
	@TASKHUB_DEATHS=all $(BIN)/python -m pytest tests/simulation --timeout 3600 $(TESTS)

.PHONY: simulate-programs
simulate-programs: .venv/.test ## random programs while workers die at random storage calls: WORLDS=100 hubs of 20 programs, seeds from SEED on
	@$(BIN)/python -m tests.simulation.random_programs --worlds $(WORLDS) --seed $(SEED)
	@$(BIN)/python -m tests.simulation.random_programs --worlds $(WORLDS) --seed $(SEED) --whole
	@$(BIN)/python -m tests.simulation.random_programs --worlds $(WORLDS) --seed $(SEED) --faulty

.PHONY: crash
crash: .venv/.test .venv/.azurite ## everything that can go wrong at every storage call, on SQLite and Azurite; counts (CRASH="--store sqlite")
	@$(BIN)/python -m tests.simulation.crash --jobs $$(nproc) $(CRASH)

.PHONY: day
day: .venv/.test ## a simulated day of 10,000 activities with limits, priorities, three tenants, workers that die; waits (DAY="--hours 6")
	@$(BIN)/python -m tests.simulation.day $(DAY)

.PHONY: hour
hour: .venv/.test .venv/.azurite ## limits, rates and memory on two workers that are killed, for SECONDS=3600 on each store (HOUR="--store sqlite")
	@$(BIN)/python -m tests.e2e.hour --seconds $(if $(filter file,$(origin SECONDS)),3600,$(SECONDS)) $(HOUR)

.PHONY: storm
storm: .venv/.test .venv/.azurite ## kill one of 4 workers every 2 s for SECONDS=300, then count what is lost, doubled, corrupt (STORM="--store sqlite")
	@$(BIN)/python -m tests.e2e.storm storm --seconds $(SECONDS) $(STORM)

.PHONY: still
still: .venv/.test .venv/.azurite ## chains while their worker stops or dies, RUNS=20 times: the longest time without progress
	@$(BIN)/python -m tests.e2e.storm still --runs $(RUNS) $(STORM)

.PHONY: soak
soak: .venv/.test .venv/.azurite ## SIGKILL, SIGSTOP, drains and SIGTERM in turn for SECONDS=600: two readers of a queue? (SOAK="--leases blob")
	@$(BIN)/python -m tests.e2e.soak --seconds $(if $(filter file,$(origin SECONDS)),600,$(SECONDS)) $(SOAK)

.PHONY: kills
kills: .venv/.test ## tasks killed on a real Airflow 0 to 10 s after their deferral, triggerer up and down: seconds to Terminated
	@$(BIN)/python -m tests.airflow.kills kills

.PHONY: crashes
crashes: .venv/.test ## kills, users' actions, changed DAG files at every stage of a wait on a real Airflow (CRASHES="--only cleared")
	@$(BIN)/python -m tests.airflow.crashes $(CRASHES)

.PHONY: publish-kills
publish-kills: .venv/.test ## executor, worker and JVM killed N=20 times each while activities publish; rows doubled, lost, half-visible
	@$(BIN)/python -m tests.e2e.publish_kills --count $(N) $(PUBLISH)

.PHONY: mapped
mapped: .venv/.test ## a task mapped 100 times on a real Airflow, RUNS=5 times in a row: seconds, and how many failed (MAPPED=--sqlite)
	@$(BIN)/python -m tests.airflow.kills mapped --times $(if $(filter file,$(origin RUNS)),5,$(RUNS)) $(MAPPED)

.PHONY: explore
explore: .venv/.test .venv/.azurite ## N=3000 random programs on two workers that are killed, beside an independent model (EXPLORE="--store azurite")
	@$(BIN)/python -m tests.e2e.explore --count $(if $(filter file,$(origin N)),3000,$(N)) $(EXPLORE)

.PHONY: refuse
refuse: .venv/.test .venv/.azurite ## workers on Azurite lose their key under load for SECONDS=120 and get it back; counts what is lost, doubled, corrupt
	@$(BIN)/python -m tests.e2e.refuse --seconds $(if $(filter file,$(origin SECONDS)),120,$(SECONDS))

.PHONY: bench
bench: .venv/.test .venv/.azurite ## how fast it is here beside goals and the stores' ceilings, JSON lines in .bench (BENCH="--store embedded")
	@$(BIN)/python -m tests.benchmarks $(BENCH)

.PHONY: bench-peers
bench-peers: .venv/.test .bench/peers/.installed ## the same on DBOS and durabletask-python, in turn with TaskHub (BENCH="--repeat 3")
	@$(BIN)/python -m tests.benchmarks.peers $(BENCH)

.PHONY: profile
profile: .venv/.test .venv/.azurite .bench/tools/.installed ## a flame graph of a worker at work, into .bench (BENCH="--store azurite --workloads b")
	@$(BIN)/python -m tests.benchmarks --profile $(or $(BENCH),--store embedded --workloads a)

.PHONY: bench-growth
bench-growth: .venv/.test .venv/.azurite ## what must not cost more when there is more of it, beside its goal (BENCH="--parts idle,size --scale 0.1")
	@$(BIN)/python -m tests.benchmarks.growth $(BENCH)

.PHONY: bench-airflow
bench-airflow: .venv/.test ## how fast tasks of a real Airflow are beside tasks that do nothing, 30 minutes (BENCH="--sqlite --repeat 1")
	@$(BIN)/python -m tests.benchmarks.front $(BENCH)

.PHONY: bench-cancel
bench-cancel: .venv/.test ## seconds from a cancel to no Spark task running: local, standalone cluster, Spark Connect (BENCH="--repeat 5 --kinds connect")
	@$(BIN)/python -m tests.benchmarks.cancels $(BENCH)

.PHONY: bench-spark
bench-spark: .venv/.test ## small Spark jobs as a bare program, through the hub, in Airflow, 15 minutes (BENCH="--kinds local --repeat 0")
	@$(BIN)/python -m tests.benchmarks.spark $(BENCH)

.PHONY: bench-balance
bench-balance: .venv/.test ## the rules of others for sharing partitions out, beside ours: cycles and moves
	@$(BIN)/python -m tests.benchmarks.balance

.PHONY: constraints
constraints: .venv/.demo ## resolve setup.cfg and .ci/constraints.in anew
	@$(BIN)/uv pip compile setup.cfg .ci/constraints.in --all-extras --universal --python-version 3.11 \
		--no-header --no-annotate --no-emit-index-url --upgrade --quiet --output-file constraints.txt
	@! grep -n '://' constraints.txt

.PHONY: clean
clean: ## remove what was made here: the environment, the demo's folder, Azurite, caches
	@rm -rf .venv .demo .azurite .bench docs/_build docs/reference/_generated .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info .tests.summary
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed again only when one of the inputs changes. The preflight runs before anything is made.
.venv/.python: .ci/preflight.sh
	@echo "[1/4] checking Python, Java, memory and disk"
	@python=$$(.ci/preflight.sh . 4096) || exit 1; \
	if [ ! -x $(BIN)/python ]; then \
		echo "[2/4] making .venv with $$($$python --version)"; \
		$$python -m venv --clear .venv; \
	fi
	@touch $@

.venv/.uv: .venv/.python constraints.txt
	@echo "[3/4] installing the installer, $$(grep '^uv==' constraints.txt)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@.ci/install.sh $(BIN)/python -m pip install -qq --disable-pip-version-check --retries 1 --timeout 15 -c constraints.txt uv
	@touch $@

.venv/.demo: .venv/.uv $(INPUTS)
	@echo "[4/4] installing Airflow, Spark and TaskHub: $$(grep -c '==' constraints.txt) pinned packages, some minutes the first time"
	@$(UV) -e '.[demo]'
	@touch $@

.venv/.test: .venv/.demo $(INPUTS)
	@echo "installing what the tests need"
	@$(UV) -e '.[test]'
	@touch $@

.venv/.azurite: .venv/.demo airflow_provider_taskhub/demo/azurite.py
	@echo "installing Azurite, the emulator of Azure Storage"
	@.ci/install.sh $(BIN)/python -m airflow_provider_taskhub.demo.azurite install .azurite
	@touch $@

# environments of their own: what other systems need must not decide what TaskHub is tested with
.bench/peers/.installed: .venv/.uv tests/benchmarks/peers/requirements.txt
	@echo "installing $$(paste -sd' ' tests/benchmarks/peers/requirements.txt) into .bench/peers"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .bench/peers
	@$(BIN)/uv pip install --quiet --python .bench/peers/bin/python -r tests/benchmarks/peers/requirements.txt
	@touch $@

.bench/tools/.installed: .venv/.uv
	@echo "installing py-spy into .bench/tools"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .bench/tools
	@$(BIN)/uv pip install --quiet --python .bench/tools/bin/python py-spy==0.4.3
	@touch $@

# What the machine must have is looked for each time, and not only when the environment is made.
crash hour storm still soak kills crashes publish-kills mapped explore refuse: .machine
bench bench-peers profile bench-growth bench-airflow bench-cancel bench-spark: .machine
.PHONY: .machine
.machine: .venv/.test
	@.ci/preflight.sh . 1024 >/dev/null

# Python compiles the tests here once. In a fresh clone, each of four processes of pytest compiled all of them at the
# same time. An error is ignored here: the tests themselves report it.
.PHONY: .compiled
.compiled: .venv/.test
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -q -p no:cacheprovider >/dev/null 2>&1 || true

# These come before the environment is made: what the machine lacks is said in seconds.
.PHONY: .browser
.browser:
	@.ci/preflight.sh . 1024 >/dev/null
	@.ci/browser.sh

.PHONY: .redis
.redis:
	@.ci/redis.sh
