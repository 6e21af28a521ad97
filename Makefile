# make demo: set everything up and compare this machine with a packaged H200 dump.  make test: set everything up and run the tests.
PYTHON ?= python3
VENV ?= .venv
# The CPU build, and the Triton that compiles this project's kernels. For a GPU install your vendor's torch first and call make with TORCH= (empty).
TORCH ?= torch==2.13.0 triton==3.7.1
BIN := $(VENV)/bin
PYTEST_WORKERS ?= 2

.PHONY: demo docs test coverage lint types layers check bench clean setup system
.DEFAULT_GOAL := demo

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(if $(TORCH),$(BIN)/pip install --quiet $(TORCH))
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@

# sshd for the transfer tests; LibreOffice, poppler, a headless Chromium for the report tests; compilers for the programs that read fixtures
system: setup
	sh tools/system-packages.sh $(BIN)/python

# the documentation as a site in build/site; a warning is an error
docs: setup
	$(BIN)/pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo: setup
	$(BIN)/accuracy-eval demo

test: setup system
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS)

# the same tests with every line and branch counted (slower), then the table
coverage: setup system
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(PYTEST_WORKERS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

check: lint types layers test

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
