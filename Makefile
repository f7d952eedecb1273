# Needs make and Python 3.11 or newer; everything else goes into the virtual environment .venv. `make` prints the targets.
# Variables: PYTHON for the interpreter, CORPUS for the folder of `make corpus`, `make accuracy` and `make bench`,
# PYTEST_FLAGS to select tests of `make test` (e.g. PYTEST_FLAGS="-k units").

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
CORPUS ?= samples
PYTEST_FLAGS ?= -n 2 --durations=30 --durations-min=5
SEEDS ?= 200
EVALUATION_SEEDS ?=
REPRODUCERS ?= tests/programs/reproducers
MUTATIONS ?= 10000
FUZZ ?= 100000
KNOCKS ?= 20
RELEASES ?= 3.11.0,3.12.0,3.13.0
MUTATION_FLAGS ?=
ACCURACY_FLAGS ?=
EVALUATION_FLAGS ?=
FRONTENDS_FLAGS ?=
SPARK_FLAGS ?=
SIGNING_KEY ?=
FRONTENDS ?= jax,onnx,pandas,notebook
FRONTENDS_MORE ?= 'skl2onnx>=1.19,<2'

VENV := .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.package
READY := $(VENV)/.ready
DEMO := demo
DIST := dist
# The program that `make demo` runs; set it to use another installation.
TRACEMAP ?= $(BIN)/tracemap
MODEL := jax_gpt2_4l

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test quick thorough browser vulkan mlir lint format docs schemas assets gallery bench sizes corpus questions bisections reduced reproducers accuracy evaluation mutations fuzz knocks compat frontends frontendsenv spark sparkenv dist release checksums clean

help: ## print this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  make %-11s %s\n' "$$name" "$$text"; done

venv: $(READY) ## set up the virtual environment .venv; repeated only if pyproject.toml changed

SOURCES := pyproject.toml setup.py $(wildcard tracemap/hook/*.[ch] tracemap/hook/cuda/*.[ch])

# Install the package with the extras in the argument.
define install
	@test -n "$(PYTHON)" || { echo "tracemap needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments; install its venv package (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.$(1)'
	@# A regular installation has compiled modules. Without them, commands compile them each time if they cannot write.
	$(BIN)/python -m compileall -q tracemap
endef

$(PACKAGE): $(SOURCES) # the package alone, without what tests need
	$(call install,)
	@touch $@

$(READY): $(SOURCES)
	$(call install,[dev])
	@touch $(PACKAGE) $@

demo: $(if $(filter $(BIN)/%,$(TRACEMAP)),$(PACKAGE)) ## profile the JAX GPT-2 of samples/, print its most expensive lines and the path of the page
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	cd $(DEMO) && $(abspath $(TRACEMAP)) profile ../samples/models/$(MODEL).mlir --source-root ../samples/sources \
		--flagfile ../samples/flags/$(MODEL).flags -o page.html > table.txt
	@cat $(DEMO)/table.txt
	@echo "Annotated page: $(CURDIR)/$(DEMO)/page.html"

test: $(READY) browser vulkan mlir ## run the tests that every change must pass
	$(BIN)/python -m pytest -m "not long" $(PYTEST_FLAGS)

quick: $(READY) ## run the tests without a compiled model, in a minute
	$(BIN)/python -m pytest -q -n 2 $$(grep -l 'pytest.mark.quick' tests/test_*.py tests/*/test_*.py)

thorough: $(READY) browser vulkan mlir ## run the other, longer tests
	$(BIN)/python -m pytest -m long $(PYTEST_FLAGS)
	$(BIN)/python -m pytest -m "hypothesis and not long" --hypothesis-profile=thorough $(PYTEST_FLAGS) || [ $$? = 5 ] # 5: none is chosen

browser: # install Chromium for the tests of the page; without it they are skipped and say so
	@sh tests/browser/setup.sh

