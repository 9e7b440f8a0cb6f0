#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiler and the linker were asked for is in the program and the library that ship. What leaves no trace in
them is looked for in how they were compiled."""
import json
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


FLAGS = {
    "calls fortified to level 3": "-D_FORTIFY_SOURCE=3",
    "optimized, without which nothing is fortified": "-O3",
    "stack grows page by page": "-fstack-clash-protection",
    "stack protected": "-fstack-protector-strong",
    "variables begin with zero": "-ftrivial-auto-var-init=zero",
    "control flow protected": "-fcf-protection=full",
}


def shipped_commands():
    """The compiler's words for each source of what ships."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            if re.match(r"\.\./\.\./src/|.*/llhttp/", entry["file"]):
                yield entry["file"], entry["command"].split()


def flag_checks():
    commands = list(shipped_commands())
    yield "every source is known", len(commands) >= 200
    for name, flag in FLAGS.items():
        if flag == "-fcf-protection=full" and platform.machine() != "x86_64":
            continue
        # The last of a kind counts, and nothing may take it back.
        kind = re.match(r"-(?:D_FORTIFY_SOURCE|O|[\w-]+)", flag).group(0)
        back = kind.replace("-f", "-fno-", 1) if kind.startswith("-f") else "-O0"
        missing = [file for file, words in commands if back in words or
                   [word for word in words if re.match(kind + r"(?:=|\d|$)", word)][-1:] != [flag]]
        if missing:
            print(f"# {len(missing)} of {len(commands)} without {flag}: {missing[:3]}")
        yield name, not missing


def main():
    if not shutil.which("readelf"):
        print("readelf is not installed")
        return 77
    passed = failed = 0
    paths = [os.path.join(BUILD, name) for name in ("troupe", "libtroupe.so")]
    for path in paths:
        if not os.path.exists(path):
            print(f"there is no {path}: run make release")
            return 77
    verdicts = [(os.path.basename(path), name, holds) for path in paths for name, holds in checks(path)]
    verdicts += [("compiled", name, holds) for name, holds in flag_checks()]
    for subject, name, holds in verdicts:
        passed += holds
        failed += not holds
        print(f"{'ok' if holds else 'not ok'} - {subject}: {name}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
