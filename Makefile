# The two commands a newcomer needs are `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
PACKAGES := aggservice ara_client paa_client ldp_client w3c_client budget

.PHONY: setup demo test test-browser check bench soak mutants clean

setup: $(READY)

SOURCES := pyproject.toml constraints.txt build_rpc.py $(wildcard proto/aggservice/v1/*.proto)

$(READY): $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $(DEMO_READY) $@

# The demo needs a third of what the tests need.
$(DEMO_READY): $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plots]'
	@touch $@

demo: $(DEMO_READY)
	@$(BIN)/aggservice demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest --doctest-modules $(PACKAGES) --ignore=aggservice/rpc -p no:cacheprovider

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs

test-browser: setup
	$(BIN)/python tests/browser/build.py
	$(BIN)/python -m pytest tests/browser -rs

bench: setup
	@for name in $$($(BIN)/aggservice bench --names); do $(BIN)/aggservice bench $$name || exit 1; done

soak: setup
	$(BIN)/python -m pytest -m soak -o addopts="-v --import-mode=importlib"

mutants: setup
	@$(BIN)/python tests/mutants/run.py

clean:
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} +
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
