# The list of what CI does, and what a developer does by hand.
# `make help` says what each target is for.

CARGO ?= cargo
FUZZ_SECONDS ?= 20
SECONDS ?= 1200
ROLES := server scheduler controller agent netagent cnciagent

.DEFAULT_GOAL := help
.PHONY: help run test simulate check doc certs bench bench-peers deb examples small soak fuzz ci

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: ## build and run the demo
	$(CARGO) run -- demo

test: ## all tests
	$(CARGO) test

simulate: ## 100,000 seeds of the simulation, or SSNTP_SEEDS=n of them
	SSNTP_SEEDS=$${SSNTP_SEEDS:-100000} $(CARGO) test --profile simulate -p ssntp-cluster --test simulation -- --nocapture

check: ## format, lints, every feature alone
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --all-features -- -D warnings
	.ci/features

doc: ## the documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --all-features

certs: ## a development authority and a certificate for each role, in certs/
	@test -f certs/ca.pem || $(CARGO) run --quiet --release -- cert ca --dir certs
	@for role in $(ROLES); do \
	  test -f certs/$$role.pem || \
	  $(CARGO) run --quiet --release -- cert issue --dir certs --role $$role --name $$role || exit 1; \
	done

bench: ## throughput, latency, handshakes and memory of a server on this machine
	$(CARGO) run --release -- bench

bench-peers: ## the same beside nats-server and mosquitto, where they are installed
	$(CARGO) run --release -- bench --peers --runs 5

deb: ## a Debian package with units, manual pages and completions, in target/debian/
	packaging/build

examples: ## run every example
	.ci/examples

small: ## the agent alone and the smallest client, as small as they get, in target/small/
	$(CARGO) build --profile small --no-default-features --features cli-agent,ring --bin ssntp --example smallest_client
	@ls -l target/small/ssntp target/small/examples/smallest_client | awk '{ print $$5, $$9 }'

soak: ## a cluster under load, everything killed in turn, for SECONDS=1200
	$(CARGO) build --release -p ssntp-cli -p ssntp-load
	target/release/ssntp-load soak --seconds $(SECONDS)

fuzz: ## every fuzz target for some seconds; needs a nightly compiler and cargo-fuzz
	@for target in $$(cd fuzz/fuzz_targets && ls | sed 's/\.rs$$//'); do \
	  mkdir -p fuzz/corpus/$$target && \
	  $(CARGO) +nightly fuzz run $$target fuzz/corpus/$$target tests/fixtures/seeds/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=10 || exit 1; \
	done

ci: ## what CI does
	.ci/run
