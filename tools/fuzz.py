#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Run the fuzz targets of test/fuzz.

    tools/fuzz.py replay              every stored input through every target (the asan build)
    tools/fuzz.py run [--seconds N] [TARGET...]
                                      libFuzzer, N seconds a target (default 60); needs clang

An input that crashes is written to build/fuzz/crashes. Once it is fixed, store it in
test/fuzz/corpus/TARGET so that it stays fixed. The last line is "N passed, N failed, N skipped".
"""
import argparse
import glob
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def targets():
    names = [os.path.basename(path)[:-2] for path in glob.glob(os.path.join(ROOT, "test/fuzz/*.c"))]
    return sorted(name for name in names if name != "replay")


def replay():
    passed = failed = 0
    subprocess.run(["tools/build.sh", "asan"], cwd=ROOT, check=True)
    for name in targets():
        corpus = f"test/fuzz/corpus/{name}"
        if not os.path.isdir(os.path.join(ROOT, corpus)):
            failed += 1
            print(f"not ok - {name}: there is no {corpus}")
            continue
        done = subprocess.run([f"build/asan/test/fuzz/fuzz_{name}", corpus], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        count = sum(1 for line in done.stdout.splitlines() if line.startswith(corpus))
        if done.returncode != 0:
            failed += 1
            passed += max(count - 1, 0)
            print(f"not ok - {name}:\n" + "\n".join(done.stdout.splitlines()[-40:]))
        else:
            passed += count
            print(f"ok - {name}: {count} inputs")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def run(names, seconds):
    passed = failed = 0
    if not shutil.which("clang"):
        print("ok - fuzzing # SKIP clang is not installed\n0 passed, 0 failed, 1 skipped")
        return 0
    subprocess.run(["tools/build.sh", "fuzz"] + [f"test/fuzz/fuzz_{name}" for name in names], cwd=ROOT, check=True)
    crashes = os.path.join(ROOT, "build/fuzz/crashes/")
    os.makedirs(crashes, exist_ok=True)
    for name in names:
        work = os.path.join(ROOT, "build/fuzz/corpus", name)
        os.makedirs(work, exist_ok=True)
        done = subprocess.run(
            [f"build/fuzz/test/fuzz/fuzz_{name}", f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=1024",
             "-print_final_stats=1", f"-artifact_prefix={crashes}{name}-", work, f"test/fuzz/corpus/{name}"],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        lines = done.stdout.splitlines()
        stats = " ".join(line.split(":", 1)[1].strip() + " " + line.split(":", 1)[0].replace("stat::", "")
                         for line in lines if line.startswith("stat::") and ("units" in line or "per_sec" in line))
        if done.returncode == 0:
            passed += 1
            print(f"ok - {name}: {stats}", flush=True)
        else:
            failed += 1
            print(f"not ok - {name}\n" + "\n".join(lines[-60:]), flush=True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["replay", "run"])
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_intermixed_args()
    unknown = [name for name in given.targets if name not in targets()]
    if unknown:
        sys.exit(f"tools/fuzz.py: no target is called {', '.join(unknown)}; there are {', '.join(targets())}")
    return replay() if given.what == "replay" else run(given.targets or targets(), given.seconds)


if __name__ == "__main__":
    sys.exit(main())
