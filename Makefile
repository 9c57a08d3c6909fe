# Everything a newcomer needs: `make demo`, `make test`.  `make help` lists the rest.
PYTHON ?= python3
ENVS := .envs
BIN := $(ENVS)/dev/bin
PIP_QUIET := --quiet --disable-pip-version-check
# PyTorch's CPU build, from PyTorch's own index; whoever has set up pip to find torch elsewhere keeps that.
TORCH_VERSION ?= 2.13.0
TORCHVISION_VERSION ?= 0.28.0
TORCH_INDEX ?= $(if $(PIP_FIND_LINKS)$(PIP_INDEX_URL)$(PIP_EXTRA_INDEX_URL),,--extra-index-url https://download.pytorch.org/whl/cpu)
# smdebug, the library we are measured against, runs on Python 3.11 at most.
OLD_PYTHON ?= $(firstword $(foreach python,$(PYTHON) python3.11 python3.10,$(if $(shell $(python) -c 'import sys; print(sys.version_info < (3, 12) or "")' 2>/dev/null | grep True),$(python))))
# TensorFlow 2.18 runs on Python 3.12 at most; the other environments usually have another version.
KERAS_PYTHON ?= $(firstword $(foreach python,python3.12 $(PYTHON) python3.11,$(if $(shell $(python) -c 'import sys; print(sys.version_info < (3, 13) or "")' 2>/dev/null | grep True),$(python))))
PYTEST_ARGS ?=
# Many tests wait for processes: two cores have work for four.
WORKERS ?= 4
# what `make demo` trains with: pytorch or keras
FRAMEWORK ?= pytorch
# Tests that measure real time get a second try: another process may have taken the processor in the first.
MEASURED := --reruns 1
# Long tests, newest and riskiest first: CI runs as many as begin in time.
FIRST := $(addprefix tests/,hook rule_container frameworks libraries launchers local serve report chaos)
LONG := $(FIRST) $(filter-out $(FIRST),$(patsubst %/,%,$(wildcard tests/*/)))

.PHONY: help demo test test-all test-long lint format types docs coverage versions fuzz bench image sbom changelog release-check clean
help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

demo: $(ENVS)/dev.done $(if $(filter keras,$(FRAMEWORK)),$(ENVS)/frameworks.done) ## train, profile, store, judge and report on this machine; no AWS account, no Docker
	@$(if $(filter keras,$(FRAMEWORK)),SM_PROFILER_LOCAL_PYTHON=$(abspath $(ENVS)/frameworks/bin/python)) $(BIN)/sm-profiler demo --framework $(FRAMEWORK)

test: $(ENVS)/dev.done $(ENVS)/sdk3.done $(ENVS)/smdebug.done $(ENVS)/frameworks.done ## the test suite
	@echo "first what measures real time, one test after the other; then everything else, $(WORKERS) at a time"
	@$(BIN)/python -m pytest -m 'alone and not long' $(MEASURED) $(PYTEST_ARGS) $$(grep -rl --include='*.py' 'mark\.alone' tests)
	@$(BIN)/python -m pytest -m 'not alone and not long' -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-all: test test-long ## the test suite, then what takes minutes: soak, chaos, a thousand damaged jobs

test-long: $(ENVS)/dev.done $(ENVS)/frameworks.done $(ENVS)/frameworks-old.done $(ENVS)/mlflow.done $(ENVS)/toolkit.done $(ENVS)/libraries.done $(ENVS)/launchers.done
	@SM_PROFILER_FRAMEWORKS_ENV=frameworks-old $(BIN)/python -m pytest tests/frameworks/test_keras.py $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -m 'long and alone' $(MEASURED) $(PYTEST_ARGS) $$(grep -rl --include='*.py' 'mark\.alone' tests)
	@$(BIN)/python -m pytest -m 'long and not alone' -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) $(LONG)

fuzz: $(ENVS)/dev.done ## 100,000 inputs through the public interfaces; hours
	@SM_PROFILER_FUZZ=100000 $(BIN)/python -m pytest tests/fuzz --timeout 20000 $(PYTEST_ARGS)

coverage: $(ENVS)/dev.done ## branch coverage of the test suite, subprocesses included
	@$(BIN)/coverage erase
	@$(BIN)/python -m coverage run -m pytest -m 'not alone and not long' $(PYTEST_ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered

versions: ## the tables of docs/versions.md, tried now; needs uv; hours. One part: make versions TABLE=hook ONLY=3.12
	@$(PYTHON) tools/try_versions.py $(if $(TABLE),--table $(TABLE)) --only '$(ONLY)'

lint: $(ENVS)/dev.done ## ruff, and the word list of tools/prose.toml
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/check_prose.py

format: $(ENVS)/dev.done ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(ENVS)/dev.done ## mypy --strict
	@$(BIN)/mypy

docs: $(ENVS)/docs.done ## the documentation site, links checked, below build/site
	@NO_MKDOCS_2_WARNING=1 $(ENVS)/docs/bin/mkdocs build --strict --quiet

bench: $(ENVS)/dev.done $(ENVS)/smdebug.done $(ENVS)/frameworks.done ## the tables of docs/performance.md, measured now
	@for script in $(filter-out benchmarks/hook_keras.py benchmarks/jax_steps.py,$(wildcard benchmarks/*.py)); do echo; $(BIN)/python $$script || exit 1; done
	@$(ENVS)/frameworks/bin/python benchmarks/hook_keras.py
	@$(ENVS)/frameworks/bin/python benchmarks/jax_steps.py

image: ## the rule container image
	@rule_container/build.sh

sbom: ## the software bill of materials of the rule image, as CycloneDX
	@$(PYTHON) rule_container/sbom.py

changelog: $(ENVS)/release.done ## collect changelog.d into CHANGELOG.md for a release
	@$(ENVS)/release/bin/towncrier build --yes

release-check: $(ENVS)/release.done ## build, check the metadata, install the wheel into an empty environment, run it
	@rm -rf dist $(ENVS)/wheel
	@$(ENVS)/release/bin/python -m build --outdir dist . >/dev/null
	@$(ENVS)/release/bin/twine check --strict dist/*
	@$(PYTHON) -m venv $(ENVS)/wheel
	@$(ENVS)/wheel/bin/pip install $(PIP_QUIET) dist/*.whl
	@$(ENVS)/wheel/bin/python -c "import sm_profiler.debugger, sm_profiler.hook"
	@$(ENVS)/wheel/bin/sm-profiler --version

clean: ## remove the environments and everything built
	rm -rf $(ENVS) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis

# --- environments, one a line: what pip installs into it ---------------------------------------------------------
# TORCH.NAME comes before, from PyTorch's index; THEN.NAME is a command after it; PYTHON.NAME is its Python.
INSTALL.dev            := -e '.[all,sagemaker2]' --group dev
INSTALL.docs           := -e . --group docs
INSTALL.frameworks     := -e '.[all]' --group frameworks
INSTALL.frameworks-old := -e '.[analysis]' --group frameworks-old
INSTALL.launchers      := -e '.[rules]' --group launchers
INSTALL.libraries      := -e '.[rules]' --group libraries
INSTALL.mlflow         := -e '.[mlflow]' --group mlflow
INSTALL.release        := --group release
INSTALL.sdk3           := -e '.[local,sagemaker3]' pytest
INSTALL.smdebug        := smdebug==1.0.34 requests psutil pyarrow 'pandas<2' 'numpy<1.25' 'bokeh<3' 'setuptools<70'
INSTALL.toolkit        := --group toolkit
$(foreach name,dev frameworks launchers toolkit,$(eval TORCH.$(name) := torch==$(TORCH_VERSION)))
# torchvision requires the release of torch that it was built for, and its build: where there is one for the CPU of torch
# alone, torchvision's operators do not load, so torch is installed for CUDA, too
TORCH.libraries := torch==$(TORCH_VERSION) torchvision==$(TORCHVISION_VERSION)
THEN.libraries = $1/python -c "import torchvision" 2>/dev/null || $1/pip install $(PIP_QUIET) torch===$(TORCH_VERSION)
# DeepSpeed's build imports torch
THEN.launchers = DS_ACCELERATOR=cpu $1/pip install $(PIP_QUIET) --no-build-isolation deepspeed || echo "without DeepSpeed: it cannot be built here"
PYTHON.frameworks-old = $(KERAS_PYTHON)
PYTHON.smdebug = $(OLD_PYTHON)

TOO_NEW := $(if $(OLD_PYTHON),,smdebug) $(if $(KERAS_PYTHON),,frameworks-old)
ENVIRONMENTS := $(filter-out $(TOO_NEW),$(patsubst INSTALL.%,%,$(filter INSTALL.%,$(.VARIABLES))))

$(ENVIRONMENTS:%=$(ENVS)/%.done): $(ENVS)/%.done: pyproject.toml packaging/sm_profiler_auto.pth
	@$(info preparing $(ENVS)/$*: $(strip $(TORCH.$*) $(INSTALL.$*)); some minutes …)
	@$(or $(PYTHON.$*),$(PYTHON)) -m venv $(ENVS)/$*
	@$(ENVS)/$*/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(if $(TORCH.$*),$(ENVS)/$*/bin/pip install $(PIP_QUIET) $(TORCH.$*) $(TORCH_INDEX))
	@$(ENVS)/$*/bin/pip install $(PIP_QUIET) $(INSTALL.$*)
	@$(call THEN.$*,$(ENVS)/$*/bin)
	@touch $@

$(TOO_NEW:%=$(ENVS)/%.done):
	@echo "$(@:.done=): no Python is old enough for it (3.11 for smdebug, 3.12 for TensorFlow 2.18); its tests do not run"
	@mkdir -p $(ENVS) && touch $@
