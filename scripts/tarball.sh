#!/bin/sh
# Writes a tarball of programs that run on any Linux with glibc 2.28, unpacked anywhere, without
# installation; one with their debugging information; the software bill of materials; and checksums.
#   tarball.sh FOLDER [PROCESSOR]    PROCESSOR is x86_64 or aarch64, by default this machine's
# zig links against the older glibc: PyPI has it, and cargo-zigbuild. They are installed in FOLDER.
set -eu

[ $# = 1 ] || [ $# = 2 ] || { echo "usage: $0 FOLDER [PROCESSOR]" >&2; exit 2; }
mkdir -p "$1"
folder=$(realpath "$1")
cd "$(dirname "$0")/.."
glibc=2.28
processor=${2:-$(uname -m)}
target=$processor-unknown-linux-gnu
version=$(scripts/version.sh)
name=urdma-$version-linux-$processor
if [ "$processor" = "$(uname -m)" ]; then
    binutils='' libgcc=$(gcc -print-file-name=libgcc_s.so.1)
else
    scripts/install-deps.sh "$processor"
    rustup --quiet target add "$target"
    binutils=$processor-linux-gnu- libgcc=/usr/$processor-linux-gnu/lib/libgcc_s.so.1
    export PKG_CONFIG_ALLOW_CROSS=1
fi
time_s=$(git log -1 --format=%ct)

tools=$folder/tools
if [ ! -x "$tools/bin/cargo-zigbuild" ]; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet ziglang==0.17.1 cargo-zigbuild==0.24.1
fi

# Paths of this machine are left out of the programs. They unwind by the libgcc_s of the process, as
# pthread_cancel does: zig's own copy of an unwinder ends the process when a thread is cancelled in
# the stand-in. Debian's libgcc_s, of which names are taken, needs a later glibc.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$(pwd)=/urdma --remap-path-prefix=$cargo_home=/cargo"
RUSTFLAGS="$RUSTFLAGS -C link-arg=$libgcc"
RUSTFLAGS="$RUSTFLAGS -C link-arg=-Wl,--allow-shlib-undefined"
export RUSTFLAGS
# zig names its headers by paths relative to the current directory if they are below it, but each
# crate's build script runs in the crate's.
mkdir -p "$folder/build"
(
    manifest=$(pwd)/Cargo.toml
    cd "$folder/build"
    PATH=$tools/bin:$PATH cargo zigbuild --quiet --release --locked --manifest-path "$manifest" \
        --target "$target.$glibc" --target-dir "$folder/build" -p urdma -p urdmad \
        -p urdma-provider -p urdma-standin -p urdma-sockets --lib --bin urdma --bin urdmad
)

built=$folder/build/$target/release
programs="urdma urdmad liburdma_provider.so liburdma_standin.so liburdma_sockets.so"
for kind in "" -debug; do
    rm -rf "${folder:?}/$name$kind"
    mkdir "$folder/$name$kind"
done
for program in $programs; do
    "${binutils}objcopy" --only-keep-debug "$built/$program" "$folder/$name-debug/$program.debug"
    "${binutils}objcopy" --strip-all --add-gnu-debuglink="$folder/$name-debug/$program.debug" \
        "$built/$program" "$folder/$name/$program"
done
cp LICENSE-APACHE LICENSE-MIT CHANGELOG.md "$folder/$name"
cp scripts/tarball-readme.md "$folder/$name/README.md"
install -m755 scripts/tarball-install.sh "$folder/$name/install.sh"
# What a machine must have, and no more.
for program in $programs; do
    "${binutils}objdump" --dynamic-syms --private-headers "$folder/$name/$program" >"$folder/needs"
    newest=$(grep -o 'GLIBC_[0-9.]*' "$folder/needs" | sort -uV | tail -1)
    if [ "$(printf '%s\n' "GLIBC_$glibc" "$newest" | sort -V | tail -1)" != "GLIBC_$glibc" ]; then
        echo "tarball.sh: $program needs $newest, later than $glibc" >&2
        exit 1
    fi
    if grep NEEDED "$folder/needs" | grep -vE 'lib(c|m|dl|rt|pthread|gcc_s)\.so|ld-linux' >&2; then
        echo "tarball.sh: $program needs these libraries, which not every machine has" >&2
        exit 1
    fi
done

# Names, times and owners are the same for each build of a commit.
for kind in "" -debug; do
    tar --create --directory="$folder" --sort=name --mtime="@$time_s" --mode=u=rwX,go=rX \
        --owner=0 --group=0 --numeric-owner --format=gnu "$name$kind" |
        zstd --quiet --force -19 -T1 -o "$folder/$name$kind.tar.zst"
done
scripts/sbom.py "$time_s" >"$folder/$name.cdx.json"
cd "$folder"
sha256sum "$name.tar.zst" "$name-debug.tar.zst" "$name.cdx.json" >"$name.sha256"
cat "$name.sha256"
