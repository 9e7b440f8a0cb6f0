#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Run test programs and scripts, and add up what they report.

    tools/run-tests.py [options] PATTERN...

A program built with test/lib/check.h, or any other whose last line is "N passed, N failed, N skipped",
is taken at its word. Another one is one case: exit status 0 passes, 77 skips (its last line is the
reason), the rest fails. Output is shown of programs that failed. The last line adds up everything.

Programs start in the order of the patterns, more of them at a time than there are cores: most wait most of the time,
for a deadline, a restart or a database. Beside the seconds of each stand those of CPU that it took.
"""
import argparse
import concurrent.futures
import contextlib
import fnmatch
import glob
import itertools
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
    """Returns the exit status, the output, stdout and stderr as they came, and the seconds of CPU it took."""
    with tempfile.TemporaryFile() as output:  # a pipe would wait for processes that were left behind
        # pylint: disable=consider-using-with  # wait4() below waits for it and, unlike Popen.wait(), counts its CPU
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return process.returncode, output.read().decode("utf-8", "replace"), usage.ru_utime + usage.ru_stime


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
        jobs.append((f"{name} seed {seed}", by_name.get(name, name), [text], {"TROUPE_SEED": seed, "TROUPE_SEEDS": "1"}))
    return jobs


def find_programs(patterns):
    """In the order of the patterns; what two of them match comes where the first has it."""
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))
             if os.path.isfile(path) and (os.access(path, os.X_OK) or path.endswith((".sh", ".py")))]
    return list(dict.fromkeys(found))


def is_named(path, patterns):
    return any(fnmatch.fnmatch(os.path.basename(path), pattern) for pattern in patterns)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="+", metavar="PATTERN")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="programs at a time")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--no-aslr", action="store_true", help="run with a fixed address layout if possible")
    parser.add_argument("--regressions", default="", help="file of seeds to run first")
    parser.add_argument("--without", action="append", default=[], metavar="PATTERN",
                        help="leave out programs of these names, and say how many")
    parser.add_argument("--alone", action="append", default=[], metavar="PATTERN",
                        help="run programs of these names one by one when the others have ended")
    options = parser.parse_args()

    programs = find_programs(options.patterns)
    left_out = [path for path in programs if is_named(path, options.without)]
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
            _, listed, _ = run([program, "--list", options.case], os.environ)
            if listed.strip():
                chosen.append((name, program, [options.case], settings))
        jobs = chosen
        if not jobs:
            print(f"no case matches \"{options.case}\"")
            print("0 passed, 1 failed, 0 skipped")
            return 1

    alone = [job for job in jobs if is_named(job[1], options.alone)]
    together = [job for job in jobs if job not in alone]
    with cache() as folder:
        environment = {**os.environ, "TROUPE_TEST_CACHE": folder}
        return report(itertools.chain(run_jobs(together, prefix, options.jobs, environment),
                                      run_jobs(alone, prefix, 1, environment)))


@contextlib.contextmanager
def cache():
    """A folder for what the programs of this run can share, in memory where there is some."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        os.chmod(folder, 0o711)  # PostgreSQL reads its part as another user
        yield folder


def run_jobs(jobs, prefix, at_a_time, environment):
    """Yields name, exit status, output, seconds and seconds of CPU of each when it has ended."""
    def work(job):
        name, program, arguments, settings = job
        started = time.monotonic()
        try:
            status, output, cpu_s = run(prefix + interpreter(program) + arguments, {**environment, **settings})
        except OSError as error:
            status, output, cpu_s = 127, f"{shlex.join([program])}: {error.strerror}\n", 0.0
        return name, status, output, time.monotonic() - started, cpu_s

    with concurrent.futures.ThreadPoolExecutor(max(1, at_a_time)) as pool:
        for future in concurrent.futures.as_completed([pool.submit(work, job) for job in jobs]):
            yield future.result()


def report(results):
    total = [0, 0, 0]
    seeds = 0
    for name, status, output, seconds, cpu_s in results:
        counts, notes = judge(name, status, output)
        total = [a + b for a, b in zip(total, counts)]
        walked = sum(int(n) for n in re.findall(r"^# (\d+) seeds from ", output, re.MULTILINE))
        seeds += walked
        if counts[1]:
            print(output.rstrip())
        print(f"{name}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped"
              f"{f', {walked} seeds' if walked else ''} ({seconds:.1f} s, {cpu_s:.1f} of CPU)")
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
