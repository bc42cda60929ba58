# Targets for people: `make demo`, `make test`, `make bench`, `make docs`. All of them set themselves up.
PYTHON ?= python3
BIN := .venv/bin
BASE := .venv/.base-installed
STAMP := .venv/.installed
DOCS_STAMP := .venv/.docs-installed
BROWSER_STAMP := .venv/.browser-installed

# Real data sets for tests and benchmarks; tests skip, with a reason, what is not there.
export RHFEDMTL_DATA ?= $(abspath ../shared/data)

# Bytecode is kept, whatever the machine says: hundreds of processes of the suite read the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test suite test-fast test-slow test-ray test-browser test-chaos test-lowest lint proto format bench study docs docs-check clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP)  ## create .venv and install the package with its development tools

$(BASE): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "no '$(PYTHON)' found: install Python 3.11 or newer, or call make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; call make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[watch]'
	@touch $@

$(STAMP): $(BASE)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(BASE)  ## six methods at equal cost on real smartwatch data, with defaults: a table and a report, in a minute
	$(BIN)/rhfedmtl compare --data watch --terminals 5 --samples-per-task 40 --test-rest \
	  --algorithms rhfedmtl,hfedmtl,fedavg,scaffold,mocha,local --budgets 300,600,1200,2400 --seeds 10 --out demo
	$(BIN)/rhfedmtl report demo --no-figures
	@echo
	@echo "next: what would a budget buy on new recordings, before anything is spent? Then spend it:"
	@echo "  $(BIN)/rhfedmtl plan --data watch --grouped --budget energy=2000"
	@echo "  $(BIN)/rhfedmtl train --data watch --grouped --budget energy=2000"

test: setup  ## lint, types and the whole test suite, side by side
	$(MAKE) --no-print-directory -j 2 lint suite

# Six workers suit two cores, as tests of networks mostly wait; each takes seconds for its imports. A file stays with its
# worker.
# Each has a core at best, so threads of BLAS would only wait for each other.
suite: export OPENBLAS_NUM_THREADS = 1
# What one process has compiled serves all: workers, commands and nodes. So all kernels are compiled before, at half the cost.
suite: export NUMBA_CACHE_DIR = $(abspath .venv)/kernels
suite: setup
	@mkdir -p -m 700 .venv/kernels
# In a fresh clone one process makes the bytecode of all tests: workers, which start together, would each make all of it.
	@test -d tests/__pycache__ || $(BIN)/python -m pytest -q --collect-only >/dev/null || true
	$(BIN)/python -m tests.kernels
	$(BIN)/python -m pytest -q -n 6 --dist loadfile --no-loadscope-reorder -m "not slow"

test-fast: setup  ## the test suite alone, stopping at the first failure
	$(BIN)/python -m pytest -q -x -n 3 -m "not slow"

test-slow: setup  ## the checks that take minutes
	$(BIN)/python -m pytest -q -m slow

test-browser: $(BROWSER_STAMP)  ## the report and the live page in a real browser; installs Chromium where it is missing
	$(BIN)/python -m pytest -q -rs tests/browser

$(BROWSER_STAMP): $(STAMP)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || test -n "$$RHFEDMTL_CHROMIUM" \
		|| { apt-get update -qq && apt-get install -y -qq chromium; } \
		|| { echo "install Chromium, or name one: make test-browser RHFEDMTL_CHROMIUM=/path/to/chromium"; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[browser]'
	@touch $@

# What touches the dependencies: kernels, rows and tables, models, ONNX, figures, pages, messages between nodes.
LOWEST_TESTS := tests/conformance tests/data tests/models tests/estimators tests/report tests/dashboard/test_dashboard.py \
  tests/cli/test_errors.py tests/deploy/test_parts.py tests/deploy/test_intruders.py

test-lowest: export NUMBA_CACHE_DIR = $(abspath .venv-lowest)/kernels
test-lowest:  ## a part of the suite with the lowest version of every dependency that pyproject.toml allows
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check uv
	.venv-lowest/bin/uv pip compile --quiet --resolution lowest-direct --extra deploy --extra frames --extra parquet \
	  --extra onnx --extra plot --extra tensorboard --extra dashboard -o .venv-lowest/lowest.txt pyproject.toml
	.venv-lowest/bin/uv pip install --quiet -p .venv-lowest/bin/python -r .venv-lowest/lowest.txt \
	  'pytest<9' pytest-xdist hypothesis pyyaml onnxruntime==1.18.0
	.venv-lowest/bin/uv pip install --quiet -p .venv-lowest/bin/python --no-deps -e .
	@mkdir -p -m 700 .venv-lowest/kernels
	.venv-lowest/bin/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(LOWEST_TESTS)

test-chaos: setup  ## a network of real processes through 200 faults and lies, and ended at every place where it writes or sends
	$(BIN)/python -m pytest -q -s -m chaos tests/deploy/test_chaos.py tests/deploy/test_failpoints.py

test-ray: setup  ## a Ray cluster of three nodes on this machine: every algorithm, killed actors, nodes and drivers (minutes)
	$(BIN)/python -m pytest -q -m ray

proto:  ## make the protobuf code of the deployment from its description
# A compiler of the oldest version that is supported: its code runs on that runtime and on the next major one.
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/pip install --quiet --disable-pip-version-check 'grpcio-tools==1.75.1' 'setuptools<81'
	cd src && ../.venv-proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. rhfedmtl/deploy/wire/wire.proto
	rm -r .venv-proto

lint: export NUMBA_CACHE_DIR = $(abspath .venv)/kernels
lint: setup  ## style, types, import direction, prose and the size of the core
	@mkdir -p -m 700 .venv/kernels
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/metrics.py

format: setup  ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## measure speed and memory, as ratios within one run
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/data.py

study: setup  ## does the measured policy buy as much as the best fixed H in hindsight? (about 6 minutes)
	$(BIN)/python benchmarks/policies.py --seeds 20

docs: setup $(DOCS_STAMP)  ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

docs-check: export NUMBA_CACHE_DIR = $(abspath .venv)/kernels
docs-check: setup  ## re-run every command and Python block of README and docs, and fail if a page shows another output (minutes)
	@mkdir -p -m 700 .venv/kernels
	$(BIN)/python docs/refresh.py --check

$(DOCS_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

clean:  ## remove everything that can be made again
	rm -rf .venv build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
