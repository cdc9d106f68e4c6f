#!/bin/sh
# Checks that dist.sh gives the same octets in two clones and environments, that the tarball has the
# files of the commit, and that the bill of materials lists the packages of Cargo.lock.
set -eu

cd "$(dirname "$0")/.."
if ! git rev-parse --verify --quiet HEAD >/dev/null; then
    echo "The release is not tested: this is not a clone."
    exit 0
fi
version=$(scripts/version.sh)
name=urdma-$version
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
    echo "test-dist.sh: $*" >&2
    exit 1
}
for clone in a b; do
    git clone -q "$PWD" "$scratch/$clone"
done
(umask 022 && TZ=UTC "$scratch/a/scripts/dist.sh" "$scratch/a/out") >/dev/null
# The second has other permissions, times of files, time zone and language.
(
    umask 077
    find "$scratch/b" -type f -exec touch -d 2001-01-01 {} +
    git -C "$scratch/b" config tar.umask 0077
    TZ=Asia/Tokyo LC_ALL=C "$scratch/b/scripts/dist.sh" "$scratch/b/out"
) >/dev/null
for file in "$name.tar.gz" "$name.cdx.json" "$name.sha256"; do
    cmp "$scratch/a/out/$file" "$scratch/b/out/$file" || fail "$file is not reproducible"
done
(cd "$scratch/a/out" && sha256sum --quiet -c "$name.sha256") || fail "a checksum is wrong"

tar -tzf "$scratch/a/out/$name.tar.gz" | sed -n "s|^$name/\(.*[^/]\)$|\1|p" | sort >"$scratch/has"
git ls-tree -r --name-only HEAD | sort >"$scratch/wants"
cmp "$scratch/has" "$scratch/wants" || fail "the tarball has other files than the commit"

python3 - "$scratch/a/out/$name.cdx.json" "$version" <<'EOF' || fail "the bill of materials"
import json, re, sys
document = json.load(open(sys.argv[1]))
listed = {(c["name"], c["version"]) for c in document["components"]}
root = document["metadata"]["component"]
assert (root["name"], root["version"]) == ("urdma", sys.argv[2]), root
lock = open("Cargo.lock").read()
locked = set(re.findall(r'\[\[package\]\]\nname = "(.*)"\nversion = "(.*)"', lock))
assert locked == listed | {(root["name"], root["version"])}, locked ^ listed
refs = {c["bom-ref"] for c in document["components"]} | {root["bom-ref"]}
for entry in document["dependencies"]:
    assert {entry["ref"], *entry["dependsOn"]} <= refs, entry
for component in document["components"]:
    assert component["licenses"], component
EOF
