#!/bin/sh
# Checks the packages in /packages of the root file system it runs in; see test-packages.sh.
#   check.sh prepare    installs what the packages and the test depend on
#   check.sh use        installs, uses, upgrades, removes and purges the packages
set -eu

export DEBIAN_FRONTEND=noninteractive
older=/packages/older
all="urdma urdma-dpdk urdma-dkms liburdma-exs0 liburdma-exs-dev liburdma-pool0 liburdma-pool-dev
    liburdmadv0 liburdmadv-dev"
user=1000

fail() {
    echo "failed: $*" >&2
    exit 1
}

# A user without an account, a home and a directory for run-time files.
as_user() {
    setpriv --reuid=$user --regid=$user --clear-groups --inh-caps=-all --no-new-privs \
        env -i PATH=/usr/bin:/bin "$@"
}

# The package $1 with version 0.0.1 and another line in the file for libibverbs.
make_older() {
    dpkg-deb -R "$1" "$older/tree"
    version=$(dpkg-deb -f "$1" Version)
    sed -i "s/$version/0.0.1/" "$older/tree/DEBIAN/control"
    driver=$older/tree/etc/libibverbs.d/urdma.driver
    if [ -e "$driver" ]; then
        echo "# of 0.0.1" >>"$driver"
        (cd "$older/tree" && find etc usr -type f -exec md5sum {} + >DEBIAN/md5sums)
    fi
    dpkg-deb -b --root-owner-group -Znone "$older/tree" \
        "$older/$(dpkg-deb -f "$1" Package).deb" >/dev/null
    rm -r "$older/tree"
}

prepare() {
    # Manual pages are a part of the test.
    rm -f /etc/dpkg/dpkg.cfg.d/99mmdebstrap
    apt-get -q -o Acquire::Check-Valid-Until=false update
    mkdir "$older"
    for package in /packages/*.deb; do
        make_older "$package"
    done
    # The packages themselves are not installed: this resolves and fetches their dependencies.
    apt-get install -q -y --no-install-recommends --simulate /packages/*.deb |
        sed -n 's/^Inst \([^ ]*\) .*/\1/p' | grep -v -E '^(lib)?urdma' \
        >/packages/dependencies || true
    # shellcheck disable=SC2046 # the list is meant to be split
    apt-get install -q -y --no-install-recommends perftest ibverbs-utils rdmacm-utils kmod \
        "linux-headers-$(dpkg --print-architecture)" libc6-dev gcc libibverbs-dev \
        $(cat /packages/dependencies)
}

# The version of package $1, if it is installed.
version_of() {
    dpkg-query -W -f '${db:Status-Status} ${Version}' "$1" | sed -n 's/^installed //p'
}

# Two processes of the user over the instance that is up; more arguments are for both.
bandwidth() {
    as_user timeout 60 urdma run -- ib_write_bw "$@" >/tmp/server 2>&1 &
    server=$!
    tries=0
    until as_user timeout 60 urdma run -- ib_write_bw "$@" 127.0.0.1 >/tmp/client 2>&1; do
        tries=$((tries + 1))
        if [ $tries = 20 ] || ! kill -0 $server; then
            cat /tmp/server /tmp/client
            fail "ib_write_bw $*"
        fi
        sleep 0.2
    done
    wait $server || fail "the server of ib_write_bw $*: $(cat /tmp/server)"
    grep -q '^ *65536 ' /tmp/client || fail "no bandwidth in $(cat /tmp/client)"
}

