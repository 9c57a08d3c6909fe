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
# what `make demo` trains with: pytorch or keras
FRAMEWORK ?= pytorch
# Tests that measure real time get a second try: another process may have taken the processor in the first.
MEASURED := --reruns 1

.PHONY: help demo test test-all test-long lint format types docs coverage versions fuzz bench image sbom changelog release-check clean
help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

demo: $(ENVS)/dev.done $(if $(filter keras,$(FRAMEWORK)),$(ENVS)/frameworks.done) ## train, profile, store, judge and report on this machine; no AWS account, no Docker
	@$(if $(filter keras,$(FRAMEWORK)),SM_PROFILER_LOCAL_PYTHON=$(abspath $(ENVS)/frameworks/bin/python)) $(BIN)/sm-profiler demo --framework $(FRAMEWORK)

test: $(ENVS)/dev.done $(ENVS)/sdk3.done $(ENVS)/smdebug.done $(ENVS)/frameworks.done ## the test suite
	@echo "first what measures real time, one test after the other; then everything else, two at a time"
	@$(BIN)/python -m pytest -m 'alone and not long' $(MEASURED) $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -m 'not alone and not long' -n 2 --dist worksteal $(PYTEST_ARGS)

test-all: test test-long ## the test suite, then what takes minutes: soak, chaos, a thousand damaged jobs

test-long: $(ENVS)/dev.done $(ENVS)/frameworks.done $(ENVS)/frameworks-old.done $(ENVS)/mlflow.done $(ENVS)/toolkit.done $(ENVS)/libraries.done $(ENVS)/launchers.done
	@SM_PROFILER_FRAMEWORKS_ENV=frameworks-old $(BIN)/python -m pytest tests/frameworks/test_keras.py $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -m 'long and alone' $(MEASURED) $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -m 'long and not alone' -n 2 --dist worksteal $(PYTEST_ARGS)

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

# --- environments: one for the project with SDK v2 and PyTorch; SDK v3 and smdebug each need their own -------------
$(ENVS)/dev.done: pyproject.toml packaging/sm_profiler_auto.pth
	@echo "preparing $(ENVS)/dev: sm-profiler, sagemaker SDK v2, PyTorch (CPU), test tools; a minute or two …"
	@$(PYTHON) -m venv $(ENVS)/dev
	@$(BIN)/pip install $(PIP_QUIET) --upgrade pip
	@$(BIN)/pip install $(PIP_QUIET) torch==$(TORCH_VERSION) $(TORCH_INDEX)
	@$(BIN)/pip install $(PIP_QUIET) -e '.[all,sagemaker2]' --group dev
	@touch $@

$(ENVS)/docs.done: pyproject.toml
	@echo "preparing $(ENVS)/docs: MkDocs …"
	@$(PYTHON) -m venv $(ENVS)/docs
	@$(ENVS)/docs/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/docs/bin/pip install $(PIP_QUIET) -e . --group docs
	@touch $@

# apart from dev, since the SDK pins an older packaging than twine needs
$(ENVS)/release.done: pyproject.toml
	@echo "preparing $(ENVS)/release: build, twine, towncrier …"
	@$(PYTHON) -m venv $(ENVS)/release
	@$(ENVS)/release/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/release/bin/pip install $(PIP_QUIET) --group release
	@touch $@

$(ENVS)/sdk3.done: pyproject.toml
	@echo "preparing $(ENVS)/sdk3: sagemaker SDK v3 …"
	@$(PYTHON) -m venv $(ENVS)/sdk3
	@$(ENVS)/sdk3/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/sdk3/bin/pip install $(PIP_QUIET) -e '.[local,sagemaker3]' pytest
	@touch $@

# the newest TensorFlow, Keras and JAX, and the ones in SageMaker Studio's image
$(ENVS)/frameworks.done: pyproject.toml packaging/sm_profiler_auto.pth
	@echo "preparing $(ENVS)/frameworks: TensorFlow (CPU), Keras, JAX, PyTorch (CPU); some minutes …"
	@$(PYTHON) -m venv $(ENVS)/frameworks
	@$(ENVS)/frameworks/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/frameworks/bin/pip install $(PIP_QUIET) torch==$(TORCH_VERSION) $(TORCH_INDEX)
	@$(ENVS)/frameworks/bin/pip install $(PIP_QUIET) -e '.[all]' --group frameworks
	@touch $@

