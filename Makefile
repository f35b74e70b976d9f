# Two commands for a newcomer: `make demo` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test fuzz check format docs clean

demo: $(STAMP)
	$(BIN)/python -m examples.demo.run

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadgroup

# Random mutants of files and requests; FUZZ="--seconds 3600" for all of them, see tests/fuzz/run.py.
fuzz: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz.run $(FUZZ)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/python -m docs.generate

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,demo,ocr]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps rapidocr-onnxruntime==1.4.4
	touch $@

clean:
	rm -rf $(VENV) build dist .demo
