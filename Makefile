# make reproduce    set up .venv and reproduce the paper's toy experiments with 20 repeats (minutes); writes results/mine/toy
# make test         set up .venv and run all checks
# make docs         set up .venv, run the tutorials and build the site into site/
# make package      build the wheel and the source distribution, and test both in new environments
# make test-native  test the compiled engine with the sanitizers
# make benchmark    run all benchmarks
# make clean        remove .venv

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Many tests start the command. Without bytecode on disk, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

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

# Build and test the engine with the sanitizers. Leak detection is off, because it reports leaks of Python itself.
NATIVE := build/sanitized
test-native: $(STAMP)
	cmake -S native -B $(NATIVE) -DANODE_SANITIZE=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python
	cmake --build $(NATIVE) --parallel
	ANODE_NATIVE=$(abspath $(NATIVE)) LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engine tests/train/test_course*.py tests/models/test_conv.py \
	tests/models/test_wrapped.py

package: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python packaging/check.py dist

benchmark: $(STAMP)
	$(BIN)/anode bench speed  # also measures the libraries of benchmarks/rivals.txt if they are installed
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/images.py

# Install the pinned torch first, so that later packages do not pull in another build.
$(STAMP): pyproject.toml constraints.txt $(wildcard native/*)
	@echo "Setting up .venv: downloading torch and compiling the engine. This takes a few minutes and prints little."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

clean:
	rm -rf .venv
