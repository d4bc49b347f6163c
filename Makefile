# What CI does, and what a developer does by hand. `make help` lists the targets.

CARGO ?= cargo
FUZZ ?= $(CARGO) +nightly fuzz
FUZZ_SECONDS ?= 20
PEERS_SECONDS ?= 600
N ?= 20
SECONDS ?= 1200
ARCH ?= $(shell uname -m)
ROLES := server scheduler controller agent netagent cnciagent
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Both in one command, so that they share one set of features and no library is compiled twice.
BUILD_BENCH = $(CARGO) build --release -p ssntp-cli -p ssntp-bench

.DEFAULT_GOAL := help
.PHONY: help run test test-again simulate check doc certs bench bench-peers deb release examples small static soak fuzz ci

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: ## build and run the demo
	$(CARGO) run -- demo

test: ## all tests
	$(CARGO) test --locked

test-again: ## every test program N=20 times beside a load, to find tests that fail now and then
	.ci/test-again $(N)

simulate: ## 100,000 seeds of each simulation, or SSNTP_SEEDS=n of them
	SSNTP_SEEDS=$${SSNTP_SEEDS:-100000} $(CARGO) test --profile simulate -p ssntp-scheduler -p ssntp-controller -p ssntp-engine --test simulation -- --nocapture
	SSNTP_SEEDS=$${SSNTP_SEEDS:-100000} $(CARGO) test --profile simulate -p ssntp-transport --lib newcomers::slots

check: ## format, lints, every feature alone
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	.ci/features

doc: ## the documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps

certs: ## a development authority and a certificate for each role, in certs/
	@test -f certs/ca.pem || $(CARGO) run --quiet --release -- cert ca --dir certs
	@for role in $(ROLES); do \
	  test -f certs/$$role.pem || \
	  $(CARGO) run --quiet --release -- cert issue --dir certs --role $$role --name $$role || exit 1; \
	done

bench: ## throughput, latency, handshakes and memory of a server on this machine
	$(BUILD_BENCH)
	$(TARGET)/release/ssntp-bench

bench-peers: ## the same beside nats-server and mosquitto, if they are installed
	$(BUILD_BENCH)
	$(TARGET)/release/ssntp-bench --peers --runs 5

deb: ## a Debian package with units, manual pages and completions, in target/debian/; for ARCH=aarch64, too
	packaging/build release $(ARCH)

release: ## what a release publishes: Debian packages, static agents, checksums, an SBOM; see docs/releasing.md
	.ci/package all
	packaging/release

examples: ## run every example
	.ci/examples

small: ## the agent alone and the smallest client, as small as they get, in target/small/
	$(CARGO) build --profile small -p ssntp-agent-cli --no-default-features --features ring
	$(CARGO) build --profile small -p ssntp --no-default-features --features ring --example smallest_client
	@ls -l $(TARGET)/small/ssntp-agent $(TARGET)/small/examples/smallest_client | awk '{ print $$5, $$9 }'

static: ## the agent alone, linked statically (musl): runs on any Linux of ARCH, x86_64 or aarch64
	.ci/static $(ARCH)

soak: ## a cluster under load, everything killed in turn, for SECONDS=1200
	$(CARGO) build --release -p ssntp-cli -p ssntp-load
	$(TARGET)/release/ssntp-load soak --seconds $(SECONDS)

fuzz: ## every fuzz target for FUZZ_SECONDS=20, peers and cluster for PEERS_SECONDS=600; needs a nightly compiler and cargo-fuzz
	@for target in $$(cd fuzz/fuzz_targets && ls | sed 's/\.rs$$//'); do \
	  case $$target in peers|cluster) seconds=$(PEERS_SECONDS) ;; *) seconds=$(FUZZ_SECONDS) ;; esac; \
	  mkdir -p fuzz/corpus/$$target && \
	  $(FUZZ) run $$target fuzz/corpus/$$target tests/fixtures/seeds/$$target -- \
	    -max_total_time=$$seconds -timeout=10 || exit 1; \
	done

ci: ## everything that CI does
	.ci/run
