# Two commands set everything up on a machine with Python >= 3.11 and git:
#   make demo    compares the exact kernel with features until its matrix no longer fits; tables and plots
#   make test    runs the tests
# Each creates its own .venv and installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pinned so that tests run against one known build; users may have any torch >= 2.5.
TORCH := torch==2.13.0
PYTEST_ARGS ?=

PAPERS_ARGS ?=
PEERS_ARGS ?=
BENCH ?= *
BENCH_ARGS ?=

.PHONY: demo test test-all lint format docs docs-fast check-docs papers peers bench clean

$(VENV)/base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ntkit needs Python >= 3.11. Try: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[plot,cli]'
	touch $@

$(VENV)/dev: $(VENV)/base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[plot,cli,dask,torch,test,lint]'
	touch $@

$(VENV)/docs: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

demo: $(VENV)/base
	$(BIN)/ntkit demo --output demo

# One worker per core, so one thread each for BLAS and torch. A worker runs neighbouring tests, which share compiled code
# and fitted models, and takes tests from other workers when it has none left.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist=worksteal $(PYTEST_ARGS)

test: $(VENV)/dev
	$(PYTEST)

# also tutorials, killed processes, clusters, more trials and seeds
test-all: $(VENV)/dev
	NTKIT_TEST_ALL=1 $(PYTEST)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/docs
	$(BIN)/sphinx-build -W --keep-going -j auto -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# without running examples/
docs-fast: $(VENV)/docs
	$(BIN)/sphinx-build -W --keep-going -j auto -b html -D plot_gallery=0 docs docs/_build/fast

check-docs: docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[check]'
	command -v chromium >/dev/null || $(BIN)/python -m playwright install chromium
	$(BIN)/python docs/check_site.py

# Every table and figure of the papers, and the comparison with other libraries. A stopped run continues where it was:
#   make papers PAPERS_ARGS=--quick, PAPERS_ARGS='--device cuda'
papers: $(VENV)/dev
	$(BIN)/python benchmarks/papers/all.py $(PAPERS_ARGS)

peers: $(VENV)/dev
	$(BIN)/python benchmarks/peers/all.py $(PEERS_ARGS)

# All other benchmarks. Cases that are already in benchmarks/results are not measured again:
#   make bench BENCH=fourier BENCH_ARGS=--quick, BENCH_ARGS=--report, BENCH_ARGS='--device cuda'
bench: $(VENV)/dev
	for file in benchmarks/bench_$(BENCH).py; do $(BIN)/python $$file --plot docs $(BENCH_ARGS) || exit 1; done

clean:
	rm -rf $(VENV) .venv-neural-tangents build dist demo docs/_build docs/gallery docs/api/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
