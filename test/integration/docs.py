#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the documents show is what the programs do.

Pages: README.md and docs/guide/*.md. In them
- a block that opens with ```c FILE is found, word for word, in that file (the path is relative to the page);
- every such file compiles, with every compiler that is there and the project's warnings;
- a block that opens with ```console and begins with "$ ./NAME" is all that the program NAME.c of that page prints,
  stdout and stderr as on a terminal (```console any-order: the same lines, in any order);
- one that begins with "$ troupe tour" or "$ make tour" is a part of what the tour prints, but for numbers and hashes;
- a test that docs/guide/laws.md names as proof, `test_file: noun, claim`, exists;
- the largest capacity of a box is the one in the header.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))
WARNINGS = ("-Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes "
            "-Wmissing-prototypes -Wold-style-definition -Wundef -Wvla -Wpointer-arith -Wcast-qual "
            "-Wwrite-strings -Wformat=2 -Wimplicit-fallthrough -Wswitch-enum -Wnull-dereference "
            "-Wdouble-promotion").split()
LIMIT_S = 60

passed, problems = 0, []


def check(good, what, detail=""):
    global passed  # pylint: disable=global-statement
    if good:
        passed += 1
    else:
        problems.append(what)
        print(f"not ok - {what}")
        if detail:
            print(detail)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def blocks(text):
    """Yields (line, info, body) of the fenced blocks."""
    for found in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, found.start()) + 1, found.group(1).strip(), found.group(2)


def flags():
    environment = {**os.environ, "PKG_CONFIG_PATH": BUILD}
    out = subprocess.run(["pkg-config", "--cflags", "--libs", "troupe"], env=environment, check=True,
                         capture_output=True, text=True).stdout
    return out.split()


def build(source, folder):
    """Compiles with all compilers; returns the program of the first, or None."""
    first = None
    for compiler in [name for name in ("gcc", "clang") if shutil.which(name)]:
        program = os.path.join(folder, os.path.basename(source)[:-2] + "." + compiler)
        done = subprocess.run([compiler, "-std=gnu17", "-O2", *WARNINGS, source, "-o", program, "-pthread", *flags()],
                              capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"{os.path.relpath(source, ROOT)} compiles with {compiler}", done.stderr)
        if done.returncode == 0 and first is None:
            first = program
    return first


def run(command):
    """Exit status and output, lines in the order in which a terminal would show them."""
    try:
        done = subprocess.run(["stdbuf", "-oL", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return -1, f"stopped after {LIMIT_S} s"
    return done.returncode, done.stdout


def without_numbers(text):
    text = re.sub(r"\b[0-9a-f]{16}\b", "HASH", text)
    text = re.sub(r"in the order [A-Z]+", "in the order X", text)
    return [re.sub(r"\d+", "N", line).strip() for line in text.split("\n") if line.strip()]


def check_page(page, programs, tour):
    name = os.path.relpath(page, ROOT)
    for line, info, body in blocks(read(page)):
        where = f"{name}:{line}"
        language, _, file = info.partition(" ")
        if language == "c" and file:
            source = os.path.normpath(os.path.join(os.path.dirname(page), file))
            if not os.path.exists(source):
                check(False, f"{where}: there is no {file}")
                continue
            check(body.strip("\n") in read(source), f"{where}: the block is not in {file}")
        elif language == "c":
            check(False, f"{where}: a block of C says which file it is from: ```c FILE")
        elif language == "console":
            command, _, shown = body.partition("\n")
            if command.startswith("$ ./"):
                wanted = command[len("$ ./"):] + ".c"
                found = [source for source in programs if os.path.basename(source) == wanted]
                check(len(found) == 1 and programs[found[0]] is not None, f"{where}: there is a program {wanted}")
                if len(found) == 1 and programs[found[0]] is not None:
                    status, said = run([programs[found[0]]])
                    order = sorted if file == "any-order" else list
                    check(status == 0 and order(said.strip("\n").split("\n")) == order(shown.strip("\n").split("\n")),
                          f"{where}: {wanted} says what is shown", f"exit status {status}, it said:\n{said}")
            elif command in ("$ troupe tour", "$ make tour"):
                said = without_numbers(tour)
                missing = [text for text in without_numbers(shown) if text not in said and text != "..."]
                check(not missing, f"{where}: the tour says what is shown", "\n".join(missing))
            else:
                check(False, f"{where}: nobody knows how to check `{command}`")


def check_proofs():
    text = read(os.path.join(ROOT, "docs/guide/laws.md"))
    for file, noun, claim in re.findall(r"`(test_\w+|sim_\w+): (\w+), (\w+)`", text):
        sources = glob.glob(os.path.join(ROOT, "test", "*", "*", file + ".c")) + glob.glob(
            os.path.join(ROOT, "test", "*", file + ".c"))
        pattern = re.compile(rf"^TEST\w*\(\s*{noun},\s*{claim}\b", re.MULTILINE)
        check(any(pattern.search(read(source)) for source in sources),
              f"laws.md: the test {file}: {noun}, {claim} exists")


def check_numbers():
    header = read(os.path.join(ROOT, "include/troupe/actor.h"))
    largest = int(re.search(r"TR_CAPACITY_MAX = (\d+)", header).group(1))
    for page in ("README.md", "docs/guide/04-bounded-boxes.md"):
        check(f"{largest:,} " in read(os.path.join(ROOT, page)), f"{page} says that a box holds at most {largest:,}")


def main():
    if not shutil.which("pkg-config") or not shutil.which("gcc") or not shutil.which("stdbuf"):
        print("pkg-config, gcc or stdbuf is not installed")
        return 77
    if not os.path.exists(os.path.join(BUILD, "troupe.pc")):
        print(f"there is no {BUILD}/troupe.pc: run make release")
        return 77
    pages = [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs/guide/*.md")))]
    sources = sorted(glob.glob(os.path.join(ROOT, "docs/guide/code/*.c")))
    with tempfile.TemporaryDirectory() as folder:
        programs = {source: build(source, folder) for source in sources}
        status, tour = run([os.path.join(BUILD, "troupe"), "tour"])
        check(status == 0, "troupe tour ends well", tour)
        for page in pages:
            check_page(page, programs, tour)
    used = "".join(read(page) for page in pages)
    for source in sources:
        check(f"code/{os.path.basename(source)}" in used, f"{os.path.relpath(source, ROOT)} is on a page")
    check_proofs()
    check_numbers()
    print(f"{passed} passed, {len(problems)} failed, 0 skipped")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
