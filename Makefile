# The two commands of the README: `make demo` and `make test`. Everything else serves them.
CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

.PHONY: all build demo test test-all test-kernel perf perf-kernel checkpatch deps check fmt lint loom clean install install-module

all: build

deps:
	@scripts/install-deps.sh

build: deps
	@$(CARGO) build --release --locked --workspace --bins --lib

demo: build
	@target/release/urdma-demo

# Tests the kernel module where that can be done; `make test MODULE_TESTS=always` fails where it cannot.
MODULE_TESTS ?= if-possible

# The programs under test are the release build; the tests themselves are quicker to build than to run, so they are not optimised.
test: build lint loom
	@if kernel-stub/bed/prepare.sh target/kernel; then kernel-stub/bed/builds.sh && kernel-stub/bed/test.sh; \
	elif [ "$(MODULE_TESTS)" = always ]; then echo "The kernel module cannot be tested here." >&2; exit 1; \
	else echo "The kernel module is not tested: QEMU, or a kernel for it, cannot be installed here."; fi
	@URDMA_BIN_DIR=$(CURDIR)/target/release $(CARGO) test --locked --workspace --no-fail-fast

# Beside `make test`: applications whose packages are large, perftest's tools with every flag, and a soak of ten minutes.
test-all: test
	@scripts/install-deps.sh all
	@scripts/wheels.sh target/wheels
	@scripts/valkey.sh target/valkey
	@URDMA_BIN_DIR=$(CURDIR)/target/release $(CARGO) test --locked -p urdma-tests --test applications --test programs --test wheels \
		--test crates --test valkey --test soak -- --ignored

# The kernel module on a stock Debian kernel under QEMU.
test-kernel:
	@kernel-stub/bed/prepare.sh target/kernel
	@kernel-stub/bed/builds.sh
	@kernel-stub/bed/test.sh

# The module beside rdma_rxe and siw in one guest.
perf-kernel:
	@kernel-stub/bed/perf.sh

# The kernel's checkpatch.pl over the module; it is in Debian's kernel sources (140 MB).
checkpatch:
	@scripts/install-deps.sh kernel
	@kernel-stub/bed/checkpatch.sh

# Packages whose source files depend on one another in one direction.
ACYCLIC := $(addprefix crates/,abi arena cm dpdk dpdk-sys engine ipc lease rdma-core-sys standin types ucma underlay)

lint:
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@CARGO="$(CARGO)" scripts/check-architecture.py
	@scripts/check-citations.py
	@scripts/check-modules.py $(ACYCLIC)

# The arena's rings, frame states and parking under every interleaving.
loom:
	@RUSTFLAGS="--cfg loom" $(CARGO) test --release --locked --target-dir target/loom -p urdma-arena --test loom

perf:
	@scripts/install-deps.sh perf
	@$(CARGO) build --release --locked --workspace --bins --lib
	@target/release/urdma-perf

PREFIX ?= /usr/local
# The private provider ABIs of crates/rdma-core-sys/src/abi.rs: libibverbs looks for the provider by the number of its own.
PRIVATE_ABIS = 34 57 59 64 65
install: build
	install -Dm755 -t $(DESTDIR)$(PREFIX)/bin target/release/urdma target/release/urdmad target/release/urdma-bench
	install -Dm755 target/release/liburdma_provider.so $(DESTDIR)$(PREFIX)/lib/urdma/liburdma_provider.so
	for abi in $(PRIVATE_ABIS); do ln -sf liburdma_provider.so $(DESTDIR)$(PREFIX)/lib/urdma/liburdma-rdmav$$abi.so; done
	install -Dm755 target/release/liburdma_standin.so $(DESTDIR)$(PREFIX)/lib/urdma/liburdma_standin.so
	install -Dm755 target/release/liburdma_lease.so $(DESTDIR)$(PREFIX)/lib/urdma/liburdma_lease.so
	install -Dm644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system urdmad/systemd/urdmad@.service

# The module's sources for DKMS, which builds them if it is installed, and what loads, names and serves the device.
MODULE_VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' kernel-stub/module/dkms.conf)
MODULE_SOURCE = $(DESTDIR)/usr/src/urdma-$(MODULE_VERSION)
install-module: install
	install -Dm644 -t $(MODULE_SOURCE) kernel-stub/module/dkms.conf
	install -Dm644 -t $(MODULE_SOURCE)/module kernel-stub/module/*.c kernel-stub/module/*.h kernel-stub/module/Kbuild
	install -Dm644 -t $(MODULE_SOURCE)/uapi kernel-stub/uapi/urdma.h
	install -Dm644 kernel-stub/packaging/urdma-modules-load.conf $(DESTDIR)/etc/modules-load.d/urdma.conf
	install -Dm644 kernel-stub/packaging/urdma-modprobe.conf $(DESTDIR)/etc/modprobe.d/urdma.conf
	install -Dm644 -t $(DESTDIR)/etc/udev/rules.d kernel-stub/packaging/60-urdma.rules
	install -Dm644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system kernel-stub/packaging/urdma-link@.service
	install -d $(DESTDIR)/etc/libibverbs.d
	echo "driver $(PREFIX)/lib/urdma/liburdma" >$(DESTDIR)/etc/libibverbs.d/urdma.driver
	if [ -z "$(DESTDIR)" ] && command -v dkms >/dev/null; then dkms install urdma/$(MODULE_VERSION); fi

clean:
	$(CARGO) clean
