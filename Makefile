# `make demo` and `make test` are the commands of the README; CONTRIBUTING.md describes the others.
CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

.PHONY: all build demo test test-all test-kernel perf perf-kernel checkpatch deps lint loom clean
.PHONY: install install-module packages test-packages image test-image deny dist test-dist
.PHONY: test-userland test-carry-over test-distros test-module

all: build

deps:
	@scripts/install-deps.sh

build: deps
	@$(CARGO) build --release --locked --workspace --bins --lib

demo: build
	@target/release/urdma-demo

# Tests the kernel module if possible; with MODULE_TESTS=always, fails if it is not possible.
MODULE_TESTS ?= if-possible

# The programs under test are the release build. The tests themselves are not optimised, since
# building them takes longer than running them. They are built, the sources are checked, and the
# tests of the crates and some of programs run, beside tests that mostly wait.
# The build of the tests is clippy's check too. cargo keeps it apart from that of a plain `cargo
# test`, so all tests of `make test` use it.
LINTED = RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/clippy-rustc.sh $(CARGO)
test: build
	@nice -n 10 $(MAKE) --no-print-directory test-crates test-programs-beside \
		>target/test-crates.log 2>&1 & \
	crates=$$!; trap 'kill $$crates 2>/dev/null' EXIT; \
	$(MAKE) --no-print-directory test-module test-dist test-packages test-wheel \
		test-carry-over test-programs && \
	{ wait $$crates; passed=$$?; cat target/test-crates.log; exit $$passed; }

CRATES = --workspace --exclude urdma-tests
.PHONY: test-crates test-programs test-programs-beside
test-crates: lint-sources loom
	@$(LINTED) build --locked --workspace --all-targets --features $(MEASUREMENTS)
	@URDMA_BIN_DIR=$(CURDIR)/target/release $(LINTED) test --locked $(CRATES) \
		--features $(MEASUREMENTS) --no-fail-fast

# Programs, ours and others', over the instances that they start. Those beside run after the tests
# of the crates, while the others still do: either part takes as long.
PROGRAMS_BESIDE = two_hosts udp_port
PROGRAMS = $(filter-out $(PROGRAMS_BESIDE), \
	$(shell sed -n '/^\[\[test\]\]/{n;s/^name = "\(.*\)"/\1/p}' tests/Cargo.toml))
TEST_PROGRAMS = URDMA_BIN_DIR=$(CURDIR)/target/release $(LINTED) test --locked -p urdma-tests \
	--no-fail-fast
test-programs:
	@$(TEST_PROGRAMS) --lib $(PROGRAMS:%=--test %)

test-programs-beside:
	@$(TEST_PROGRAMS) $(PROGRAMS_BESIDE:%=--test %)

test-module:
	@if kernel-stub/bed/prepare.sh target/kernel; then \
		kernel-stub/bed/builds.sh && kernel-stub/bed/test.sh; \
	elif [ "$(MODULE_TESTS)" = always ]; then \
		echo "The kernel module cannot be tested here." >&2; exit 1; \
	else \
		echo "The kernel module is not tested: QEMU, or a kernel for it," \
			"cannot be installed here."; \
	fi

# In addition to `make test`: applications whose packages are large, perftest's tools with every
# flag, and a soak of ten minutes.
test-all: test deny test-image test-tarball
	@scripts/install-deps.sh all
	@scripts/wheels.sh target/wheels
	@scripts/valkey.sh target/valkey
	@scripts/libfabric.sh target/libfabric
	@scripts/ucx.sh target/ucx
	@scripts/libuv.sh target/libuv
	@scripts/suites.sh target/suites
	@URDMA_BIN_DIR=$(CURDIR)/target/release $(CARGO) test --locked -p urdma-tests \
		--test applications --test asleep --test programs --test wheels --test crates \
		--test valkey --test calls --test faults --test soak \
		--test hostile --test hostile_together --test probes --test exs --test exs_hostile \
		--test floods --test ucx --test socket_programs --test socket_suites \
		--test socket_endurance --test link_faults --test pool --test pool_kills \
		--test pool_sends \
		--test extending --test first_runs -- --ignored
	@URDMA_SOCKETS_FROM=0 URDMA_BIN_DIR=$(CURDIR)/target/release $(CARGO) test --locked \
		-p urdma-tests --test tcp_rings --test socket_programs -- --include-ignored
	@$(CARGO) test --locked -p proto-trp --release --lib dc::check -- --ignored

