# What there is to do here; `make` alone lists it. Cargo does the building, scripts/ the rest.

PREFIX ?= /usr/local
export CARGO_TARGET_DIR ?= target
# rustup's place, for shells that have not read a profile
export PATH := $(PATH):$(HOME)/.cargo/bin

GPUPROBE := $(CARGO_TARGET_DIR)/release/gpuprobe
AGENT = $(dir $(GPUPROBE))libgpuprobe_agent.so
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help demo build static release test unit fuzz bpf vm arm bench docs lint fmt install clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: build ## See gpuprobe work, without a GPU and without CUDA
	$(SUDO) $(GPUPROBE) demo

build: ## The gpuprobe binary and the agent's library, in target/release
	@scripts/setup build
	@scripts/build

static: ## A statically linked gpuprobe that runs on any distribution, in target/static (ARCH=aarch64 cross-compiles)
	@scripts/setup $(if $(filter-out $(shell uname -m),$(ARCH)),cross,build)
	@scripts/build static $(ARCH)

release: ## Archives, packages, chart and image of both architectures, with licences, SBOM and checksums
	@scripts/setup release
	@scripts/build static x86_64
	@scripts/build static aarch64
	@packaging/release/build

test: ## Every check and test; what needs root or BPF is skipped where there is none
	@scripts/setup test
	@scripts/test

unit: ## Tests that need no root
	@scripts/setup test
	cargo test

fuzz: ## Every parser on made-up input, twenty seconds each (FUZZ_SECONDS=20)
	@scripts/setup test
	@scripts/test fuzz

bpf: ## Tests of the binary on real BPF, as root
	@scripts/setup test
	@scripts/test build bpf

vm: ## Tests of the binary on older kernels, in QEMU
	@scripts/setup test
	@scripts/test build vm

arm: ## Tests of the binary for aarch64, in QEMU; not part of make test
	@scripts/setup aarch64
	@scripts/test aarch64

bench: build ## What it costs, beside empty probes and bpftrace, as root; fails where a ratio is worse than promised
	@scripts/setup bench
	$(if $(SUDO),$(SUDO) -E env "PATH=$(PATH)") benches/run

docs: ## The documentation as a book that can be searched, in target/book
	@scripts/setup docs
	mdbook build docs
	@scripts/book-check target/book

lint: ## Formatting, repository checks and clippy
	@scripts/setup test
	@scripts/test format checks clippy

fmt: ## Format Rust, C and C++
	cargo fmt --all
	find benches crates tests tools \( -name '*.[ch]' -o -name '*.cpp' \) -print0 | xargs -0r clang-format -i

install: ## Install the built binary, the agent's library, manual pages, completions and examples (PREFIX=/usr/local)
	@for file in $(GPUPROBE) $(AGENT); do \
		test -x $$file || { echo "$$file is not there; run make build first, not as root" >&2; exit 1; }; done
	install -D -m 755 --strip $(GPUPROBE) $(DESTDIR)$(PREFIX)/bin/gpuprobe
	install -D -m 644 --strip $(AGENT) $(DESTDIR)$(PREFIX)/lib/gpuprobe/libgpuprobe_agent.so
	@packaging/install-data $(DESTDIR)$(PREFIX)

clean: ## Remove everything built
	@# tests that run as root leave files of root
	cargo clean$(if $(SUDO), || $(SUDO) -E env "PATH=$(PATH)" cargo clean)
