# One command each; `make` lists them. Only python3 and make are needed to begin.
#
# VENV names the virtual environment. One that is named and exists is used as it is;
# otherwise it is made, with this package installed in it (editable).
# TESTDIR names the tests; PYTEST_ARGS goes to pytest, as in make test PYTEST_ARGS="-k printer".

PYTHON ?= python3
VENV ?= .venv
TESTDIR ?= tests
PYTEST_ARGS ?=
VLLM ?= 0.19.1

BIN := $(abspath $(VENV))/bin
PY := $(BIN)/python
STAMP := $(VENV)/.tanren-installed

ifeq ($(origin VENV),file)
READY := $(STAMP)
else
READY := $(if $(wildcard $(VENV)/bin/python),,$(STAMP))
endif

.DEFAULT_GOAL := help
.PHONY: help demo test lint fmt bench docs vllm-env clean
.DELETE_ON_ERROR:

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY)  ## see the whole path once, on an embedded trace
	$(BIN)/tanren-dsl demo

test: $(READY)  ## run all tests
	cd $(abspath $(TESTDIR)/..) && $(PY) -m pytest $(notdir $(abspath $(TESTDIR))) $(PYTEST_ARGS)

lint: $(READY)  ## check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	rm -rf build/typecheck
	mkdir -p build/typecheck/tanren_dsl
	ln -s $(CURDIR)/tanren_dsl/* build/typecheck/tanren_dsl/
	for part in backends evolve examples grammar; do \
	  ln -s $(CURDIR)/$$part build/typecheck/tanren_dsl/$$part || exit 1; done
	cd build/typecheck && $(PY) -m mypy --config-file $(CURDIR)/pyproject.toml \
	  --cache-dir $(CURDIR)/.mypy_cache/typecheck --package tanren_dsl

fmt: $(READY)  ## format the code and the example policies
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .
	$(BIN)/tanren-dsl fmt $$(find examples -name '*.tpl')

bench: $(READY)  ## measure speed, side by side with other implementations
	$(PY) -c 'import libcachesim' 2>/dev/null || $(PY) -m pip install -qq --disable-pip-version-check --editable '.[bench]'
	$(PY) -m tests.speed

docs: $(READY)  ## write the reference pages of commands and signals anew
	$(PY) -m tanren_dsl.cli.reference docs

vllm-env: $(READY)  ## make .venv-vllm-VERSION with a real vLLM: make vllm-env VLLM=0.32.0
	$(PY) -m tanren_dsl.conform.vllm_env $(VLLM) .venv-vllm-$(VLLM)

clean:  ## remove what was built; environments stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, found " + sys.version.split()[0])'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -qq --disable-pip-version-check --editable '.[test,lint]'
	touch $@
