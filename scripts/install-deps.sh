#!/bin/sh
# Installs the Debian packages that urdma needs, and only those that are missing.
#   install-deps.sh          for the build, `make demo` and `make test`
#   install-deps.sh all      also the applications of `make test-all`
#   install-deps.sh perf     also the peers of `make perf`
#   install-deps.sh distros  also for making root file systems of other releases
#   install-deps.sh packages also for building and checking Debian packages
#   install-deps.sh image    also for making and testing the container image
#   install-deps.sh aarch64  also for building for that processor, and running it in emulation
#   install-deps.sh kernel   also for building the kernel module and booting a kernel to test it
set -eu

build="build-essential pkg-config clang libclang-dev libdpdk-dev libibverbs-dev"
build="$build librdmacm-dev libnuma-dev"
run="ibverbs-utils rdmacm-utils ibverbs-providers perftest iproute2 procps"
test="bubblewrap strace tshark util-linux valgrind python3-pyverbs patchelf qperf python3-venv zstd"
test="$test netcat-openbsd netcat-traditional curl wget redis-tools groff-base"
perf="linux-perf ucx-utils
      nginx-light wrk memcached libmemcached-tools iperf3 postgresql"
all="bpftrace linux-perf ucx-utils libfabric-bin openmpi-bin libopenmpi-dev mpich libmpich-dev fio
     libcurl4 libnuma1 cmake libnl-3-dev libnl-route-3-dev libudev-dev
     autoconf automake libtool libucx-dev dapl2-utils qemu-system-x86
     ceph-mon ceph-osd ceph-common libgloo-dev
     tgt libiscsi-bin
     nginx-light lighttpd wrk haproxy memcached nodejs iperf3 postgresql
     libpython3.11-testsuite redis-server ruby tcl"
distros="mmdebstrap"
packages="debhelper dh-dkms lintian"
image="mmdebstrap umoci python3-yaml"
aarch64="binutils-aarch64-linux-gnu libc6-dev-arm64-cross libgcc-s1-arm64-cross qemu-user-static
         mmdebstrap"
kernel="bpftrace qemu-system-x86 linux-headers-amd64 sparse dkms kmod busybox-static cpio xz-utils
        binutils"

want="$build $run $test"
case "${1:-}" in
    "") ;;
    all) want="$want $all" ;;
    perf) want="$want $perf" ;;
    distros) want="$want $distros" ;;
    packages) want="$want $packages" ;;
    image) want="$want $image" ;;
    aarch64) want="$want $aarch64" ;;
    kernel) want="$want $kernel" ;;
    *) echo "usage: $0 [all|perf|distros|packages|image|aarch64|kernel]" >&2; exit 2 ;;
esac

# Cloud machines run an apt of their own when they boot; this is how long it is waited for.
lock_s=600

# Runs apt-get update with the options of the list $options. It does not wait for the lock of the
# package lists, whatever its options, and is therefore repeated while another apt has it.
update_lists() {
    end=$(($(date +%s) + lock_s))
    # shellcheck disable=SC2086 # the list is meant to be split
    until LC_ALL=C apt-get update $options >"$log" 2>&1; do
        if ! grep -q "Could not get lock" "$log" || [ "$(date +%s)" -ge $end ]; then
            return 1
        fi
        sleep 2
    done
}

missing=""
for package in $want; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done

if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "These packages are missing:$missing" >&2
        echo "Run as root: apt-get install$missing" >&2
        exit 1
    fi
    echo "Installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    options="-q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=$lock_s"
    # shellcheck disable=SC2086 # the lists are meant to be split
    if ! {
        update_lists &&
            apt-get install -y --no-install-recommends $options $missing >>"$log" 2>&1
    }; then
        cat "$log" >&2
        rm -f "$log"
        exit 1
    fi
    rm -f "$log"
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "cargo is missing: install Rust (https://rustup.rs), then run this again." >&2
    exit 1
fi
