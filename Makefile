# `make demo` shows what Modyn does; `make test` is the gate; `make test-all` is the gate and all longer tests.
# Each target first installs its dependencies into .venv: `make setup` those of users, `make setup-dev` also the developer tools.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
PEERS := .venv-peers
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
SOURCES = pyproject.toml $(CONSTRAINTS) CMakeLists.txt $(shell find cpp protos -type f 2>/dev/null)
PIP_INSTALL = $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS)
MOTO := $(VENV)/moto/.installed
MODEL_LIBRARIES := $(VENV)/model-libraries/.installed
# More jobs than cores: tests wait for processes and disks during a third of their time.
JOBS ?= 3
# One worker runs all tests of a file, so that shared fixtures start once. Files run in the order of tests/conftest.py.
XDIST = -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart=2

.PHONY: help setup setup-dev demo test check quick lint types unit cpp slow exhaustive gpu cpp-address cpp-thread test-extras test-all figures peers serving-peers docs clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## Create .venv, install pinned dependencies, build the C++ core

setup-dev: $(DEV_STAMP)  ## Like setup, and install what tests, linters and builds of the C++ core need

# pip downloads tools to build the core and removes them afterwards, unless the developer tools are installed.
$(STAMP): $(SOURCES)
ifneq ($(wildcard $(DEV_STAMP)),)
	$(MAKE) setup-dev
else
	$(new-venv)
	$(PIP_INSTALL) --build-constraint $(CONSTRAINTS) --editable ".[analysis,images]"
	@touch $@
endif

$(DEV_STAMP): $(SOURCES)
	$(new-venv)
	$(PIP_INSTALL) scikit-build-core pybind11 grpcio-tools cmake ninja
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP_INSTALL) --no-build-isolation --editable ".[dev,examples,analysis,images,buckets]"
	@touch $(STAMP) $@

# torch is installed first and pinned: otherwise pip also installs gigabytes of CUDA.
define new-venv
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed and '$(PYTHON)' was not found: apt-get install python3.11 python3.11-venv, or make PYTHON=/path/to/python3.11"; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "A C++17 compiler is needed: apt-get install g++"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP_INSTALL) "torch==2.13.0" numpy
endef

# The server that replaces S3 in tests needs packages that Modyn does not need, so it has its own environment.
# MODYN_TESTS_NO_SKIP: tests that need this server, or another package installed here, fail instead of being skipped if it is missing.
$(MOTO): $(DEV_STAMP) tests/moto-requirements.txt
	$(PYTHON) -m venv $(VENV)/moto
	$(VENV)/moto/bin/python -m pip install --quiet --requirement tests/moto-requirements.txt
	@touch $@

# Only tests of models by name see these libraries, because torchmetrics imports them too, and then takes twice the time.
$(MODEL_LIBRARIES): $(DEV_STAMP) tests/model-libraries.txt $(CONSTRAINTS)
	rm -rf $(VENV)/model-libraries
	$(PIP_INSTALL) --no-deps --target $(VENV)/model-libraries --requirement tests/model-libraries.txt
	@touch $@

demo: setup  ## Replay a pipeline on real images through all six services, show the results, write an HTML report
	$(BIN)/python -c "import sklearn" 2>/dev/null || $(PIP_INSTALL) scikit-learn  # the images come with it
	$(BIN)/python -m examples.digits.demo

test: check  ## The gate

check: lint types unit cpp  ## Ruff, mypy (strict), tests with warnings as errors, C++ tests

# Compares with BASE, or with the commit where the branch left its upstream or main. The 90 seconds start here and include an installation.
quick: BEGAN := $(shell date +%s)
quick: setup-dev  ## Tests that a change may have broken, by imports, nearest first; at most 90 seconds, names skipped tests. BASE=commit
	$(BIN)/ruff check .
	$(BIN)/python -m tests.support.quick --base "$(BASE)" --began $(BEGAN)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev
	$(BIN)/mypy modyn tests benchmark examples

# Tests start hundreds of processes. With PYTHONDONTWRITEBYTECODE, each would compile the sources again, and pytest would compile all tests again.
export PYTHONDONTWRITEBYTECODE :=
unit: setup-dev $(MOTO) $(MODEL_LIBRARIES)
	$(BIN)/python -m compileall -q modyn tests
	MODYN_TESTS_NO_SKIP=1 $(BIN)/pytest -m "not slow and not exhaustive" $(XDIST)

# Figures of the data path that need a peer are skipped, unless `make peers` has installed the peers.
slow: setup-dev $(MOTO) $(MODEL_LIBRARIES)  ## Slow tests: random kills, each kind of policy under kills, some figures on few samples, more property examples
	$(SLOW_TESTS) -m "slow or (hypothesis and not exhaustive)"

exhaustive: setup-dev  ## Every policy with every option under kills, and other tests that take minutes each
	$(SLOW_TESTS) -m exhaustive

# A file has up to a hundred slow tests, so workers share the tests of one file. Each worker starts its own services.
SLOW_TESTS = $(if $(wildcard $(PEERS)/.installed),MODYN_TESTS_NO_SKIP=1) $(BIN)/pytest --hypothesis-profile slow --timeout 900 -o faulthandler_timeout=2100 $(XDIST) --dist worksteal

