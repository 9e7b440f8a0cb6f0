#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Run test programs and scripts, and add up what they report.

    tools/run-tests.py [options] PATTERN...

A program built with test/lib/check.h, or any other whose last line is "N passed, N failed, N skipped",
is taken at its word. Another one is one case: exit status 0 passes, 77 skips (its last line is the
reason), the rest fails. Output is shown of programs that failed. The last line adds up everything.
"""
import argparse
import concurrent.futures
import contextlib
import fnmatch
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")
SKIP_STATUS = 77


def run(command, environment):
    """Returns the exit status and the output, stdout and stderr as they came."""
    with tempfile.TemporaryFile() as output:  # a pipe would wait for processes that were left behind
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL,
                              stdout=output, stderr=subprocess.STDOUT, check=False)
        output.seek(0)
        return done.returncode, output.read().decode("utf-8", "replace")


def judge(name, status, output):
    """Returns (passed, failed, skipped) and lines that say why something failed or was skipped."""
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    found = SUMMARY.match(last)
    if found:
        passed, failed, skipped = (int(number) for number in found.groups())
        notes = [line for line in lines if line.startswith("ok ") and "# SKIP" in line]
        if status != 0 and failed == 0:
            notes.append(f"not ok - {name}: exit status {status}, though no case failed")
            failed = 1
        elif status == 0 and failed > 0:
            notes.append(f"not ok - {name}: exit status 0, though {failed} failed")
        return (passed, failed, skipped), notes
    if status == SKIP_STATUS:
        return (0, 0, 1), [f"ok - {name} # SKIP {last or 'no reason given'}"]
    if status != 0:
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return (0, 1, 0), [f"not ok - {name}: {how}"]
    return (1, 0, 0), []


def interpreter(path):
    if path.endswith(".py"):
        return ["/usr/bin/python3", path]
    if path.endswith(".sh"):
        return ["bash", path]
    return [path]


def without_aslr():
    """ThreadSanitizer of gcc 12 cannot cope with the address space of some newer kernels."""
    command = ["setarch", "-R"]
    if shutil.which("setarch") and subprocess.run(command + ["true"], check=False,
                                                  stderr=subprocess.DEVNULL).returncode == 0:
        return command
    return []


def regressions(path, programs):
    """Lines "PROGRAM SEED TEXT": a seed that once failed, and the case it failed in."""
    jobs = []
    by_name = {os.path.basename(program): program for program in programs}
    for line in open(path, encoding="utf-8"):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        name, seed, text = line.split(None, 2)
        jobs.append((f"{name} seed {seed}", by_name.get(name, name), [text], {"TROUPE_SEED": seed}))
    return jobs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="+", metavar="PATTERN")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="programs at a time")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--no-aslr", action="store_true", help="run with a fixed address layout if possible")
    parser.add_argument("--regressions", default="", help="file of seeds to run first")
    parser.add_argument("--without", action="append", default=[], metavar="PATTERN",
                        help="leave out programs of these names, and say how many")
    options = parser.parse_args()

    programs = [path for pattern in options.patterns for path in sorted(glob.glob(pattern))
                if os.path.isfile(path) and (os.access(path, os.X_OK) or path.endswith((".sh", ".py")))]
    left_out = {path for path in programs for pattern in options.without
                if fnmatch.fnmatch(os.path.basename(path), pattern)}
    programs = [path for path in programs if path not in left_out]
    if left_out:
        print(f"{len(left_out)} programs are left out here: {', '.join(options.without)}")
    prefix = without_aslr() if options.no_aslr else []
    jobs = []
    if options.regressions and os.path.exists(options.regressions) and not options.case:
        jobs += regressions(options.regressions, programs)
    jobs += [(os.path.basename(program), program, [], {}) for program in programs]

    if options.case:
        chosen = []
        for name, program, _, settings in jobs:
            listed = run([program, "--list", options.case], os.environ)[1]
            if listed.strip():
                chosen.append((name, program, [options.case], settings))
        jobs = chosen
        if not jobs:
            print(f"no case matches \"{options.case}\"")
            print("0 passed, 1 failed, 0 skipped")
            return 1

    with cache() as folder:
        return run_jobs(jobs, prefix, options.jobs, {**os.environ, "TROUPE_TEST_CACHE": folder})


@contextlib.contextmanager
def cache():
    """A folder for what the programs of this run can share, in memory where there is some."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        os.chmod(folder, 0o711)  # PostgreSQL reads its part as another user
        yield folder


def run_jobs(jobs, prefix, at_a_time, environment):
    def work(job):
        name, program, arguments, settings = job
        started = time.monotonic()
        try:
            status, output = run(prefix + interpreter(program) + arguments, {**environment, **settings})
        except OSError as error:
            status, output = 127, f"{shlex.join([program])}: {error.strerror}\n"
        return name, status, output, time.monotonic() - started

    total = [0, 0, 0]
    seeds = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, at_a_time)) as pool:
        for future in concurrent.futures.as_completed([pool.submit(work, job) for job in jobs]):
            name, status, output, seconds = future.result()
            counts, notes = judge(name, status, output)
            total = [a + b for a, b in zip(total, counts)]
            walked = sum(int(n) for n in re.findall(r"^# (\d+) seeds from ", output, re.MULTILINE))
            seeds += walked
            if counts[1]:
                print(output.rstrip())
            print(f"{name}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped"
                  f"{f', {walked} seeds' if walked else ''} ({seconds:.1f} s)")
            for note in notes:
                if not (counts[1] and note in output):
                    print(note)
            sys.stdout.flush()
    if seeds:
        print(f"{seeds} seeds in all")
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