vulkan: # install Mesa's CPU driver for the tests of Vulkan if there is no device; without one they are skipped
	@sh tests/lavapipe.sh

mlir: # install MLIR's own tools for the tests of native code; without them they are skipped
	@sh tests/native/setup.sh

lint: $(READY) ## check style, types, spelling and wording
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m tests.words

format: $(READY) ## fix the findings that ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## render the documentation as a website in build/docs/html, check its links, and as a manual page in build/docs/man
	$(BIN)/sphinx-build -q -E -W -b html docs build/docs/html
	$(BIN)/python -m tests.website build/docs/html
	$(BIN)/sphinx-build -q -E -W -b man docs build/docs/man

schemas: $(READY) ## regenerate the JSON Schemas and the generated parts of the documents
	$(BIN)/python -m tests.schemas
	$(BIN)/python -m tests.documents

assets: ## rebuild the charts script of the pages from its locked libraries (needs npm)
	cd tools/charts && npm ci --no-audit --no-fund && node build.mjs

gallery: $(READY) browser ## retake the screenshots of the documentation, from the samples
	$(BIN)/python -m tests.browser.gallery

bench: $(READY) ## benchmark tracemap itself, and the parts of the elapsed time of the models below CORPUS
	CORPUS=$(CORPUS) $(BIN)/python -m benchmarks

sizes: $(READY) ## run every command on GPT-2, BERT, ResNet-50 and a Llama of real size (some GB, many minutes)
	$(BIN)/python -m benchmarks real_sizes

questions: $(READY) ## ask `tracemap mcp` 30 questions on programs with planted truths
	$(BIN)/python -m tests.oracle.questions

corpus: $(READY) ## build, record, attribute and report every model and flag file below CORPUS (default: samples)
	$(BIN)/python -m tests.run_corpus $(CORPUS)

reproducers: $(READY) ## check small programs with known truth: REPRODUCERS=FOLDER
	$(BIN)/python -m tests.run_reproducers $(REPRODUCERS)

accuracy: $(READY) ## measure the accuracy of the map on SEEDS=200 generated programs; ACCURACY_FLAGS="--write-docs" updates the table
	$(BIN)/python -m tests.oracle --seeds $(SEEDS) $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.inside $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.reads
	$(BIN)/python -m tests.oracle.shares
	$(BIN)/python -m tests.oracle.busy $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.edits --seeds $(SEEDS)
	$(BIN)/python -m tests.oracle.levels $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.compilations --corpus $(CORPUS)
	$(BIN)/python -m tests.oracle.changes $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.nights $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.sides $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.overhead --corpus $(CORPUS) $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.what_if $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.advice $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.memory --corpus $(CORPUS) $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.numerics --corpus $(CORPUS) $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.native $(ACCURACY_FLAGS)
	$(BIN)/python -m tests.oracle.build_cost --corpus $(CORPUS) $(ACCURACY_FLAGS)

evaluation: $(READY) ## measure all figures of docs/evaluation.md in one run and write it; EVALUATION_SEEDS=200 for more programs
	$(BIN)/python -m benchmarks.evaluation $(if $(EVALUATION_SEEDS),--seeds $(EVALUATION_SEEDS)) $(EVALUATION_FLAGS)

reduced: $(READY) ## reduce the models of 15 problems, and check that what is left shows them
	$(BIN)/python -m tests.oracle.reduce

bisections: $(READY) ## measure how often bisect finds planted causes; BISECTION_FLAGS="--only edits --write-docs"
	$(BIN)/python -m tests.oracle.bisections $(BISECTION_FLAGS)

mutations: $(READY) ## damage each kind of input file MUTATIONS=10000 times; MUTATION_FLAGS="--reader map --seed 2"
	$(BIN)/python -m tests.mutations --count $(MUTATIONS) $(MUTATION_FLAGS)

