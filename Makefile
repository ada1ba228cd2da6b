# Two commands do everything on a machine that has only Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# one process per core, each with one thread
JOBS ?= auto

.PHONY: test test-slow fuzz fuzz-spellings lint types bench bench-against bench-peers conformance conformance-timm ecosystem models tables screenshots audit demo \
	coverage mutation freeze frozen matrix dist licences docs walk clean

$(READY): pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (the first time takes a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev,docs]"
	@touch $@

lint: $(READY)
	@echo "Checking style (ruff)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "Checking the contract of imports (import-linter)"
	@$(BIN)/lint-imports --no-cache --no-logo

types: $(READY)
	@echo "Checking types (mypy)"
	@$(BIN)/mypy

test: lint types
	@echo "Running the tests (pytest)"
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m "not slow"

test-slow: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m slow

# random tiny architectures; each failure prints the command that repeats it (docs/fuzzing.md)
CASES ?= 5000
SEED ?= 0
fuzz: $(READY)
	@echo "Fuzzing $(CASES) random architectures (about ten minutes of one core)"
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tools.fuzz --cases $(CASES) --seed $(SEED)

# equivalent spellings of one model, each compared with the usual spelling (docs/fuzzing.md)
fuzz-spellings: $(READY)
	@echo "Comparing $(CASES) equivalent spellings of one model"
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tools.spellings --cases $(CASES) --seed $(SEED)

# hashes of every method on every tiny model, before and after a change that must not move any number
freeze: $(READY)
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error $(BIN)/python -W ignore -m tools.freeze write build/freeze.json
frozen: $(READY)
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error $(BIN)/python -W ignore -m tools.freeze check build/freeze.json

# docs/performance.md from measurements in tools/benchmarks/measured; goes on where it stopped, on the same day and commit
bench: $(READY)
	@echo "Measuring cost for docs/performance.md (40 minutes on two cores, which should have nothing else to do)"
	@HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error $(BIN)/python -W ignore -m tools.benchmarks
	@HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error $(BIN)/python -W ignore -m tools.docgen

# the cost here and in another checkout, side by side: make bench-against CHECKOUT=../other
bench-against: $(READY)
	@HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error $(BIN)/python -W ignore -m tools.benchmarks.against $(CHECKOUT)

# other libraries of explanations, in environments of their own (the second has torchvision: several gigabytes)
bench-peers:
	@echo "Comparing with other libraries, in .venv-peers and .venv-peers-vision (several gigabytes)"
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r tools/benchmarks/peers/requirements.txt -e .
	@test -x .venv-peers-vision/bin/python || $(PYTHON) -m venv .venv-peers-vision
	@.venv-peers-vision/bin/python -m pip install --quiet --disable-pip-version-check -r tools/benchmarks/peers/requirements-vision.txt -e .
	@HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error .venv-peers/bin/python -W ignore -m tools.benchmarks.peers --only autolrp captum inseq transformers-interpret
	@HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error .venv-peers-vision/bin/python -W ignore -m tools.benchmarks.peers --only lxt zennit grad-cam

conformance: $(READY)
	@echo "Every method on every family (about four minutes on two cores); writes docs/architectures.md"
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error $(BIN)/python -m tools.conformance.run --write

# timm needs torchvision and the newest torch, several gigabytes: an environment of its own, and no part in CI
conformance-timm:
	@echo "Models of timm, in .venv-timm (several gigabytes); writes docs/architectures-timm.md"
	@test -x .venv-timm/bin/python || $(PYTHON) -m venv .venv-timm
	@.venv-timm/bin/python -m pip install --quiet --disable-pip-version-check timm -e ".[captum,flow]"
	@OMP_NUM_THREADS=1 .venv-timm/bin/python -m tools.conformance.timm_matrix --write

# docs/ecosystem.md: adapters, quantised, wrapped and sharded models, in an environment of their own
ecosystem:
	@echo "Comparing models as people load them with the plain model, in .venv-ecosystem; writes docs/ecosystem.md"
	@test -x .venv-ecosystem/bin/python || $(PYTHON) -m venv .venv-ecosystem
	@.venv-ecosystem/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r tools/ecosystem/requirements.txt -e ".[hf,flow]"
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error .venv-ecosystem/bin/python -W ignore -m tools.ecosystem --write

# the models of the tables, into build/models: hours on two cores; needs the shared data and weights
models: $(READY)
	@echo "Training the models of the tables (hours on two cores; what is there is left)"
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tools.training.tables.train
	@for kind in vqa clip detr; do \
	  test -f build/models/scenes-$$kind/config.json || $(BIN)/python -m tools.training.relations.$$kind || exit 1; done

# docs/results.md from evaluations in build/results; goes on where it stopped
tables: $(READY)
	@echo "Evaluating for docs/results.md (hours on two cores; goes on where it stopped)"
	@HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error $(BIN)/python -W ignore -m tools.tables

# known vulnerabilities of what is installed; what the database cannot be asked about is listed
audit: $(READY)
	@echo "Auditing dependencies (pip-audit)"
	@$(BIN)/pip-audit --progress-spinner off --skip-editable

# the documentation's site, into build/site; a warning is an error (but not with --quiet, which hides it from the count)
docs: $(READY)
	@echo "Building the documentation (mkdocs), into build/site/index.html"
	@NO_MKDOCS_2_WARNING=true PYTHONPATH=. $(BIN)/python -W ignore::DeprecationWarning -m mkdocs build --strict

# every command and snippet of README and quickstart, in order, as a stranger would; what is printed is compared
walk: $(READY)
	@$(BIN)/python -W ignore -m tools.docgen.walk

# pictures of the web page for docs/serve.md; needs Chromium
screenshots: $(READY)
	@$(BIN)/python -W ignore -m tools.docgen.screenshots

# how much of the package the tests run; the figure of each file, and an error below 95 %
coverage: $(READY)
	@echo "Running the tests with coverage (half an hour on two cores)"
	@rm -rf build/coverage && mkdir -p build/coverage
	@OMP_NUM_THREADS=1 COVERAGE_FILE=$(CURDIR)/build/coverage/data $(BIN)/pytest -n $(JOBS) -m "not slow" --cov \
	  --cov-report=html:build/coverage/html --cov-report=term --cov-fail-under=95

# docs/mutation.md: are the tests sharp? Goes on where it stopped
mutation: $(READY)
	@echo "Breaking equations one place at a time (hours on two cores; goes on where it stopped)"
	@$(BIN)/python -W ignore -m tools.mutation

# docs/compatibility.md: every version of Python, torch and transformers that can be had here (several gigabytes)
matrix:
	@echo "Trying versions of Python, torch and transformers, each in an environment of its own"
	@$(PYTHON) -m tools.matrix

# wheel and sdist into dist/, each tried in a clean environment
dist: $(READY)
	@echo "Building wheel and sdist, and trying each in a clean environment"
	@$(BIN)/python -m tools.release

# docs/licences.md: licences of dependencies and of what is shipped
licences: $(READY)
	@$(BIN)/python -m tools.docgen.licences

demo: $(READY)
	@echo "Explaining sentences and pictures with the models that come with Whence"
	@$(BIN)/whence demo --no-open

clean:
	rm -rf $(VENV) .venv-timm .venv-ecosystem .venv-peers .venv-peers-vision build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
