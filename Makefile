# make demo   capture, analyze and replay a real run in demo/
# make test   tests, and beside them lint, types and layers
# make test-gpu  what one GPU can show, with a page in build/gpu; it says so where there is none
# make docs   the documentation as a site in site/
# All set everything up in .venv by themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# what is never imported need not be compiled: half of the set-up's time
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-compile \
	-c constraints.txt
export PYTHONDONTWRITEBYTECODE :=
# the package before a folder that is called like it: a script beside the clone's folder
# would import that folder, which has no __init__.py, as a namespace package
FIRST := import sys; sys.meta_path.sort(key=lambda f: \
	"__editable___moetraffic" not in getattr(f, "__module__", ""))
MAKE_FIRST = echo '$(FIRST)' > "$$(echo $(VENV)/lib/python3*/site-packages)/moetraffic.pth"

.PHONY: demo test test-all test-gpu bench docs lint tools clean

demo: $(VENV)/.ready
	$(BIN)/moetraffic demo -o demo --force

# a third of the tests' time is waiting for ranks: three processes keep two cores busy;
# a file's tests stay together, so that what they share is made once
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

# all checks, also if one fails; a signal ends the running one
LINT := trap 'kill $$!; exit 130' INT TERM; failed=; \
	for check in "ruff check ." "ruff format --check ." mypy lint-imports; do \
	  $(BIN)/$$check & wait $$! || failed="$$failed, $$check"; done; \
	[ -z "$$failed" ] || { echo "failed: $${failed\#, }"; exit 1; }
# what a process in the background prints is shown when the tests are over: of checks
# that pass, a line
BESIDE_LINT = @mkdir -p build; ( $(LINT) ) >build/lint.txt 2>&1 & lint=$$!; \
	trap 'kill $$lint; exit 130' INT TERM; \
	$(1); tests=$$?; \
	wait $$lint; lint=$$?; \
	if [ $$lint = 0 ]; then echo "lint: passed"; else cat build/lint.txt; fi; \
	[ $$tests = 0 ] && [ $$lint = 0 ]

test: $(VENV)/.ready-test tools
	$(call BESIDE_LINT,$(PYTEST) -m "not slow")

test-all: $(VENV)/.ready-test tools $(VENV)/.ready-frameworks
	$(call BESIDE_LINT,MOETRAFFIC_EXAMPLES=200 $(PYTEST))

test-gpu: $(VENV)/.ready-test
	$(BIN)/python benchmarks/gpu.py --out build/gpu

# reruns.py captures for hours, synthetic.py uses its captures: not here
BENCHMARKS := streaming capture estimate virtual replay replay_faults
bench: $(VENV)/.ready-test
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done
	if [ "$$(id -u)" = 0 ]; then PYTHON=$(BIN)/python benchmarks/fabric.sh \
	  && $(BIN)/python benchmarks/fabric_time.py; \
	else echo "fabric.sh and fabric_time.py need root, for network namespaces"; fi

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(VENV)/.ready-test tools
	@$(LINT)

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[hook]'
	$(MAKE_FIRST)
	touch $@

# all at once: pip need not resolve and build a second time
$(VENV)/.ready-test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[test]'
	$(MAKE_FIRST)
	touch $(VENV)/.ready $@

$(VENV)/.ready-docs: $(VENV)/.ready
	$(PIP) --editable '.[docs]'
	touch $@

# the frameworks whose examples only test-all runs; without them its tests skip
$(VENV)/.ready-frameworks: $(VENV)/.ready-test
	$(PIP) --editable '.[test,examples-megatron,examples-deepspeed,examples-torchtitan]' \
	  && touch $@ || echo "some frameworks could not be installed: their tests are skipped"

# what tests need besides Python; without the rights to install it, they name it
tools:
	@command -v h5dump >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
	  && apt-get update -qq && apt-get install -y -qq hdf5-tools >/dev/null; } \
	  || echo "h5dump is missing and could not be installed: its test will say so"

clean:
	rm -rf $(VENV) build dist demo site *.egg-info .mypy_cache .pytest_cache .ruff_cache