gpu: setup-dev  ## Tests that need a CUDA device, and the figure of a GPU that the data path feeds
	$(BIN)/pytest -m gpu --timeout 600
	$(BIN)/python -m benchmark.data_path gpu --report

cpp: setup-dev  ## C++ tests
	$(call cpp-tests,tests,)

cpp-address: setup-dev  ## C++ tests under the address and undefined behaviour sanitizers
	$(call cpp-tests,tests-address,address)

cpp-thread: setup-dev  ## C++ tests under the thread sanitizer
	$(call cpp-tests,tests-thread,thread)

# $(1): folder below build/, $(2): sanitizer
define cpp-tests
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S cpp -B build/$(1) -G Ninja -DMODYN_BUILD_TESTS=ON -DMODYN_BUILD_PYTHON=OFF -DMODYN_SANITIZE=$(2) >/dev/null
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/$(1)
	PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir build/$(1) --output-on-failure --no-tests=error
endef

# Tests of drift metrics that call a library: against the library, and in pipelines on real services. Each library has its own environment, in
# which modyn is installed from one wheel. Tests run in $(EXTRAS), which links to them, so that they import the wheel and not the working tree.
# Warnings are ignored, because they come from the libraries.
LIBRARIES := alibi evidently
EXTRAS := build/extras
LIBRARY_TESTS := tests/evaluator/drift/libraries
PYTHON_FILES := $(shell find modyn -name '*.py' -not -path 'modyn/proto/*')
EXTRAS_MARKS := -m "not exhaustive"
test-extras: $(LIBRARIES:%=.venv-%/.modyn)  ## Tests of the extras alibi and evidently, each in an environment of its own
	ln -sfn ../../tests $(EXTRAS)/tests
	set -e; cd $(EXTRAS); for extra in $(LIBRARIES); do ../../.venv-$$extra/bin/python -m pytest -q $(EXTRAS_MARKS) -p no:cacheprovider --timeout 900 -o filterwarnings=ignore \
		-o pythonpath= -o faulthandler_timeout=2100 --confcutdir=$(LIBRARY_TESTS) $(LIBRARY_TESTS)/against_$$extra.py $(LIBRARY_TESTS)/in_pipelines.py; done

$(LIBRARIES:%=.venv-%/.modyn): .venv-%/.modyn: .venv-%/.installed $(EXTRAS)/.built
	.venv-$*/bin/python -m pip install --quiet --no-deps --force-reinstall $(EXTRAS)/modyn-*.whl
	@touch $@

# The wheel has its own build folder, because the build folder of .venv may be in use.
$(EXTRAS)/.built: $(SOURCES) $(PYTHON_FILES) | .venv-alibi/.installed
	rm -f $(EXTRAS)/modyn-*.whl
	.venv-alibi/bin/python -m pip wheel --quiet --no-deps --build-constraint $(CONSTRAINTS) --config-settings build-dir=$(EXTRAS)/core \
		--wheel-dir $(EXTRAS) .
	@touch $@

$(LIBRARIES:%=.venv-%/.installed): .venv-%/.installed: tests/%-requirements.txt
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade pip
	.venv-$*/bin/python -m pip install --quiet --constraint $< "torch==2.13.0"
	.venv-$*/bin/python -m pip install --quiet --requirement $<
	@touch $@

# The targets run one after the other, even under `make -j`, because each uses all cores. `slow` looks for the peers when its make starts.
test-all: setup-dev  ## The gate, slow tests with all peers, tests of extras, C++ tests under sanitizers
	$(MAKE) check
	$(MAKE) peers
	$(MAKE) serving-peers
	$(MAKE) slow
	$(MAKE) exhaustive
	$(MAKE) test-extras EXTRAS_MARKS=
	$(MAKE) cpp-address
	$(MAKE) cpp-thread

figures: setup-dev  ## Check the figures in benchmark/README.md on few samples; name each that is more than a fifth worse than reported
	$(BIN)/python -m benchmark.figures

peers: $(PEERS)/.installed  ## Create .venv-peers with the libraries that the benchmarks compare with

$(PEERS)/.installed: benchmark/peers.txt $(CONSTRAINTS)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) "torch==2.13.0" numpy
	$(PEERS)/bin/python -m pip install --quiet --no-deps --requirement benchmark/peers.txt
	@touch $@

serving-peers: .venv-serving-peers/.installed  ## Create .venv-serving-peers with the servers that `benchmark.online serve` compares with

.venv-serving-peers/.installed: benchmark/serving-peers.txt $(CONSTRAINTS)
	test -x .venv-serving-peers/bin/python || $(PYTHON) -m venv .venv-serving-peers
	.venv-serving-peers/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) "torch==2.13.0" numpy
	.venv-serving-peers/bin/python -m pip install --quiet --requirement $<
	@touch $@

docs: setup  ## Regenerate the pages of docs/reference/
	$(BIN)/python -m modyn.reference.pages

clean:  ## Remove files created by builds and tests
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis modyn/proto modyn/_core*.so
