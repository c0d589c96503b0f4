# make reproduce   set up .venv, re-run the toy half of the paper with its 20 repeats (minutes), write results/mine/toy
# make test        set up .venv and run every check
# make package     build the wheel and the source distribution, and try both in new environments
# make docs        set up .venv, run the tutorials and build the site into site/
# make test-native the tests of the compiled engine, built with the sanitizers

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: reproduce test docs test-native package benchmark clean

reproduce: $(STAMP)
	$(BIN)/anode reproduce

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict --quiet

# The compiled engine once more, with the sanitizers watching. LeakSanitizer would report Python itself.
NATIVE := build/sanitized
test-native: $(STAMP)
	cmake -S native -B $(NATIVE) -DANODE_SANITIZE=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python
	cmake --build $(NATIVE) --parallel
	ANODE_NATIVE=$(abspath $(NATIVE)) LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engine tests/train/test_course.py tests/models/test_conv.py

package: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python packaging/check.py dist

benchmark: $(STAMP)
	$(BIN)/anode bench speed  # with the rivals that benchmarks/rivals.txt names, if they are installed
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/images.py

# torch comes first and pinned, so that nothing later asks for another build of it.
$(STAMP): pyproject.toml constraints.txt $(wildcard native/*)
	@echo "setting up .venv: downloads torch, compiles the engine; this takes some minutes and prints little"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

clean:
	rm -rf .venv
