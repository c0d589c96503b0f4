# make reproduce   set up .venv, re-run the toy half of the paper with 5 repeats (some minutes), write results/quick
# make results     the same with the paper's 20 repeats, into results/toy
# make test        set up .venv and run every check

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: reproduce results test benchmark clean

reproduce: $(STAMP)
	$(BIN)/anode reproduce --repeats 5 --out results/quick

results: $(STAMP)
	$(BIN)/anode reproduce --out results/toy

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

benchmark: $(STAMP)
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/toy.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/images.py

# torch comes first and pinned, so that nothing later asks for another build of it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

clean:
	rm -rf .venv
