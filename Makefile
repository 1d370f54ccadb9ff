# Every verb sets up what it needs, once: an own .venv from any Python 3.11 to 3.13 on the PATH, and (where Java is)
# the jars of Delta. A second run finds the stamps and starts at once.
#
#   make demo    the main job on real data: HTTP in, bucket, replay, Delta, SQL
#   make test    the tests (those that need Java are skipped by name where there is none)
#   make test-all  those too that show the same once more, on the other kind of store or against Kafka
#   make compat  Kafka's clients against ours, plainly and over SASL_SSL, and against Apache Kafka, the same assertions:
#                make -j2 compat for two at once; Java, kcat (apt: kafkacat or kcat) and node with npm are used where
#                they are there. It also replaces brokers of earlier programs, from the history of this clone, under load
#   make check   format, lint, types, floors, tidy, docs, counts of work, known holes of dependencies: what takes seconds
#   make hooks   the hook of git that checks the message of each commit, for this clone; a hook that is there stays
#   make look    a report on files, names, words and import circles; it fails nothing, and keeps sizes that fell in tests/shape.json
#   make lock    requirements/ anew: the newest versions that pyproject.toml allows, with their hashes
#   make sim     simulated runs of a cluster with faults: make sim SEEDS=1000, or one again: make sim SEED=42;
#                SHAPE=one-broker, groups (that commit offsets), consumers (KIP-848) or machines (of two processes)
#   make false-alarms  simulated hours of a loaded cluster whose processes pause and whose fsyncs stall: no broker may
#                be fenced and no controller replaced: HOURS=24
#   make latest  tables with one row for each key, under kills and two loads at once: 200 seeds
#   make sim-mutants  bugs put in on purpose, each of which the simulator must find: MUTANTS="name name", else all
#   make mutation-test  small edits of the source, each of which some test must find: MUTANTS="name name", AREA=hot,
#                WITHOUT_UNITS=1 for simulations alone, OUT=found.jsonl to go on later
#   make fuzz    hostile bytes for every reader of bytes: ROUNDS=100000 or MINUTES=30, SEED=7, OF="wire files"; it
#                keeps what it finds
#   make sanitize  the C extension under AddressSanitizer and UBSan: its tests, and ROUNDS=20000 mutated inputs; needs gcc
#   make chaos   three real brokers fail while real clients write, every fault once: STORE=file or s3, MINUTES=30 for more,
#                STORE=versitygw or seaweedfs for a server of another maker,
#                PROCESSES=2 for machines of two processes and their faults, FLUSH=bucket for brokers that lose their disks
#   make test-s3 the contract of stores on S3 servers of other makers: SERVERS="versitygw seaweedfs"; fetches these once
#   make hostile attacks on a broker process at full size, judged by what others wait and by memory: OUT=figures.jsonl
#   make race-tables  both engines of `tiered load` race on one table, on a directory and on S3: ROUNDS=200; needs Java
#   make kill-tables  kills at random moments, each with a check: OF=repair, erase or stream, KILLS=20; needs Java
#   make query-tables  queries of a whole topic while all else runs, each of which counts a prefix of the log: QUERIES=1000,
#                ENGINE=native for those of tiered sql, MINUTES=60 at most
#   make bench   figures beside their goals, into bench/results and docs/PERFORMANCE.md; also a chart, bench.svg
#   make bench-peer  ours beside Apache Kafka, hours, into the same: WORKLOADS="produce-1k start", PAIRS=5,
#                PROCESSES=1,2,4 for machines of so many, OUT=legs.jsonl for each leg; also a chart, bench-peer.svg
#   make docs    the pages of docs/ as a site with search in build/site; a link that leads nowhere fails it
#   make dist    an sdist and wheels for Linux (x86_64, aarch64) in dist/, then their tests in empty environments
#   make up      a broker: Kafka on 127.0.0.1:9092, HTTP on 127.0.0.1:8082, data in ./tiered-data
#   make clean   remove .venv and caches

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# A shell that asks Python to keep no compiled modules makes every start of a broker or command compile all of them.
unexport PYTHONDONTWRITEBYTECODE
SEEDS ?= 200
# Files in the order of tests/conftest.py, longest first, not by how many tests they hold.
ON_ALL_CORES := -n 4 --dist loadfile --no-loadscope-reorder
NATIVE := setup.py $(wildcard tiered/records/c/*)
# Without Java or Maven the command that needs them says so; what needs none still runs.
JARS := echo "Looking for Delta's jars (the first time Maven fetches them, 26 MB)"; \
  $(BIN)/python -m pyspark_tiered.jars > /dev/null 2>&1 || [ $$? -eq 3 ]

.PHONY: demo test test-all compat compat-ours compat-secure compat-peer check hooks look lock sim latest false-alarms sim-mutants mutation-test fuzz sanitize chaos test-s3 \
  docs dist hostile race-tables kill-tables query-tables bench bench-peer up clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.demo
	@$(JARS)
	$(BIN)/tiered demo

test: $(VENV)/.dev
	@$(JARS)
	$(BIN)/python -m pytest $(ON_ALL_CORES) -m "not also"

test-all: $(VENV)/.dev
	@$(JARS)
	$(BIN)/python -m pytest $(ON_ALL_CORES)

compat: compat-ours compat-secure compat-peer

compat-ours: $(VENV)/.dev
	COMPAT=ours $(BIN)/python -m pytest tests/compat tests/chaos/test_rolling_upgrade.py

compat-secure: $(VENV)/.dev
	COMPAT=secure $(BIN)/python -m pytest tests/compat

compat-peer: $(VENV)/.dev
	COMPAT=peer $(BIN)/python -m pytest tests/compat

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_floors.py tests/test_tidy.py tests/test_docs.py tests/test_dependencies.py
	$(BIN)/python -m tests.shape --check
	$(BIN)/python -m tests.counts --check
	$(BIN)/python -m tests.dependencies audit

# pre-commit (CONTRIBUTING.md) has this hook too. It keeps one that is there, and calls it.
hooks: $(VENV)/.dev
	@folder="$$(git rev-parse --git-path hooks)" || exit 1; hook="$$folder/commit-msg"; \
	if [ -e "$$hook" ]; then echo "$$hook is there already, and stays as it is"; exit 0; fi; \
	mkdir -p "$$folder"; \
	printf '%s\n' '#!/bin/sh' '# From `make hooks`. Without .venv it checks nothing.' \
	  '[ ! -x .venv/bin/python ] || exec .venv/bin/python -m tests.commit_message "$$1"' > "$$hook"; \
	chmod +x "$$hook"; echo "$$hook checks the message of each commit"

look: $(VENV)/.dev
	$(BIN)/python -m tests.look $(if $(BEFORE),--before $(BEFORE))
	$(BIN)/python -m tests.shape

lock: $(VENV)/.dev
	$(BIN)/python -m tests.dependencies lock

sim: $(VENV)/.dev
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(SHAPE),--shape $(SHAPE))

latest: $(VENV)/.dev
	$(BIN)/python -m pytest tests/spark/test_latest.py

false-alarms: $(VENV)/.dev
	$(BIN)/python -m tests.sim.false_alarms $(if $(HOURS),--hours $(HOURS))

sim-mutants: $(VENV)/.dev
	$(BIN)/python -m tests.sim --mutants $(MUTANTS)

mutation-test: $(VENV)/.dev
	$(BIN)/python -m tests.mutation $(MUTANTS) $(if $(AREA),--area $(AREA)) $(if $(WITHOUT_UNITS),--without-units) \
	  $(if $(OUT),--out $(OUT))

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(OF) $(if $(MINUTES),--minutes $(MINUTES)) --rounds $(or $(ROUNDS),20000) --seed $(or $(SEED),0)

sanitize: $(VENV)/.dev
	$(BIN)/python -m tests.sanitize test
	$(BIN)/python -m tests.sanitize fuzz --rounds $(or $(ROUNDS),20000) --seed $(or $(SEED),0)

chaos: $(VENV)/.dev
	$(BIN)/python -m tests.chaos $(if $(STORE),--store $(STORE)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(PROCESSES),--processes $(PROCESSES)) $(if $(FLUSH),--flush $(FLUSH))

test-s3: $(VENV)/.dev
	S3_SERVERS="$(or $(SERVERS),versitygw seaweedfs)" $(BIN)/python -m pytest -m "" tests/contract/test_object_store.py

hostile: $(VENV)/.dev
	HOSTILE=full $(if $(OUT),HOSTILE_OUT=$(abspath $(OUT))) $(BIN)/python -m pytest tests/hostile

race-tables: $(VENV)/.dev
	@$(JARS)
	$(BIN)/python -m tests.spark.engine_race $(or $(ROUNDS),200)

kill-tables: $(VENV)/.dev
	@$(JARS)
	for each in $(or $(OF),repair erase stream); do $(BIN)/python -m tests.spark.kills $$each $(KILLS) || exit 1; done

query-tables: $(VENV)/.dev
	@$(JARS)
	$(BIN)/python -m tests.spark.whole_topic_queries $(or $(QUERIES),1000) $(or $(ENGINE),spark) $(MINUTES)

bench: $(VENV)/.dev
	@$(JARS)
	$(BIN)/python -m bench --results bench/results --chart bench.svg
	$(BIN)/python -m bench.page

bench-peer: $(VENV)/.dev
	$(BIN)/python -m bench.peer $(if $(PAIRS),--pairs $(PAIRS)) $(if $(OUT),--out $(OUT)) \
	  $(if $(PROCESSES),--processes $(PROCESSES)) --results bench/results --chart bench-peer.svg $(WORKLOADS)
	$(BIN)/python -m bench.page

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "To read and search it: $(BIN)/python -m http.server --directory build/site --bind 127.0.0.1 8000"

dist: $(VENV)/.dist
	$(BIN)/python infra/wheels/make_dist.py
	DIST=dist $(BIN)/python -m pytest tests/packages

up: $(VENV)/.core
	$(BIN)/tiered serve

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info

$(BIN)/python:
	@python=; for each in python3 python3.13 python3.12 python3.11 python; do \
	  if "$$each" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2> /dev/null; \
	  then python=$$each; break; fi; done; \
	if [ -z "$$python" ]; then echo "tiered needs Python 3.11, 3.12 or 3.13 with its venv module on the PATH" \
	  "(Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.12)." >&2; exit 1; fi; \
	echo "Making $(VENV) with $$("$$python" --version)"; "$$python" -m venv $(VENV)

# PySpark looks for data sources in the folders of the path; what pip makes of an editable install is none.
ON_PATH = printf '%s\n' '$(CURDIR)' '$(CURDIR)/api' '$(CURDIR)/spark' \
  > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tiered-checkout.pth"

# What others made is installed by version and hash. Nothing else is fetched: what is built here, setuptools builds that is
# in the environment. A set of packages has a stamp; a larger set holds the smaller ones.
LOCKED := pyproject.toml $(NATIVE) requirements/build.txt
PIP = @PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --no-deps
define install
$(PIP) --require-hashes -r requirements/build.txt
$(PIP) --require-hashes --no-build-isolation --use-pep517 -r requirements/$(1).txt
$(PIP) --no-build-isolation -e .
@$(ON_PATH)
endef

$(VENV)/.core: $(LOCKED) requirements/core.txt | $(BIN)/python
	@echo "Installing the broker"
	$(call install,core)
	@touch $@

$(VENV)/.demo: $(LOCKED) requirements/demo.txt | $(BIN)/python
	@echo "Installing the broker, Spark and the flights of 2013 (once, some 500 MB)"
	$(call install,demo)
	@touch $(VENV)/.core $@

$(VENV)/.dev: $(LOCKED) requirements/dev.txt | $(BIN)/python
	@echo "Installing the broker, Spark and the tools of its tests (once, some 600 MB)"
	$(call install,dev)
	@touch $(VENV)/.core $(VENV)/.demo $@

$(VENV)/.docs: $(VENV)/.core requirements/docs.txt
	@echo "Installing the tools that build the site (once, some 40 MB)"
	$(PIP) --require-hashes -r requirements/docs.txt
	@touch $@

$(VENV)/.dist: $(VENV)/.dev requirements/dist.txt
	@echo "Installing the tools that build packages (once, some 120 MB)"
	$(PIP) --require-hashes -r requirements/dist.txt
	@touch $@