check_files() {
    for page in man1/urdma.1 man1/urdma-run.1 man1/urdma-bench.1 man1/urdma-stream.1 \
        man8/urdma-metad.8 man8/urdmad.8; do
        gzip -dc "/usr/share/man/$page.gz" | grep -q '^\.SH NAME' || fail "no page $page"
    done
    licenses=$(gzip -dc /usr/share/doc/urdma/third-party-licenses.gz)
    for crate in 'serde ' 'seccompiler ' 'Rust Standard Library'; do
        case $licenses in
            *"$crate"*) ;;
            *) fail "no licence of $crate" ;;
        esac
    done
    for program in urdma urdmad; do
        completions=/usr/share/bash-completion/completions/$program
        bash -c ". $completions && complete -p $program" >/dev/null || fail "$completions"
    done
    grep -q '^ExecStart=/usr/bin/urdmad ' /usr/lib/systemd/system/urdmad@.service ||
        fail "the unit starts another urdmad"
    provider=$(sed -n 's/^driver //p' /etc/libibverbs.d/urdma.driver)
    for other in /usr/lib/*/libibverbs/*-rdmav*.so; do
        abi=${other##*-rdmav}
        [ -e "$provider-rdmav$abi" ] || fail "libibverbs would not find $provider-rdmav$abi"
    done
}

# Programs that do not run by `urdma run` are as they were.
check_others() {
    said=$(as_user ibv_devices 2>&1) || true
    case $said in
        *urdma*) fail "ibv_devices without urdma says $said" ;;
    esac
}

# DKMS builds the module with the release's kernel headers, or leaves out a kernel that is too new
# for it, for which it ends with 77. The module is not loaded.
check_dkms() {
    module=$(dkms status -m urdma | sed -n '1s/^\(urdma\/[^,:]*\).*/\1/p')
    [ -n "$module" ] || fail "DKMS does not know the module: $(dkms status)"
    for build in /lib/modules/*/build; do
        kernel=$(basename "$(dirname "$build")")
        code=0
        # The package may have built it when it was installed.
        dkms install "$module" -k "$kernel" --force >/tmp/dkms 2>&1 || code=$?
        case $code:$kernel in
            0:*)
                modinfo -F vermagic "/lib/modules/$kernel/updates/dkms"/urdma.ko* |
                    grep -q "^$kernel " || fail "no module for $kernel"
                echo "ok: DKMS builds the module of urdma-dkms for $kernel"
                ;;
            77:6.* | 77:7.[0-2].*) fail "$kernel is left out" ;;
            77:*) echo "ok: DKMS leaves $kernel out, for which urdma-dkms has no module" ;;
            *) fail "DKMS for $kernel: $(cat /tmp/dkms /var/lib/dkms/urdma/*/build/make.log)" ;;
        esac
    done
}

# A program in C that uses liburdma-exs, built and run by the user.
check_exs() {
    cat >/tmp/exs.c <<EOF
#include <exs.h>
int main(void)
{
    exs_qhandle_t qh = exs_qcreate(1);

    return exs_init(EXS_VERSION) || qh == EXS_QHANDLE_INVALID || exs_qdelete(qh);
}
EOF
    cc -Wall -Werror -o /tmp/exs /tmp/exs.c -lurdma-exs
    as_user /tmp/exs || fail "a program with liburdma-exs"
    grep -q '^Libs: ' /usr/lib/*/pkgconfig/urdma-exs.pc || fail "no file for pkg-config"
    gzip -dc /usr/share/man/man3/exs_send.3.gz | grep -q '^\.SH NAME' || fail "no page exs_send"
    echo "ok: a program in C, with liburdma-exs-dev"
}

# A program in C that uses liburdma-pool: it makes a pool with an instance.
check_pool() {
    cat >/tmp/pool.c <<EOF
#include <netinet/in.h>
#include <urdma_pool.h>
int main(void)
{
    struct sockaddr_in from = { AF_INET, 0, { htonl(INADDR_LOOPBACK) }, { 0 } };
    struct urdma_pool_attr attr = { URDMA_POOL_DC };
    struct urdma_pool *pool = urdma_pool_create((struct sockaddr *)&from, sizeof(from), &attr);

    return !pool || urdma_pool_destroy(pool);
}
EOF
    cc -Wall -Werror -o /tmp/pool /tmp/pool.c -lurdma-pool
    as_user urdma up
    as_user timeout 60 urdma run -- /tmp/pool || fail "a program with liburdma-pool"
    as_user urdma down
    grep -q "^Requires: libibverbs" /usr/lib/*/pkgconfig/urdma-pool.pc ||
        fail "no file for pkg-config"
    gzip -dc /usr/share/man/man3/urdma_pool_open.3.gz | grep -q '^\.SH NAME' ||
        fail "no page urdma_pool_open"
    echo "ok: a program in C, with liburdma-pool-dev"
}

