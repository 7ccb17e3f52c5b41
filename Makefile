# make demo    installs what is missing, builds, and runs memcached in an eighth of its memory
# make test    installs what is missing, and runs everything that CI runs
# make build   builds the command and the library that it preloads

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(CURDIR)/target/tools:$(PATH)

.PHONY: demo test build tools

demo: tools
	@lab/setup demo
	@cargo build --release --locked --package spillway --package spillway-preload
	@lab/demo

test: tools
	@lab/setup test
	@.ci/cargo-deny || true
	@cargo xtask ci

build: tools
	@cargo build --release --locked --package spillway --package spillway-preload

# A C compiler and linker, and Rust as rust-toolchain.toml names it.
tools:
	@command -v cc >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends build-essential; }
	@command -v cargo >/dev/null || { \
	    command -v curl >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends curl ca-certificates; }; \
	    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain none; }
