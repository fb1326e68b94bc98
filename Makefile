# One target a thing that a person wants; `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
RIG := cargo run --quiet -p rig --
TARGET := $(shell uname -m)-unknown-linux-gnu

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## Install what demo and test need, by package name (root, Debian or Ubuntu)
	@tests/setup.sh

.PHONY: demo
demo: setup parts image ## See the main job: a cluster of virtual machines, from blank disks to a lost node
	@cargo run --quiet -p cluster-tests --bin demo

.PHONY: demo-down
demo-down: ## Take the demo's cluster away
	@$(RIG) --name demo down

.PHONY: test
test: setup ## Run all tests and write target/report/tests.json
	@cargo run --quiet -p runner

.PHONY: bench
bench: setup parts image ## Print the numbers and write target/report/bench.json
	@cargo run --quiet -p cluster-tests --bin bench

.PHONY: parts
parts: ## Build the upstream Kubernetes parts and the guest (cached)
	@$(RIG) build

.PHONY: image
image: ## Build the image as an OCI archive, target/image/stowage.tar
	@# Linked statically: the machine's C library may be newer than the image's.
	@RUSTFLAGS='-C target-feature=+crt-static' cargo build --quiet --release --target $(TARGET) -p lvmd -p driver -p operator
	@mkdir -p target/image/bin
	@cp $(addprefix target/$(TARGET)/release/,lvmd driver operator) target/image/bin
	@$(RIG) image

.PHONY: generate
generate: ## Write the generated files anew: CRDs, golden objects
	UPDATE=1 cargo test -p crds --test golden
	UPDATE=1 cargo test -p operator

.PHONY: fmt
fmt: ## Format
	cargo fmt --all

.PHONY: lint
lint: ## Formatting, clippy, licences
	@cargo run --quiet -p runner -- --tier lint