# What depends on the installed rdma-core, DPDK and programs.
USERLAND = rdma-core-sys dpdk-sys dpdk urdma-dpdk urdma-lease urdma-provider urdma-ucma
test-userland: demo
	@$(CARGO) test --locked $(addprefix -p ,$(USERLAND))
	@URDMA_BIN_DIR=$(CURDIR)/target/release $(CARGO) test --locked -p urdma-tests \
		--test one_host --test pyverbs

# This machine's build in a root file system of a newer release, without DPDK.
NEWER ?= trixie
test-carry-over: build
	@scripts/carry-over.sh $(NEWER) target/distros

# The same in root file systems of other releases of Debian than this machine's, newer ones; and
# this machine's build there, without DPDK.
RELEASES ?= trixie sid
test-distros:
	@for release in $(RELEASES); do \
		scripts/carry-over.sh $$release target/distros && \
			scripts/test-distro.sh $$release target/distros || exit; \
	done

# The kernel module on a stock Debian kernel under QEMU.
test-kernel:
	@kernel-stub/bed/prepare.sh target/kernel
	@kernel-stub/bed/builds.sh
	@kernel-stub/bed/test.sh

# Compares the module with rdma_rxe and siw in one guest.
perf-kernel:
	@kernel-stub/bed/perf.sh

# The kernel's checkpatch.pl over the module; it is in Debian's kernel sources (140 MB).
checkpatch:
	@scripts/install-deps.sh kernel
	@kernel-stub/bed/checkpatch.sh

# Packages whose source files must not depend on one another in a cycle.
ACYCLIC := $(addprefix crates/,abi capture channel cm dpdk dpdk-files dpdk-port dpdk-sys \
	dv engine exs exs-c exs-cli ipc lease memfd metad node-table pool pool-c pool-verbs \
	rdma-core-sys socket-switch sockets standin store stream trace trp-sim types ucma \
	underlay waiting) \
	. kernel-stub/client perf proto-trp provider tests tools/demo tools/harness tools/pages \
	urdmad

lint: lint-sources
	@$(CARGO) clippy --locked --workspace --all-targets --features $(MEASUREMENTS) -- \
		-D warnings

.PHONY: lint-sources
lint-sources:
	@$(CARGO) fmt --all --check
	@CARGO="$(CARGO)" scripts/check-architecture.py
	@scripts/check-citations.py
	@scripts/check-modules.py $(ACYCLIC)
	@CARGO="$(CARGO)" scripts/check-dependencies.py
	@CARGO="$(CARGO)" scripts/check-versions.py
	@scripts/check-comments.py .

# The channels' cells, counts and parking under every interleaving.
loom:
	@RUSTFLAGS="--cfg loom" $(CARGO) test --release --locked --target-dir target/loom \
		-p urdma-channel --test loom

# The programs of perf/ that no test runs.
MEASUREMENTS = urdma-perf/measurements

perf:
	@scripts/install-deps.sh perf
	@scripts/valkey.sh target/valkey || echo "Valkey is not measured."
	@$(CARGO) build --release --locked --workspace --bins --lib --features $(MEASUREMENTS)
	@target/release/urdma-perf

PREFIX ?= /usr/local
# The private provider ABIs that the provider knows; libibverbs loads it with the number of its own.
PRIVATE_ABIS = $(shell grep -o 'PrivateAbi::new.[0-9]*' crates/rdma-core-sys/src/abi.rs | \
	grep -o '[0-9]*')
LIBRARIES = $(DESTDIR)$(PREFIX)/lib/urdma
# Where programs are linked with liburdma-exs, liburdma-pool and liburdmadv.
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell scripts/version.sh)
install: build install-exs install-pool install-dv
	install -Dm755 -t $(DESTDIR)$(PREFIX)/bin target/release/urdma target/release/urdmad \
		target/release/urdma-bench target/release/urdma-stream \
		target/release/urdma-metad
	install -Dm755 -t $(LIBRARIES) target/release/liburdma_provider.so \
		target/release/liburdma_standin.so target/release/liburdma_sockets.so \
		target/release/liburdma_lease.so target/release/liburdma_dpdk.so
	for abi in $(PRIVATE_ABIS); do \
		ln -sf liburdma_provider.so $(LIBRARIES)/liburdma-rdmav$$abi.so; \
	done
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	target/release/urdma-pages $(DESTDIR)$(PREFIX)/share
	sed 's|/usr/local/|$(PREFIX)/|' urdmad/systemd/urdmad@.service \
		>$(DESTDIR)$(PREFIX)/lib/systemd/system/urdmad@.service

