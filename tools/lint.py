#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Run one of the static checkers over the sources and count the files it accepts.

    tools/lint.py format|clang-tidy|analyze [FILE...]
    tools/lint.py format --fix [FILE...]
"""
import concurrent.futures
import glob
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = ("src/**/*", "include/troupe/*", "test/**/*", "examples/**/*", "bench/*")


def finish(passed, failed, skipped, note=""):
    if note:
        print(note)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def program(name):
    """The version the rules were written for, if it is there."""
    return shutil.which(name + "-14") or shutil.which(name)


def files(endings):
    found = {path for pattern in OURS for path in glob.glob(pattern, root_dir=ROOT, recursive=True)}
    return sorted(path for path in found if path.endswith(endings) and os.path.isfile(os.path.join(ROOT, path)))


def each(paths, command):
    """Run command(path) for all, as many at a time as there are processors. Returns how many failed."""
    failed = 0

    def work(path):
        return path, subprocess.run(command(path), cwd=ROOT, check=False, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for path, done in pool.map(work, paths):
            if done.returncode != 0:
                failed += 1
                print(f"not ok - {path}")
                print(re.sub(r"^\d+ warnings? generated\.\n", "", done.stdout).rstrip(), flush=True)
    return failed


def run_format(paths, fix):
    tool = program("clang-format")
    if not tool:
        return finish(0, 0, 1, "ok - clang-format # SKIP clang-format is not installed")
    paths = paths or files((".c", ".h"))
    arguments = [tool, "-i"] if fix else [tool, "--dry-run", "-Werror", "--ferror-limit=3"]
    failed = each(paths, lambda path: arguments + [path])
    return finish(len(paths) - failed, failed, 0, "run `make format`" if failed and not fix else "")


def run_clang_tidy(paths):
    tool = program("clang-tidy")
    if not tool or not shutil.which("clang"):
        return finish(0, 0, 1, "ok - clang-tidy # SKIP clang-tidy or clang is not installed")
    if subprocess.run(["tools/build.sh", "clang", "none"], cwd=ROOT, check=False).returncode != 0:
        return finish(0, 1, 0, "not ok - clang-tidy: build/clang cannot be configured")
    with open(os.path.join(ROOT, "build/clang/compile_commands.json"), encoding="utf-8") as file:
        known = {os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT) for entry in json.load(file)}
    # Unit tests are left out: their macros make for noise, and they are run, which says more. So is what
    # the distribution brings.
    paths = paths or sorted(path for path in known
                            if path.endswith(".c") and not path.startswith(("test/unit/", "..")))
    failed = each(paths, lambda path: [tool, "--quiet", "-p", "build/clang", path])
    return finish(len(paths) - failed, failed, 0)


def run_analyzer():
    if not shutil.which("gcc"):
        return finish(0, 0, 1, "ok - analyze # SKIP gcc is not installed")
    done = subprocess.run(["tools/build.sh", "analyze", "-k", "0"], cwd=ROOT, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        with open(os.path.join(ROOT, "build/analyze/compile_commands.json"), encoding="utf-8") as file:
            count = len(json.load(file))
    except OSError:
        count = 0
    failed = len(re.findall(r"^FAILED: ", done.stdout, re.MULTILINE))
    if done.returncode != 0:
        print(done.stdout.rstrip())
        failed = max(failed, 1)
    return finish(max(count - failed, 0), failed, 0)


def main():
    arguments = sys.argv[1:]
    fix = "--fix" in arguments
    arguments = [word for word in arguments if word != "--fix"]
    if not arguments:
        sys.exit(__doc__)
    if arguments[0] == "format":
        return run_format(arguments[1:], fix)
    if arguments[0] == "clang-tidy":
        return run_clang_tidy(arguments[1:])
    if arguments[0] == "analyze":
        return run_analyzer()
    return sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
