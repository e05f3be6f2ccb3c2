# `make demo` and `make test` do all their own set-up; the rest is for everyday work.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
TIERS := unit guest conformance kubectl embedded faults cluster
PYTEST := $(BIN)/pytest
SOURCES := src tests demo bench hack deploy
SOAK ?= 1000
# what `make soak` repeats more often
SOAKED := tests/embedded/test_up_crash.py tests/embedded/test_resize.py tests/embedded/test_resize_crash.py
# the tiers that need kubectl or the real API server
KUBE_TIERS := embedded faults
# the tiers that need a whole cluster
CLUSTER_TIERS := conformance kubectl cluster

.PHONY: help demo test $(TIERS:%=test-%) cluster cluster-down lint format bench soak crds manifests lock setup clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '  make test-TIER          one tier: %s\n' "$(TIERS)"

demo: ## boot a real guest and give it a second vCPU while it runs
	@hack/setup demo
	@$(BIN)/python demo/run.py

test: ## lint, then every test, in sessions side by side (tests/sessions.py)
	@hack/setup test
	@$(MAKE) lint
	@$(BIN)/python -m tests.sessions

test-unit: setup
	@$(PYTEST) tests/unit

test-guest:
	@hack/setup demo
	@$(PYTEST) tests/guest

$(KUBE_TIERS:%=test-%): test-%:
	@hack/setup kube
	@$(PYTEST) tests/$*

$(CLUSTER_TIERS:%=test-%): test-%:
	@hack/setup test
	@$(PYTEST) tests/$*

cluster: ## start a real Kubernetes cluster of one node on this machine (as root) and say how to use it
	@hack/setup test
	@hack/cluster up

cluster-down: ## stop it; nothing of it stays
	@hack/cluster down

lint: setup ## ruff, mypy and the import contracts
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/ruff format --quiet --check $(SOURCES)
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > /dev/null || $(BIN)/lint-imports --no-logo
	@echo "lint: clean"

format: setup ## put the sources into ruff's format
	@$(BIN)/ruff check --quiet --fix $(SOURCES)
	@$(BIN)/ruff format --quiet $(SOURCES)

bench: ## measure the embedded API, 1,000 VMs, VMs on a real API server, a real guest beside a bare script
	@hack/setup kube
	@$(BIN)/python -m bench.api
	@$(BIN)/python -m bench.resize
	@$(BIN)/python -m bench.create
	@$(BIN)/python -m bench.live

soak: ## the fault and load tests with large counts instead of small ones (hours); SOAK=N for another count
	@hack/setup test
	@HOTVIRT_SOAK=$(SOAK) $(PYTEST) --timeout 0 tests/faults $(SOAKED)

crds: setup ## generate deploy/crds again
	@$(BIN)/python -m hotvirt.api.crd deploy/crds > /dev/null

manifests: crds ## generate deploy/install.yaml, and the fields in docs/compatibility.md, again
	@hack/manifests
	@$(BIN)/python hack/compatibility

lock: setup ## resolve the dependencies again and write requirements.lock
	@uv=$$(command -v uv || echo "$${HOTVIRT_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/hotvirt}/uv/bin/uv"); \
	"$$uv" lock --quiet --upgrade && \
	"$$uv" export --quiet --frozen --all-groups --all-extras --no-emit-project --no-header --no-annotate > requirements.lock

setup: ## make .venv, with the `hotvirt` of this checkout in it
	@hack/setup venv

clean: ## remove what make made in this checkout (the cache outside of it stays)
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache bench/out uv.lock
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
