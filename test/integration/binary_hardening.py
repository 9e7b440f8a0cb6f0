#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiler and the linker were asked for is in the program that ships."""
import os
import platform
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True, check=True).stdout


def symbols(path):
    return set(re.findall(r" UND (\S+?)(?:@|\s|$)", readelf("--dyn-syms", path)))


def checks(path):
    """Name, and whether it holds."""
    headers = readelf("-l", path)
    dynamic = readelf("-d", path)
    needed = symbols(path)
    yield "position independent", "DYN (" in readelf("-h", path)
    yield "relocations read-only", "GNU_RELRO" in headers
    yield "bound at start (full RELRO)", "BIND_NOW" in dynamic or re.search(r"FLAGS_1.*\bNOW\b", dynamic) is not None
    stack = re.search(r"GNU_STACK.*?\s(R?W?E?)\s+0x", headers)
    yield "stack not executable", stack is not None and "E" not in stack.group(1)
    loads = [line for line in headers.splitlines() if re.match(r"\s+LOAD ", line)]
    yield "nothing writable is executable", bool(loads) and not any(re.search(r" RWE ", line) for line in loads)
    yield "stack canaries", "__stack_chk_fail" in needed
    fortified = {name for name in needed if name.endswith("_chk") and name != "__stack_chk_fail"}
    yield "fortified calls", bool(fortified)
    if platform.machine() == "x86_64":
        features = re.search(r"x86 feature: (.*)", readelf("-n", path))
        yield "branch targets and shadow stack are marked", features is not None and \
            {"IBT", "SHSTK"} <= set(features.group(1).split(", "))
    yield "no path to look for libraries in", "RPATH" not in dynamic and "RUNPATH" not in dynamic


def main():
    if not shutil.which("readelf"):
        print("readelf is not installed")
        return 77
    passed = failed = 0
    paths = [os.path.join(BUILD, name) for name in ("troupe",)]
    for path in paths:
        if not os.path.exists(path):
            print(f"there is no {path}: run make release")
            return 77
        for name, holds in checks(path):
            passed += holds
            failed += not holds
            print(f"{'ok' if holds else 'not ok'} - {os.path.basename(path)}: {name}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
