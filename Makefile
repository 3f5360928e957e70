# make demo    set up, train LeNet on real digits for 600 steps, show what a step costs
# make test    set up, run every test            make test-quick   those that take hardly a second of CPU time: minutes
# make check   lint, format and types
# make bench   what measuring costs              make accuracy  energy per op against the truth of simulated boards
# make torture kills, failing disks, losses of power; 100,000 damaged folders (PROCESSES=8: hours; CASES=1000: less)
# make package wheel and source archive (twice alike), SBOM   make docs    the documentation site, into build/site
# make audit   known holes in what is installed (network)  make hashes  constraints-hashed.txt anew (network)
# make lab     beside Linux's own power drivers in an emulated guest, on ARM64, on JetPack's layout (root, apt, 6 GB; docs/lab.md)
# make first-screens   draw the pictures anew that tests compare the first screen of the page with (Chromium)
# make picture the picture of README and docs, and the numbers of their front page, anew: on an idle machine (Chromium)
# make clean   remove .venv and caches (runs/ stays)
# Another Python:  make demo PYTHON=python3.12          More cores:  make test WORKERS=8

# Three workers on two cores: a test that waits for another process leaves its core to the next one.
PYTHON ?= python3
WORKERS ?= 3
CASES ?= 100000
PROCESSES ?= 1
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.PHONY: demo test test-quick check bench accuracy torture package audit hashes docs lab first-screens picture clean
.DEFAULT_GOAL := demo

demo: $(READY)
	$(BIN)/stepscope run lenet --steps 600 --out runs
	$(BIN)/stepscope report last --html

# Analysis and report have their tests where torch cannot be imported: on a machine that only reads runs it is not there.
NO_TORCH := tests/analysis tests/report tests/without_torch

# TESTS_UNTIL, in seconds since 1970: what slow tests are left out from, so many seconds earlier as the rest takes.
slow_until = $(if $(TESTS_UNTIL),SLOW_TESTS_UNTIL=$$(($(TESTS_UNTIL) - $(1))))

test: $(READY)
	$(call slow_until,420) $(PYTEST) --ignore tests/gallery $(addprefix --ignore ,$(NO_TORCH))
	$(call slow_until,190) $(PYTEST) -p tests.no_torch $(NO_TORCH)
	$(BIN)/python -m pytest tests/gallery  # forks for both cores by itself

test-quick: $(READY)
	$(PYTEST) --ignore tests/gallery -m 'not slow'

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks --write docs/cost.md

accuracy: $(READY)
	$(BIN)/python -m benchmarks.accuracy --write docs/energy.md

torture: $(READY)
	$(BIN)/python -m benchmarks.kills --kills 1000 --write docs/reliability.md
	$(BIN)/stepscope run lenet --steps 40 --out build/torture
	$(BIN)/python -m benchmarks.torture --cases $(CASES) --processes $(PROCESSES)
	$(BIN)/python -m benchmarks.torture build/torture/* --cases 100 --processes $(PROCESSES)

package: $(READY)
	PYTHON=$(CURDIR)/$(BIN)/python .ci/package

audit: $(READY)
	.ci/audit

hashes: $(READY)
	.ci/hashes

docs: $(READY)
	$(PIP) -c constraints.txt --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m pytest --quiet --exitfirst --numprocesses 2 tests/site_axe.py  # for keyboards, screen readers and weak eyes (Chromium)

lab: $(READY)
	PARTS="$(PARTS)" PYTHON=$(CURDIR)/$(BIN)/python lab/run

first-screens: $(READY)
	$(BIN)/python -m tests.report.first_screen

picture: $(READY)
	$(BIN)/python docs/images/make.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than what decides the set-up, so a second call installs nothing. torch goes first and by its exact
# version, so that what follows finds it there and never replaces it.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Stepscope needs Python 3.10 or newer and there is no '$(PYTHON)' here: install it, or name another one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Stepscope needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name a newer one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "'$(PYTHON)' cannot make virtual environments: sudo apt install python3-venv (Debian, Ubuntu, Raspberry Pi OS, JetPack), then run make again"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV) with $$($(PYTHON) --version)"; rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV) (PyTorch is the large part; a few minutes on a slow line)"
	$(PIP) -c constraints.txt torch==2.13.0
	$(PIP) -c constraints.txt hatchling editables
	$(PIP) -c constraints.txt --no-build-isolation -e '.[test]'
	@touch $@
