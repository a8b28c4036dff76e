# Two commands matter: `make demo` and `make test`. Each makes .venv and installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 3
FULL_WORKERS ?= 4
export PIP_DISABLE_PIP_VERSION_CHECK := 1
HAS_GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)

.PHONY: demo test test-full test-gpu check format flag-table schemas bench-startup ci-setup clean

demo: $(VENV)/.run   ## Does side by side change what is measured, and what is picked? An answer and its report.
	$(BIN)/assay contention run --quick

PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

test: $(VENV)/.dev   ## Run the test suite; WORKERS processes, as it waits much of its time.
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not full"

test-full: $(VENV)/.dev ## The long tests: real servers, torchrun worlds, kill sweeps, a browser, simulations.
	$(PYTEST) -n $(FULL_WORKERS) --dist worksteal -m full

test-gpu: $(VENV)/.dev ## The tests that need a CUDA GPU, in one process.
	$(PYTEST) -m gpu

check: $(VENV)/.dev  ## Style, types, who may import whom, vocabulary, flags, dependencies, spelling.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/vocabulary.py
	$(BIN)/python tools/flag_table.py --check
	$(BIN)/deptry .
	$(BIN)/codespell

format: $(VENV)/.dev ## Put the code into its canonical form.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

flag-table: $(VENV)/.dev ## Write the table of flags that `--help` is answered from.
	$(BIN)/python tools/flag_table.py

schemas: $(VENV)/.dev ## Write the JSON Schemas of the files a run leaves behind.
	$(BIN)/python -m assay.store.schemas

bench-startup: $(VENV)/.dev ## How long `assay --help` takes beside `python -c pass`.
	$(BIN)/python benchmarks/startup.py run

ci-setup:            ## System packages for the tests that need real programs.
	@if command -v apt-get >/dev/null 2>&1; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -y -qq chromium iproute2 numactl util-linux >/dev/null && \
	  apt-get install -y -qq --no-install-recommends slurm-wlm postgresql openssh-server >/dev/null; \
	fi

# Once, not in each of the processes that start together.
COMPILE := @env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q -j 0 src

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Assay needs Python 3.11 or later."; exit 3; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.$(if $(HAS_GPU),[torch])'
	$(COMPILE)
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,energy,torch]'
	$(COMPILE)
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