$(ENVS)/frameworks-old.done: pyproject.toml packaging/sm_profiler_auto.pth
ifeq ($(KERAS_PYTHON),)
	@echo "no Python 3.12 or older found: TensorFlow 2.18 and Keras 3.10 are not tested"
	@mkdir -p $(ENVS) && touch $@
else
	@echo "preparing $(ENVS)/frameworks-old: TensorFlow 2.18 (CPU), Keras 3.10 …"
	@$(KERAS_PYTHON) -m venv $(ENVS)/frameworks-old
	@$(ENVS)/frameworks-old/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/frameworks-old/bin/pip install $(PIP_QUIET) -e '.[analysis]' --group frameworks-old
	@touch $@
endif

# libraries that train with PyTorch; torchvision requires the one release of torch that it was built for, and its build:
# where there is one for the CPU of torch alone, torchvision's operators do not load, so torch is installed for CUDA, too
$(ENVS)/libraries.done: pyproject.toml packaging/sm_profiler_auto.pth
	@echo "preparing $(ENVS)/libraries: transformers, TRL, PEFT, Lightning, timm, torchvision …; two minutes"
	@$(PYTHON) -m venv $(ENVS)/libraries
	@$(ENVS)/libraries/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/libraries/bin/pip install $(PIP_QUIET) torch==$(TORCH_VERSION) torchvision==$(TORCHVISION_VERSION) $(TORCH_INDEX)
	@$(ENVS)/libraries/bin/python -c "import torchvision" 2>/dev/null || $(ENVS)/libraries/bin/pip install $(PIP_QUIET) torch===$(TORCH_VERSION)
	@$(ENVS)/libraries/bin/pip install $(PIP_QUIET) -e '.[rules]' --group libraries
	@touch $@

# MLflow's server pins packages of its own
$(ENVS)/mlflow.done: pyproject.toml
	@echo "preparing $(ENVS)/mlflow: an MLflow server …"
	@$(PYTHON) -m venv $(ENVS)/mlflow
	@$(ENVS)/mlflow/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/mlflow/bin/pip install $(PIP_QUIET) -e '.[mlflow]' --group mlflow
	@touch $@

# AWS's training toolkit, which starts scripts in AWS's containers; what sm-profiler's wheel needs, but not sm-profiler
$(ENVS)/toolkit.done: pyproject.toml
	@echo "preparing $(ENVS)/toolkit: sagemaker-training, PyTorch (CPU) …"
	@$(PYTHON) -m venv $(ENVS)/toolkit
	@$(ENVS)/toolkit/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/toolkit/bin/pip install $(PIP_QUIET) torch==$(TORCH_VERSION) $(TORCH_INDEX)
	@$(ENVS)/toolkit/bin/pip install $(PIP_QUIET) --group toolkit
	@touch $@

# what starts trainings: accelerate, DeepSpeed, Lightning, Ray, uv, notebooks; DeepSpeed's build imports torch
$(ENVS)/launchers.done: pyproject.toml packaging/sm_profiler_auto.pth
	@echo "preparing $(ENVS)/launchers: PyTorch (CPU), accelerate, DeepSpeed, Lightning, Ray …"
	@$(PYTHON) -m venv $(ENVS)/launchers
	@$(ENVS)/launchers/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/launchers/bin/pip install $(PIP_QUIET) torch==$(TORCH_VERSION) $(TORCH_INDEX)
	@$(ENVS)/launchers/bin/pip install $(PIP_QUIET) -e . --group launchers
	@DS_ACCELERATOR=cpu $(ENVS)/launchers/bin/pip install $(PIP_QUIET) --no-build-isolation deepspeed || echo "without DeepSpeed: it cannot be built here"
	@touch $@

$(ENVS)/smdebug.done: pyproject.toml
ifeq ($(OLD_PYTHON),)
	@echo "no Python 3.11 or older found: the tests that compare with smdebug 1.0.34 will say that they did not run"
	@mkdir -p $(ENVS) && touch $@
else
	@echo "preparing $(ENVS)/smdebug: smdebug 1.0.34, the library we are measured against …"
	@$(OLD_PYTHON) -m venv $(ENVS)/smdebug
	@$(ENVS)/smdebug/bin/pip install $(PIP_QUIET) --upgrade pip
	@$(ENVS)/smdebug/bin/pip install $(PIP_QUIET) smdebug==1.0.34 requests psutil pyarrow 'pandas<2' 'numpy<1.25' 'bokeh<3' 'setuptools<70'
	@touch $@
endif
