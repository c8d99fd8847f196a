# make venv    the environment alone: .venv, built again only when pyproject.toml or constraints.txt change
# make train   train a 3D U-Net at 192^3 with LMS on the embedded data; ARGS="..." replaces the options
# make horovod Horovod for training on several devices: compiled once per machine (about 2 minutes on 2 cores), kept in ~/.cache/lms3d
# make quick   linter and the fast tests, without Horovod
# make test    linter, type checker and all tests, three files at a time; PYTEST_ARGS="-n 0 -k name" narrows them (quick's, too)
# make lint    linter and type checker alone
# make compat  the fast tests with the newest TensorFlow and Keras, candidates included, in .venv-compat; NEWEST="..." names others
# make docs    the reference of lms3d's Python names, from their docstrings, as pages in build/reference
# make report  what was published beside what this machine measures, on one page: at most an hour; goes on where it was stopped
# make torture kill ranks, break every file operation, damage every input, random graphs, long runs: hours; goes on where it was stopped
#
# Needs Python 3.11 or newer, make and g++; Horovod, and so `make test`, cmake too.
# Another interpreter: make PYTHON=/path/to/python3.
# On a machine with an NVIDIA driver TensorFlow's CUDA libraries are installed too: EXTRAS=dev keeps to the CPU.

SHELL := /bin/sh
PYTHON ?= $(shell command -v python3.11 || command -v python3)
comma := ,
EXTRAS ?= dev$(if $(shell command -v nvidia-smi),$(comma)gpu)
VENV := .venv
RUN := $(VENV)/bin/python
# The stamp's name holds a checksum of what the environment is made from: file times change with every clone and checkout.
STAMP := $(VENV)/stamp-$(shell (cat pyproject.toml constraints.txt; echo '$(EXTRAS)') | cksum | tr -dc '0-9')
# What learns most in the demonstration's 20 minutes: brains keep their orientation, and regions are learnt as they are scored.
ARGS ?= --resolution 192 --lms --targets regions --loss dice_cross_entropy --symmetries mirror --learning-rate 1e-3 --ema 0.98
# A file of tests stays in one process, so that its fixtures are made once; the slowest files come first (tests/conftest.py). Three
# processes keep two cores busy, as many tests wait for a real command.
PYTEST = '$(RUN)' -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# pip takes a candidate only where one is named. TensorFlow's brings a nightly build of Keras, whose files lie where Keras' own do.
COMPAT := .venv-compat
NEWEST ?= 'tensorflow>=2.22.0rc0'
NIGHTLY := keras-nightly

# If a user has set this, each of the tests' thousand processes would compile all of lms3d anew. Empty means off.
test quick compat: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help venv train quick test lint compat horovod docs report torture
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

venv: $(STAMP)

$(STAMP):
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than Python 3.11; name another one: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x '$(RUN)' || '$(PYTHON)' -m venv '$(VENV)'
	@echo "Installing the environment into $(VENV) (a few minutes the first time)"
	@PIP_CONSTRAINT='$(CURDIR)/constraints.txt' PIP_DISABLE_PIP_VERSION_CHECK=1 '$(RUN)' -m pip install --quiet --editable '.[$(EXTRAS)]'
	@'$(RUN)' -m lms3d.engine.native.library
	@rm -f '$(VENV)'/stamp-*
	@touch '$@'

train: venv
	@'$(RUN)' -m lms3d.train $(ARGS)

horovod: venv
	@'$(RUN)' -m deploy.horovod.build

lint: venv
	@'$(RUN)' -m ruff check .
	@'$(RUN)' -m mypy

quick: venv
	@'$(RUN)' -m ruff check .
	@$(PYTEST) -m 'not slow' --durations 20 --durations-min 3 $(PYTEST_ARGS)

test: lint horovod
	@$(PYTEST) --durations 40 --durations-min 10 $(PYTEST_ARGS)

compat: RUN := $(COMPAT)/bin/python
compat:
	@test -x '$(RUN)' || '$(PYTHON)' -m venv '$(COMPAT)'
	@PIP_DISABLE_PIP_VERSION_CHECK=1 '$(RUN)' -m pip install --quiet --upgrade --editable '.[dev]' $(NEWEST)
	@! '$(RUN)' -m pip show --quiet $(NIGHTLY) 2> '$(COMPAT)/pip.log' || { \
	  '$(RUN)' -m pip uninstall --quiet --yes keras && '$(RUN)' -m pip install --quiet --pre --force-reinstall --no-deps $(NIGHTLY); }
	@'$(RUN)' -c 'import keras, tensorflow; print("TensorFlow", tensorflow.__version__, "and Keras", keras.__version__)'
	@$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

docs: venv
	@'$(RUN)' -m docs.build_reference

report: horovod
	@'$(RUN)' -m experiments.report $(REPORT_ARGS)

torture: horovod
	@'$(RUN)' -m tests.stress $(TORTURE_ARGS)