fuzz: $(READY) ## the same, guided by coverage, and the hook's C under sanitizers: FUZZ=100000 cases of each
	$(BIN)/python -m pip install --quiet --editable '.[dev,fuzz]'
	$(BIN)/python -m tests.hook.fuzz --count $(FUZZ)
	$(BIN)/python -m tests.mutations --guided --count $(FUZZ) $(MUTATION_FLAGS)

knocks: $(READY) ## kill each command KNOCKS=20 times with each signal, and record eight runs at once, KNOCKS times
	$(BIN)/python -m tests.kills --count $(KNOCKS)
	$(BIN)/python -m tests.parallel --rounds $(KNOCKS)

compat: $(READY) ## test with releases of IREE, in environments below .compat: RELEASES=3.11.0,3.12.0,3.13.0, or newest for nightly runs
	$(BIN)/python -m tests.compat --releases $(RELEASES)

# Create a virtual environment in the folder $(1) that also sees the packages of .venv.
define over_venv
	@test -x $(1)/bin/pip || $(BIN)/python -m venv $(1) || { rm -rf $(1); exit 1; }
	@$(1)/bin/python -c 'import pathlib, sysconfig, sys; \
		pathlib.Path(sysconfig.get_path("purelib"), "venv.pth").write_text(f"import site; site.addsitedir({sys.argv[1]!r})\n")' \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
endef

frontendsenv: $(READY) # a separate environment for frameworks
	$(call over_venv,.frontends)
	.frontends/bin/python -m pip install --quiet --editable '.[$(FRONTENDS)]' $(FRONTENDS_MORE)

frontends: frontendsenv ## test programs of JAX and ONNX, notebooks and tables; with torch: FRONTENDS=jax,onnx,pandas,notebook,torch
	PATH="$(abspath $(BIN)):$$PATH" .frontends/bin/python -m pytest tests/frontends tests/docs/test_documents_run.py \
		tests/api/test_examples.py $(FRONTENDS_FLAGS)

sparkenv: $(READY) # a separate environment for Apache Spark (half a gigabyte)
	$(call over_venv,.sparkenv)
	.sparkenv/bin/python -m pip install --quiet --editable '.[spark]'

spark: sparkenv ## compare answers of DuckDB and Apache Spark, also on a cluster with killed workers (needs Java 17)
	PATH="$(abspath $(BIN)):$$PATH" .sparkenv/bin/python -m pytest tests/store/test_spark.py tests/store/test_spark_cluster.py $(SPARK_FLAGS)

dist: $(READY) ## build the source archive and a wheel per machine in dist/, with the same bytes for the same commit and compilers
	$(BIN)/python -m pip install --quiet --editable '.[dev,release]'
	rm -rf $(DIST)
	$(BIN)/python -m tests.archives $(DIST)

release: dist ## check the archives, try the wheel with each installed Python, write the SBOM, checksums and signature
	$(BIN)/python -m tests.archives $(DIST) --check
	$(BIN)/python -m tests.released $(DIST)/*_$$(uname -m).whl --sbom $(DIST)/tracemap.cdx.json
	@$(MAKE) --no-print-directory checksums

checksums: ## write SHA256SUMS over the files in dist/; sign it with an SSH key: SIGNING_KEY=FILE
	cd $(DIST) && rm -f SHA256SUMS SHA256SUMS.sig && files=$$(ls) && sha256sum $$files > SHA256SUMS && cat SHA256SUMS
	@if [ -n "$(SIGNING_KEY)" ]; then ssh-keygen -Y sign -f "$(SIGNING_KEY)" -n file $(DIST)/SHA256SUMS; \
		else echo "SHA256SUMS is not signed; to sign it: make checksums SIGNING_KEY=FILE"; fi

clean: ## remove all results of these targets, and the virtual environment
	rm -rf $(VENV) $(DEMO) $(DIST) tracemap.egg-info build .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/actual .compat .frontends .sparkenv
	find tracemap tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
