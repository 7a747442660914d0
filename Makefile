# From a clean clone: `make demo` or `make test`. Needs Python >= 3.11 and make; the network only for the first install.
PYTHON ?= python3
BIN := .venv/bin

# Read by pip from the environment so that the isolated build of the package itself obeys the pins too.
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install -q

.PHONY: demo test lint types check docs notebooks audit clean
.NOTPARALLEL: # one virtual environment, one pip at a time
.DELETE_ON_ERROR: # a half-made environment is made again

demo: .venv/.demo
	$(BIN)/python -m fedsaddle.demo --out demo

test: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadgroup $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/mypy

check: lint types test

docs: .venv/.dev # the site, in site/index.html; a warning, such as a broken link, ends the build
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

audit: .venv/.dev # known vulnerabilities of the pinned packages, as far as the registry answers
	$(BIN)/python .ci/audit.py

notebooks: .venv/.dev # examples/notebooks from the programs in examples/; tests compare them
	for f in examples/*.py; do $(BIN)/jupytext --quiet --update --to ipynb --update-metadata \
	  '{"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, "jupytext": null}' \
	  --output examples/notebooks/$$(basename $$f .py).ipynb $$f || exit 1; done

clean: # back to a clean clone; runs/ is left alone
	rm -rf .venv demo site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv .venv

# Two stamps in one environment: what the demo needs, and everything. The second contains the first.
.venv/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[report]'
	touch $@

.venv/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	touch .venv/.demo $@
