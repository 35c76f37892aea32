# The same commands for people and machines. Everything runs in .venv, made on first use.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
RUN := $(VENV)/bin/python -m
INSTALLED := $(VENV)/.installed

CHAT_PROMPT := Explain in a few sentences why the sky is blue.
REWRITE_PROMPT := Copy the text below word for word, then stop.\n\nThe old lighthouse stands on a rock at the end of the long bay. Every evening the keeper climbs the narrow stairs, lights the great lamp and writes the weather into the great book. In the morning the keeper climbs the narrow stairs again and puts out the great lamp.

.PHONY: demo test test-full check fmt clean

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet "$(TORCH)"
	$(RUN) pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(INSTALLED)  ## Generate with and without self-speculation and compare
	@$(RUN) selfdraft pull
	@printf '\n== A chat prompt; the model drafts with a quarter of its own layers skipped\n\n'
	@$(RUN) selfdraft generate --compare --max-new-tokens 96 "$(CHAT_PROMPT)"
	@printf '\n== Rewriting a text; drafts are looked up in the prompt\n\n'
	@printf '$(REWRITE_PROMPT)' | $(RUN) selfdraft generate --compare --max-new-tokens 96 --drafter lookup -

test: check  ## Lint, types and the test suite
	$(RUN) pytest -n 2 -m "not full"

test-full: check  ## The test suite with the whole exactness matrix
	$(RUN) pytest -n 2

check: $(INSTALLED)  ## Lint and types
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

fmt: $(INSTALLED)  ## Format and fix what can be fixed
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
