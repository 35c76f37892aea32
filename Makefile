# The same commands for people and machines. Everything runs in .venv, made on first use.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
RUN := $(VENV)/bin/python -m
INSTALLED := $(VENV)/.installed
MEASURED := benchmarks/results/bench-h200.jsonl benchmarks/results/bench-cpu.jsonl
EVERYDAY := benchmarks/results/everyday-h200.jsonl
BATCHES := $(foreach run,rows again vllm vllm-earlier peer eos code busy stall,benchmarks/results/batches-h200-$(run).json)
TREES := benchmarks/results/trees-h200.jsonl
CPU := benchmarks/results/cpu-x86.jsonl
AUTO := $(foreach mode,greedy sampled,benchmarks/results/auto-cpu-$(mode).jsonl)
STREAMS := $(sort $(wildcard benchmarks/results/streams-*.jsonl))
LOOKUP := $(foreach texts,lookup rewrites,benchmarks/results/bench-cpu-$(texts).jsonl)
PASSES := $(sort $(wildcard benchmarks/results/passes*.jsonl))
PAPERS := $(sort $(wildcard benchmarks/results/papers/*.jsonl))
EARLIER := $(sort $(wildcard benchmarks/results/papers-before/*.jsonl))

.PHONY: demo playground test suite test-full check fmt results clean

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet "$(TORCH)"
	$(RUN) pip install --quiet --editable ".[dev]"
	@touch $@

SHOW := $(RUN) selfdraft generate --compare --transformers --explain --max-new-tokens 96

demo: $(INSTALLED)  ## Generate with and without drafting, and as transformers does; compare texts and speeds
	@$(RUN) selfdraft pull
	@echo; echo "== A question, against plain decoding and transformers' own generate"; echo
	@$(SHOW) "Explain in a few sentences why the sky is blue."
	@echo; echo "== A text to rewrite: what the answer repeats is copied"; echo
	@$(SHOW) - < examples/rewrite.txt
	@echo; echo "== The same again, by what was learned"; echo
	@$(SHOW) - < examples/rewrite.txt

playground: $(INSTALLED)  ## A page to see it work: texts in colours, speeds, a race against plain decoding
	@$(RUN) selfdraft pull
	@$(RUN) selfdraft serve

test: $(INSTALLED)  ## Lint, types and the test suite, side by side
	$(MAKE) --no-print-directory -j 2 check suite

suite: $(INSTALLED)
	$(RUN) pytest -n 2 -m "not full"

test-full: check  ## The test suite with the whole exactness matrix (of four families), and quantised models
	$(RUN) pip install --quiet --editable ".[full]"
	$(RUN) pytest -n 2

check: $(INSTALLED)  ## Lint and types
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

fmt: $(INSTALLED)  ## Format and fix what can be fixed
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

results: $(INSTALLED)  ## docs/results and its pictures from what was measured
	$(RUN) selfdraft report $(firstword $(MEASURED)) --png docs/images/methods
	@{ cat docs/notes/methods.md; echo; $(RUN) selfdraft report $(MEASURED) --markdown; } > docs/results/methods.md
	@{ cat docs/notes/everyday.md; echo; $(RUN) selfdraft report $(EVERYDAY) --markdown; } > docs/results/everyday.md
	@{ cat docs/notes/trees.md; echo; $(RUN) selfdraft report $(TREES) --markdown; } > docs/results/trees.md
	@{ cat docs/notes/cpu.md; echo; $(VENV)/bin/python benchmarks/cpu.py --show $(CPU); echo; $(RUN) selfdraft report $(LOOKUP) --markdown; } > docs/results/cpu.md
	@{ cat docs/notes/auto.md; echo; $(VENV)/bin/python benchmarks/never_slower.py $(AUTO); } > docs/results/auto.md
	@{ cat docs/notes/streams.md; echo; $(VENV)/bin/python benchmarks/streams.py $(STREAMS); } > docs/results/streams.md
	@{ cat docs/notes/batches.md; echo; $(VENV)/bin/python benchmarks/batches_page.py $(BATCHES); } > docs/results/batches.md
	@$(if $(PASSES),{ cat docs/notes/passes.md; echo; $(RUN) selfdraft report $(PASSES) --markdown; } > docs/results/passes.md)
	$(RUN) selfdraft report $(PAPERS) --before $(EARLIER) --markdown --output docs/results/papers.md --png docs/images/papers --notes docs/notes

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