# The libraries for C programs, their headers and manual pages. $(call install-library,exs) installs
# those of crates/exs-c.
define install-library
	install -Dm755 target/release/liburdma_$(1)_c.so \
		$(DESTDIR)$(LIBDIR)/liburdma-$(1).so.$(VERSION)
	ln -sf liburdma-$(1).so.$(VERSION) $(DESTDIR)$(LIBDIR)/liburdma-$(1).so.0
	ln -sf liburdma-$(1).so.0 $(DESTDIR)$(LIBDIR)/liburdma-$(1).so
	install -Dm644 -t $(DESTDIR)$(PREFIX)/include crates/$(1)-c/include/*.h
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/man/man3 crates/$(1)-c/man/*.3
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
		crates/$(1)-c/urdma-$(1).pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/urdma-$(1).pc
endef

.PHONY: install-exs install-pool
install-exs: build
	$(call install-library,exs)

install-pool: build
	$(call install-library,pool)

.PHONY: install-dv
install-dv: build
	install -Dm755 target/release/liburdma_dv.so $(DESTDIR)$(LIBDIR)/liburdmadv.so.$(VERSION)
	ln -sf liburdmadv.so.$(VERSION) $(DESTDIR)$(LIBDIR)/liburdmadv.so.0
	ln -sf liburdmadv.so.0 $(DESTDIR)$(LIBDIR)/liburdmadv.so
	install -Dm644 -t $(DESTDIR)$(PREFIX)/include/infiniband \
		crates/dv/include/infiniband/urdmadv.h
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/man/man3 crates/dv/man/*.3
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
		crates/dv/urdmadv.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/urdmadv.pc

# The module's sources for DKMS, which builds them if it is installed, and the configuration of
# modprobe, udev, systemd and libibverbs.
MODULE_VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' kernel-stub/module/dkms.conf)
# The parent of modules-load.d, modprobe.d and udev; a package has /usr/lib in its place.
SETTINGS ?= /etc
MODULE_SOURCE = $(DESTDIR)/usr/src/urdma-$(MODULE_VERSION)
install-module: install
	install -Dm644 -t $(MODULE_SOURCE) kernel-stub/module/dkms.conf
	install -Dm644 -t $(MODULE_SOURCE)/module kernel-stub/module/*.c kernel-stub/module/*.h \
		kernel-stub/module/Kbuild
	install -Dm644 -t $(MODULE_SOURCE)/uapi kernel-stub/uapi/urdma.h
	install -Dm644 kernel-stub/packaging/urdma-modules-load.conf \
		$(DESTDIR)$(SETTINGS)/modules-load.d/urdma.conf
	install -Dm644 kernel-stub/packaging/urdma-modprobe.conf \
		$(DESTDIR)$(SETTINGS)/modprobe.d/urdma.conf
	install -Dm644 -t $(DESTDIR)$(SETTINGS)/udev/rules.d kernel-stub/packaging/60-urdma.rules
	install -Dm644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system \
		kernel-stub/packaging/urdma-link@.service
	install -d $(DESTDIR)/etc/libibverbs.d
	echo "driver $(PREFIX)/lib/urdma/liburdma" >$(DESTDIR)/etc/libibverbs.d/urdma.driver
	if [ -z "$(DESTDIR)" ] && command -v dkms >/dev/null; then \
		dkms install urdma/$(MODULE_VERSION); \
	fi

# Debian packages for the release of this machine, in target/packages.
packages: build
	@scripts/packages.sh target/packages

# Installs, uses, upgrades and purges them in a root file system of the same release.
test-packages: packages
	@scripts/test-packages.sh target/packages target/distros

# A container image with the package urdma, in target/image.
image: packages
	@scripts/image.sh target/packages target/image

# Runs what doc/containers.md shows in it.
test-image: image
	@scripts/test-image.sh target/image

# Licences and sources of the crates that are used.
deny:
	@scripts/deny.sh

# A release: a tarball of the sources and the bill of materials, in target/dist.
# The tarball for every Linux with glibc 2.28, and the wheel of its programs.
.PHONY: tarball wheel test-tarball test-wheel
tarball:
	@scripts/install-deps.sh
	@scripts/tarball.sh target/portable

# The tarball for aarch64, cross-compiled and run under QEMU's emulation of its programs.
.PHONY: test-aarch64
test-aarch64:
	@scripts/tarball.sh target/portable aarch64
	@scripts/test-aarch64.sh target/portable target/distros

wheel: tarball
	@scripts/wheel.sh target/portable

# In root file systems of other releases, without DPDK.
TARBALL_RELEASES ?= bookworm trixie sid
test-tarball: wheel
	@scripts/test-tarball.sh target/portable target/distros $(TARBALL_RELEASES)

test-wheel: build
	@scripts/test-wheel.sh target/release

dist: deny
	@scripts/dist.sh target/dist

test-dist:
	@scripts/test-dist.sh

clean:
	$(CARGO) clean
