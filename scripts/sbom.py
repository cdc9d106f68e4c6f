#!/usr/bin/env python3
"""Writes the software bill of materials of the workspace: CycloneDX 1.5, JSON.

    sbom.py TIME_S > FILE    TIME_S is the time that it states, in seconds since 1970

It lists every package of Cargo.lock, with licence, checksum and dependencies. The same source and
time give the same octets.
"""

import datetime
import json
import sys
import tomllib
import uuid

from workspace import ROOT, metadata

NAME = "urdma"


def checksums():
    """SHA-256 of the archives of packages that have one, by name and version."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {
        (package["name"], package["version"]): package["checksum"]
        for package in lock["package"]
        if "checksum" in package
    }


def purl(package):
    """The package URL."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums):
    """A package as CycloneDX describes it."""
    described = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
    }
    if package["license"]:
        # An older notation, which SPDX does not know.
        expression = package["license"].replace("/", " OR ")
        described["licenses"] = [{"expression": expression}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        described["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return described


def main():
    """Prints the document."""
    (time_s,) = sys.argv[1:]
    found = metadata("--locked")
    packages = {package["id"]: package for package in found["packages"]}
    sums = checksums()
    root = next(
        package
        for package in packages.values()
        if package["name"] == NAME and package["source"] is None
    )
    components = [component(package, sums) for package in packages.values() if package != root]
    dependencies = [
        {
            "ref": purl(packages[node["id"]]),
            "dependsOn": sorted(purl(packages[other]) for other in node["dependencies"]),
        }
        for node in found["resolve"]["nodes"]
    ]
    time = datetime.datetime.fromtimestamp(int(time_s), datetime.timezone.utc)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**component(root, sums), "type": "application"},
        },
        "components": sorted(components, key=lambda entry: entry["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda entry: entry["ref"]),
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    document["serialNumber"] = f"urn:uuid:{number}"
    print(json.dumps(document, indent=1, sort_keys=True))


main()
