# The two commands of the README: `make demo` and `make test`. Everything else serves them.
CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

.PHONY: all build demo test test-all test-kernel perf deps check fmt lint loom clean install

all: build

deps:
	@scripts/install-deps.sh

build: deps
	@$(CARGO) build --release --locked --workspace --bins --lib

demo: build
	@target/release/urdma-demo

# The programs under test are the release build; the tests themselves are quicker to build than to run, so they are not optimised.
test: build lint loom
	@URDMA_BIN_DIR=$(CURDIR)/target/release $(CARGO) test --locked --workspace --no-fail-fast

# Beside `make test`: applications whose packages are large, and perftest's tools with every flag.
test-all: test
	@scripts/install-deps.sh all
	@URDMA_BIN_DIR=$(CURDIR)/target/release $(CARGO) test --locked -p urdma-tests --test applications --test programs -- --ignored

# The kernel module on a stock Debian kernel under QEMU.
test-kernel:
	@scripts/install-deps.sh kernel
	@kernel-stub/bed/test.sh

lint:
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

# The arena's rings, frame states and parking under every interleaving.
loom:
	@RUSTFLAGS="--cfg loom" $(CARGO) test --release --locked --target-dir target/loom -p urdma-arena --test loom

perf:
	@scripts/install-deps.sh perf
	@$(CARGO) build --release --locked --workspace --bins --lib
	@target/release/urdma-perf

PREFIX ?= /usr/local
install: build
	install -Dm755 -t $(DESTDIR)$(PREFIX)/bin target/release/urdma target/release/urdmad target/release/urdma-bench
	install -Dm755 target/release/liburdma_provider.so $(DESTDIR)$(PREFIX)/lib/urdma/liburdma-rdmav34.so
	install -Dm755 target/release/liburdma_standin.so $(DESTDIR)$(PREFIX)/lib/urdma/liburdma_standin.so
	install -Dm755 target/release/liburdma_lease.so $(DESTDIR)$(PREFIX)/lib/urdma/liburdma_lease.so
	install -Dm644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system urdmad/systemd/urdmad@.service

clean:
	$(CARGO) clean
