# Two commands: `make runtime` and `make test`; while you work, `make check`. Everything they write is under build/.
PYTHON ?= python3
RUNTIME ?= auto
SM120 := build/dev/bin/sm120
PYTEST := build/dev/bin/python -m pytest
# Only what is said on this command line narrows `make test`, not a variable that happens to be set.
ifneq ($(origin KERNEL),command line)
KERNEL :=
endif
ifneq ($(origin PATCH),command line)
PATCH :=
endif
PIP := build/dev/bin/python -m pip install --quiet --disable-pip-version-check --editable

.PHONY: runtime check test test-long lint types clean

runtime: build/dev/.installed
	$(SM120) runtime --flavor $(RUNTIME) --prove

# What needs no runtime and no network: style, types, units of the pipeline, and one kernel's references.
check: lint
	$(PYTEST) -n 2 -q -m "not long and not slow and not served and not runtime" \
	  tests integration kernels/hybrid_state kernels/recover_ssm/tests/test_reference.py

# Everything; with KERNEL=name one kernel's tests, with PATCH=slug one patch's lint, probe and closure.
test: build/dev/.toolkit lint
	$(SM120) runtime --flavor $(RUNTIME)
ifneq ($(KERNEL),)
	$(PYTEST) -n 2 kernels/$(KERNEL)
endif
ifneq ($(PATCH),)
	$(SM120) series lint
	$(SM120) probe $(PATCH)
	$(SM120) closure $(PATCH) --prove
endif
ifeq ($(KERNEL)$(PATCH),)
	$(PYTEST) -n 2 --dist loadgroup --durations 25
endif

# The wider forms: every sampling parameter on every served verify path, every draft on the hybrid. About half an hour.
test-long: test
	$(PYTEST) -m long

# The hooks of .pre-commit-config.yaml are these.
lint: build/dev/.tested types
	build/dev/bin/ruff check .
	build/dev/bin/ruff format --check .

# Modules are imported as sm120.NAME and lie in NAME/: without links of that shape every import of ours would be Any.
types: build/dev/.tested
	mkdir -p build/types/sm120
	for part in integration kernels; do ln -sfn "$(CURDIR)/$$part" build/types/sm120/$$part; done
	MYPYPATH=build/types build/dev/bin/mypy --exclude cpu_layer --exclude /tests/ -p sm120.integration -p sm120.kernels

# The tool's environment, which sees every edit of kernels/ and integration/ as it is.
build/dev/.installed: pyproject.toml
	$(PYTHON) -m venv build/dev
	$(PIP) .
	touch $@

# What tests drive and the machine may lack: pytest's plugins, ninja; and nvcc where there is none (270 MB).
build/dev/.tested: build/dev/.installed
	$(PIP) '.[test]'
	touch $@

build/dev/.toolkit: build/dev/.tested
	command -v nvcc >/dev/null || $(PIP) '.[nvcc]'
	touch $@

clean:
	rm -rf build
