# Two commands for a newcomer: `make demo` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# What is imported is compiled then: of PyTorch or Ray that is a small part.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
TORCH  := 2.13.0
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

.PHONY: demo test test-all gpu-check fuzz check format docs clean

demo: $(STAMP)
	$(BIN)/python -m examples.demo.run

# Five at a time on two cores: tests that start servers wait for them half of their time.
test: $(STAMP)
	$(BIN)/pytest -n 5 --dist loadgroup -m "not lengthy"

# What `make test` skips: what needs packages that a newcomer need not download (clients and models of
# others, and PyTorch: a build for CPUs where one is at hand; the default one is several GB), and what
# takes longest. Three at a time: some hold PyTorch or Ray.
test-all: $(VENV)/.installed-extras
	$(BIN)/pytest -n 3 --dist loadgroup -m "extras or lengthy"

# All that needs an NVIDIA GPU, or PART=models, serve, faults, shares or provision of it; one line
# where there is none. GPU_PYTHON has PyTorch for that GPU, and what Headrace needs.
gpu-check:
	@PYTHONPATH=src:tests:. $(GPU_PYTHON) -m benchmarks.gpu.check $(PART)

# Random files, problems and requests; FUZZ="--seconds 3600" for all of them, see tests/fuzz/run.py.
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

# pip would go through hundreds of older packages first. What holds models for the demo and its own
# code says that it is not for Python 3.13 and newer; both work there.
CHECK_PYTHON := import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit( \
	f"needs Python 3.11 or newer, $(PYTHON) is {v}: for example, make demo PYTHON=python3.12")

$(STAMP): pyproject.toml
	@$(PYTHON) -c '$(CHECK_PYTHON)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[dev,demo,ocr]'
	$(INSTALL) --no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4
	touch $@

$(VENV)/.installed-extras: $(STAMP)
	$(INSTALL) torch==$(TORCH)
	$(INSTALL) -e '.[clients,networks,ray,torch]'
	.ci/perf_analyzer $(VENV) || echo "without perf_analyzer: its test is skipped"
	$(INSTALL) --no-deps 'silero-vad>=6' 'magika>=1.0'
	touch $@

clean:
	rm -rf $(VENV) build dist .demo
