# make create       the tool's own virtual environment, and the core environment at site local
# make test         lint, types and tests
# make test-large   what needs gigabytes or an hour besides
# make bench        the benchmarks of bench/, each printing ratios
# make requirements pin the tool's own requirements anew

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# the tool's own set-up must not depend on where its users keep their builds
unexport ENVBUILD_PROJECT

.PHONY: create test test-large bench lint requirements clean

create: $(BIN)/.run
	$(BIN)/envbuild create core

test: lint
	$(BIN)/python -m pytest -n auto -m "not large"

test-large: $(BIN)/.dev
	$(BIN)/python -m pytest -m large

lint: $(BIN)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(BIN)/.run
	for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

# hashes are checked by pip itself; the project is installed without looking anything up
$(BIN)/.run: requirements/run.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "envbuild needs Python 3.11 or newer; name one with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: -r requirements/run.txt
	$(BIN)/python -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	touch $@

$(BIN)/.dev: $(BIN)/.run requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: -r requirements/dev.txt
	touch $@

# without URLs and the names of hosts: whichever index is configured serves them
PIN := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --no-emit-index-url --upgrade --quiet
requirements: $(BIN)/.run
	$(PIN) --output-file requirements/run.txt pyproject.toml requirements/build.in
	$(PIN) --output-file requirements/dev.txt requirements/dev.in

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
