# `make help` lists the targets. Each one makes the virtual environment it needs.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python

# The stamp carries the hash of what decides the installation: touching a file installs nothing, changing it does.
INSTALLED := $(VENV)/.installed-$(shell cat constraints.txt pyproject.toml | cksum | cut -d ' ' -f 1)

export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What an experiment runs on: make reproduce ONLY=63_vae_experiment PRESET=paper DEVICE=cuda DATA=folder
$(if $(DATA),$(eval export ROBUST_GENERAL_DATA := $(abspath $(DATA))))
$(if $(PRESET),$(eval export ROBUST_GENERAL_PRESET := $(PRESET)))
$(if $(DEVICE),$(eval export ROBUST_GENERAL_DEVICE := $(DEVICE)))

.DEFAULT_GOAL := help
.PHONY: help install reproduce test coverage docs bench notebooks clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' Makefile | while IFS='|' read -r t d; do printf '  make %-10s %s\n' "$$t" "$$d"; done

install: $(INSTALLED) ## Make .venv and install the package with its tools

$(INSTALLED):
	$(PYTHON) -m venv $(VENV) || { echo "Debian keeps venv apart: apt-get install python3-venv"; exit 1; }
	$(PY) -m pip install -e '.[dev]'
	@rm -f $(VENV)/.installed-*
	@touch $@

reproduce: $(INSTALLED) ## Regenerate every figure and table, beside the paper's (ONLY=table3, DATA=folder, PRESET=paper, PLAN=1)
	@$(PY) -m tools.reproduce $(if $(PLAN),--plan) $(if $(CHANGED),--changed) $(if $(FORCE),--force) $(if $(RECHECK),--recheck) $(if $(JOBS),--jobs $(JOBS)) $(ONLY)

test: $(INSTALLED) ## Check that notebooks, modules and README agree; run every notebook's assertions and tests/
	@$(PY) -m tools.sync
	@$(PY) -m tools.check

coverage: $(INSTALLED) ## Measure which lines of the package the notebooks and tests/ run; fails below 95%
	@$(PY) -m tools.coverage $(ONLY)

docs: $(INSTALLED) ## Build the site into _docs/
	@$(PY) -m tools.site

bench: $(INSTALLED) ## Time everything against its rivals, and write the tables to figures/ (ONLY=91_benchmarks for one page)
	@$(PY) -c 'import open3d' 2>/dev/null || $(PY) -m pip install -e '.[dev,bench]'
	@$(PY) -m tools.reproduce --force $(or $(ONLY),$(basename $(notdir $(wildcard nbs/91*.ipynb))))

notebooks: $(INSTALLED) ## Export modules, run the notebooks so that their stored outputs are fresh, write README.md
	@$(VENV)/bin/nbdev_export
	@$(PY) -m tools.execute --write $(ONLY)
	@$(PY) -m tools.sync --write

clean: ## Remove what can be made again, except the virtual environment
	rm -rf .cache _docs _proc build dist *.egg-info .pytest_cache
	find robust_general tools tests -name __pycache__ -prune -exec rm -rf {} +
