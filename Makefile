# Plain `make` lists what there is. Everything that a target needs, it installs (scripts/bootstrap).
.DEFAULT_GOAL := help
.PHONY: help run test check load hostile

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Start everything on a private PostgreSQL and deliver a first webhook (ARGS="--ephemeral" and others)
	@scripts/bootstrap run
	@$(CARGO) build --locked --package postrider
	@exec $(TARGET)/debug/postrider dev $(ARGS)

test: ## Run every test
	@scripts/bootstrap test
	@scripts/test

check: ## All that CI runs: format, lints, layers, dependencies, spelling, then every test
	@scripts/bootstrap test
	@scripts/check

load: ## Measure one scenario, or all of them: make load SCENARIO=fanout-1
	@scripts/bootstrap run
	@scripts/load "$(SCENARIO)"

hostile: ## Play receivers that misbehave against the sender; a table of what came of each
	@scripts/bootstrap run
	@$(CARGO) build --locked --package postrider-load-tests
	@$(TARGET)/debug/load-tests hostile
