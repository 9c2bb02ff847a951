# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test bench lint clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

# Fine-tunes MiniLM with softmax, r-softmax and sparsemax; a table, and a plot in runs/demo.
demo: $(INSTALLED)
	$(BIN)/python -m demo

# One thread a process: pytest already uses every core.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto

# Times attention and training steps beside other libraries, into results/benchmarks.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv runs build *.egg-info
