# diffnum: `make` alone lists the targets. Each makes .venv first if it is not there or no longer fits.

VENV ?= .venv
JOBS ?= 2
BUILD ?= _build
PORT ?= 8000
PY := $(VENV)/bin/python
asked := $(if $(filter command% environment%,$(origin PYTHON)),$(PYTHON))
SYSTEM_PYTHON := $(or $(asked),$(firstword $(shell command -v python3 python)))

export PYTHONDONTWRITEBYTECODE ?= 1

.DEFAULT_GOAL := help
.PHONY: help venv torch book test test-all lint format bench bench-peers mutants selftest serve clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON (interpreter for a new .venv, 3.11 to 3.13), VENV (.venv), JOBS (2), PORT (8000)"

venv:
	@$(SYSTEM_PYTHON) tools/bootstrap.py $(VENV) --python "$(asked)"

torch:  ## install the pinned PyTorch into .venv, so that its tests run
	@$(SYSTEM_PYTHON) tools/bootstrap.py $(VENV) --python "$(asked)" --torch
	@echo "torch: installed; its tests run from now on"

book: venv  ## build the site into _build/html
	@$(PY) tools/book.py --jobs $(JOBS) $(BUILD)

test: venv  ## run the tests, except the slow ones
	@$(PY) -m pytest -n $(JOBS) -m "not slow"

test-all: venv  ## run all tests, the site in a browser included (build the book first)
	@$(PY) -m pytest -n $(JOBS)

lint: venv  ## ruff, types, numpydoc, import contract
	@$(PY) tools/lint.py

format: venv  ## let ruff rewrite the sources
	@$(PY) -m ruff check -q --fix-only . && $(PY) -m ruff format -q . && echo "format: done"

bench: venv  ## measure speed, as ratios
	@$(PY) -m bench

bench-peers:  ## default sampler and linear cross-entropy beside public packages, in .venv-peers (2 GB)
	@$(SYSTEM_PYTHON) tools/peers.py $(VENV)-peers --python "$(asked)"
	@$(VENV)-peers/bin/python -m bench.peers
	@$(VENV)-peers/bin/python -m bench.cross_entropy

mutants: venv  ## change the library line by line and count what the tests notice
	@$(PY) tools/mutants.py

selftest: venv  ## plant faults and demand that the gates notice
	@$(PY) tools/selftest.py

serve: book  ## build, then serve the site on http://127.0.0.1:8000
	@echo "serving $(BUILD)/html on http://127.0.0.1:$(PORT) (stop: Ctrl-C)"
	@$(PY) -m http.server --bind 127.0.0.1 --directory $(BUILD)/html $(PORT) >/dev/null 2>&1

clean:  ## remove what the targets made, .venv excepted
	@rm -rf $(BUILD) dist build .pytest_cache .ruff_cache .hypothesis .mutants* .import_linter_cache
	@echo "clean: removed $(BUILD) and caches; .venv stays (remove it by hand)"
