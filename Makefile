# Plain `make` lists what there is. Everything that a target needs, it installs (scripts/bootstrap).
.DEFAULT_GOAL := help
.PHONY: help run observe test check load faults hostile fuzz api-fuzz

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Start everything on a private PostgreSQL and deliver a first webhook (ARGS="--ephemeral" and others)
	@scripts/bootstrap run
	@$(CARGO) build --locked --package postrider
	@exec $(TARGET)/debug/postrider dev $(ARGS)

observe: ## Prometheus with our alerts, and Grafana where it is installed, on a running Postrider (TARGETS="127.0.0.1:9464")
	@scripts/bootstrap observe
	@scripts/observe $(or $(TARGETS),127.0.0.1:9464)

test: ## Run every test
	@scripts/bootstrap test
	@scripts/test

check: ## All that CI runs: format, lints, layers, dependencies, spelling, then every test
	@scripts/bootstrap test
	@scripts/check

load: ## Measure one scenario, or all of them: make load SCENARIO=fanout-1
	@scripts/bootstrap run
	@scripts/load "$(SCENARIO)"

faults: ## Kill, stop, slow and cut off every part, many times; makes the table of docs/reliability.md
	@scripts/bootstrap test
	@scripts/faults $(TESTS)

hostile: ## Play receivers that misbehave against the sender; a table of what came of each
	@scripts/bootstrap run
	@$(CARGO) build --locked --package postrider-load-tests
	@$(TARGET)/debug/load-tests hostile

fuzz: ## Hostile texts against the rules for URLs, headers, Retry-After and signatures (ROUNDS=20 CASES=100000)
	@scripts/bootstrap run
	@for round in $$(seq $(or $(ROUNDS),20)); do \
	  echo "round $$round of $(or $(ROUNDS),20): $(or $(CASES),100000) cases for each rule"; \
	  POSTRIDER_FUZZ_CASES=$(or $(CASES),100000) $(CARGO) test --quiet --locked --package postrider-shared --test fuzz || exit 1; \
	done

api-fuzz: ## The served OpenAPI document against the server, for a while: thousands of requests (SECONDS=600)
	@scripts/bootstrap test
	@POSTRIDER_API_FUZZ_SECONDS=$(or $(SECONDS),600) $(CARGO) test --locked --workspace --all-features --test api -- --nocapture fuzz::