# A program in C that uses liburdmadv, built by the flags for pkg-config's users, and run by the
# user: it makes an initiator with an instance, and finds no device without one.
check_dv() {
    cat >/tmp/dv.c <<EOF
#include <infiniband/urdmadv.h>
int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && *list ? ibv_open_device(*list) : NULL;
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_cq *cq = context ? ibv_create_cq(context, 1, NULL, NULL, 0) : NULL;
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_DRIVER, .pd = pd, .send_cq = cq, .cap = { .max_send_wr = 1 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    struct urdmadv_qp_init_attr dv = {
        .comp_mask = URDMADV_QP_INIT_ATTR_MASK_DC,
        .dc_init_attr = { .dc_type = URDMADV_DCTYPE_DCI },
    };

    return !context || !urdmadv_create_qp(context, &attr, &dv);
}
EOF
    cc -Wall -Werror -o /tmp/dv /tmp/dv.c -lurdmadv -libverbs
    ! as_user /tmp/dv || fail "a device without urdma run"
    as_user urdma up
    as_user timeout 60 urdma run -- /tmp/dv || fail "a program with liburdmadv"
    as_user urdma down
    grep -q '^Requires: libibverbs' /usr/lib/*/pkgconfig/urdmadv.pc || fail "no file for pkg-config"
    for page in urdmadv_create_qp urdmadv_last_error; do
        [ -e /usr/share/man/man3/$page.3.gz ] || fail "no page $page"
    done
    echo "ok: a program in C, with liburdmadv-dev"
}

# Nothing is left in the file system whose path has the name.
check_purged() {
    for package in $all; do
        ! dpkg-query -W "$package" 2>/dev/null || fail "$package is known after its purge"
    done
    # Mounts of root-fs-run.sh, and directories of this test.
    left=$(find / \( -path "$PWD" -o -path "${CARGO_HOME:-/none}" -o -path /packages \
        -o -path /proc -o -path /sys -o -path /dev \) -prune -o -name '*urdma*' -print)
    [ -z "$left" ] || fail "the purge left $left"
}

use() {
    install="apt-get install -q -y --no-install-recommends"
    $install $older/urdma.deb $older/urdma-dpdk.deb $older/urdma-dkms.deb
    [ "$(version_of urdma)" = 0.0.1 ] || fail "version $(version_of urdma)"
    as_user urdma up
    $install /packages/*.deb
    [ "$(version_of urdma)" != 0.0.1 ] || fail "apt did not upgrade urdma"
    ! grep '0\.0\.1' /etc/libibverbs.d/urdma.driver || fail "a configuration file is the older one"
    as_user urdma run -- ibv_devices | grep -q urdma0 || fail "no device after the upgrade"
    as_user urdma down
    echo "ok: upgrade, with an instance that continues to serve programs"

    # shellcheck disable=SC2086 # the list is meant to be split
    apt-get purge -q -y $all
    check_purged
    $install /packages/urdma_*.deb
    check_files
    check_others
    as_user urdma up
    bandwidth
    bandwidth -R
    as_user urdma status | grep -q 127.0.0.1 || fail "no status"
    as_user urdma down
    echo "ok: a new user's first commands, of package urdma alone"

    $install /packages/urdma-dpdk_*.deb
    cat >/tmp/memif.toml <<EOF
address = ["192.0.2.1"]
[port]
kind = "memif"
role = "server"
socket = "/tmp/wire.sock"
EOF
    chmod 644 /tmp/memif.toml
    as_user urdma up --config /tmp/memif.toml
    as_user urdma status | grep -q memif || fail "no port in $(as_user urdma status)"
    as_user urdma down
    echo "ok: a port of DPDK, with urdma-dpdk"

    $install /packages/urdma-dkms_*.deb
    [ -e /usr/lib/modules-load.d/urdma.conf ] || fail "the module would not be loaded at boot"
    check_dkms

    $install /packages/liburdma-exs*.deb
    check_exs
    $install /packages/liburdmadv*.deb
    check_dv
    $install /packages/liburdma-pool*.deb
    check_pool

    # shellcheck disable=SC2086
    apt-get remove -q -y $all
    ! command -v urdma || fail "urdma is there after its removal"
    [ -e /etc/libibverbs.d/urdma.driver ] || fail "the removal removed configuration"
    check_others
    # The others have no configuration, and are not known any more.
    apt-get purge -q -y urdma urdma-dpdk urdma-dkms
    check_purged
    echo "ok: removal, and purge without a rest"
}

case "${1:-}" in
    prepare | use) "$1" ;;
    *) echo "usage: $0 prepare|use" >&2; exit 2 ;;
esac
