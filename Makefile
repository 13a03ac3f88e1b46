# Two commands: `make runtime` and `make test`. Everything they write is under build/.
PYTHON ?= python3
RUNTIME ?= auto
SM120 := build/dev/bin/sm120
# The toolkit as Python packages, for a machine without nvcc. nvcc links from lib64, which the packages call lib.
TOOLKIT = $(CURDIR)/build/dev/lib/python3.*/site-packages/nvidia/cu13

# What CMake compiles into the editable install: an edit of it must not be tested with the binaries of before.
COMPILED := $(wildcard $(foreach type,cu cuh cpp h def,kernels/*/*.$(type) kernels/_lib/simt/*.$(type))) \
            $(wildcard cmake/*)

.PHONY: runtime test test-long lint clean

runtime: build/dev/.installed
	$(SM120) runtime --flavor $(RUNTIME) --prove

test: build/dev/.tested lint
	$(SM120) runtime --flavor $(RUNTIME)
	$(SM120) link-test-layer
	command -v nvcc >/dev/null || PATH=$$(echo $(TOOLKIT)/bin):$$PATH; \
	site=$$(echo $(CURDIR)/build/runtime/lib/python3.*/site-packages); \
	SM120_RUNTIME=$(CURDIR)/build/runtime SM120_SGLANG=$$site SM120_FLASHINFER=$$site \
	build/dev/bin/python -m pytest -n 2 --dist loadgroup --durations 25

# The wider forms: every sampling parameter on every served verify path, every draft on the hybrid. About half an hour.
test-long: test
	SM120_RUNTIME=$(CURDIR)/build/runtime build/dev/bin/python -m pytest -m long

lint: build/dev/.tested
	build/dev/bin/ruff check .
	build/dev/bin/ruff format --check .
	build/dev/bin/mypy integration --exclude integration/proof
	build/dev/bin/mypy kernels --exclude /tests/

# The tool's environment; the editable install also builds the kernels' host modules.
build/dev/.installed: pyproject.toml CMakeLists.txt $(COMPILED)
	$(PYTHON) -m venv build/dev
	build/dev/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

build/dev/.tested: build/dev/.installed
	build/dev/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	command -v nvcc >/dev/null || { \
	  build/dev/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[nvcc]' && \
	  for toolkit in $(TOOLKIT); do ln -sfn lib $$toolkit/lib64; done; }
	touch $@

clean:
	rm -rf build
