#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Run test suites, each within its budget, and add them up.

    tools/run-suites.py [--list] [--summary FILE] GROUP|SUITE...

A suite ends its output with "N passed, N failed, N skipped". What could not run, because a tool or
a script is not there, counts as one skipped and its reason is printed; it never counts as passed.
The last line adds up all suites. The exit status is 1 if anything failed.
"""
import argparse
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")
SKIPPED = re.compile(r"^ok(?: \d+)? - (.*?) # SKIP (.*)$")
FAILED = re.compile(r"^not ok(?: \d+)? - (.*)$")
SKIP_STATUS = 77

# A suite over its budget is noted; one that takes three times as long is stopped and has failed: a busy
# machine is no defect, a hang is. The budgets of `test` together are 28 minutes, with `lint` 34, and must stay below 40; on two
# idle cores the suites take about two thirds of them. Unpacking Synapse is apart: `make test` does it before the suites, once.
PATIENCE = 3


@dataclasses.dataclass
class Suite:
    name: str
    group: str
    budget_s: int
    what: str
    commands: list  # run in order by sh; the last one prints the summary line
    tools: list = dataclasses.field(default_factory=list)  # missing: skipped
    files: list = dataclasses.field(default_factory=list)  # missing: skipped
    environment: dict = dataclasses.field(default_factory=dict)


def unit(kind, options="", layers="runtime sql packs users *"):
    """Programs of these layers, in this order: those that take longest first, so that none is left alone at the end."""
    programs = " ".join(f"'build/{kind}/test/test_{layer}_*'" for layer in layers.split())
    return [f"tools/build.sh {kind}", f"tools/run-tests.py {options} {programs}"]


# Olm and Megolm by libolm; only the programs that notice the difference, and `troupe`, which links it.
LIBOLM = ["tools/build.sh libolm troupe $(cd test/unit/matrix && ls test_*.c | sed 's|^test_|test/test_matrix_|; s|[.]c$||')",
          "tools/run-tests.py 'build/libolm/test/test_matrix_*'"]
SIM = ["tools/build.sh sim",
       "tools/run-tests.py --regressions test/sim/regressions.txt 'build/sim/test/sim_*'"]
INTEGRATION = ["tools/build.sh release",
               # The longest first; one that wants the whole machine when the others have ended.
               "tools/run-tests.py --jobs 3 --alone overload_serve.py test/integration/mls_clients.py "
               "'test/integration/*.sh' 'test/integration/*.py'"]
# The services' cases run on both databases in the debug build; under sanitizers `make test` has them on SQLite, and the
# PostgreSQL backend by its own tests. `make test-long` has all of them.
ONE_DATABASE = "--without 'test_delivery_*_postgres' --without 'test_packs_*_postgres' --without 'test_users_*_postgres' " \
               "--without 'test_matrix_*_postgres'"
# These have one thread: ThreadSanitizer has nothing to look for, and takes ten times as long.
ONE_THREAD = "--without test_delivery_turn --without 'test_delivery_mls_*' --without 'test_runtime_sim*'"
# Hundreds of processes that kill themselves: a sanitizer adds minutes and looks at no line that other programs do not run.
NO_KILLS = "--without test_matrix_engine_kill"
MATRIX = ["tools/build.sh debug",
          "tools/run-tests.py --jobs 2 test/matrix/peers_talk.py test/matrix/commands.py"]
ORACLE = ["tools/build.sh debug", "tools/run-tests.py 'build/debug/test/oracle/oracle_*' test/oracle/vodozemac.py"]
BUILT = {"TROUPE_BUILD": os.path.join(ROOT, "build/release")}
LONG = {"TROUPE_LONG": "1"}

SUITES = [
    Suite("unit", "test", 180, "unit tests, gcc, debug build", unit("debug")),
    Suite("asan", "test", 210, "unit tests under AddressSanitizer and UBSan",
          unit("asan", f"{ONE_DATABASE} {NO_KILLS}")),
    Suite("tsan", "test", 260, "what has threads, under ThreadSanitizer",
          unit("tsan", f"--no-aslr {ONE_DATABASE} {ONE_THREAD}", "runtime packs users sql delivery http auth net ops")),
    Suite("clang", "test", 90, "the same sources by the other compiler, optimized",
          unit("clang", "", "runtime base json crypto manifest"), tools=["clang"]),
    Suite("sim", "test", 60, "simulations, seed by seed", SIM),
    Suite("spin", "test", 45, "models of the lock-free parts", ["test/spin/run.sh"],
          tools=["spin", "gcc"], files=["test/spin/run.sh"]),
    Suite("mutants", "test", 150, "planted bugs, each must be caught", ["test/mutants/run.sh"],
          tools=["patch"], files=["test/mutants/run.sh"]),
    Suite("integration", "test", 330, "programs and examples of the release build", INTEGRATION,
          files=["test/integration"], environment=BUILT),
    Suite("oracle", "test", 60, "the same work by packaged libraries, compared", ORACLE),
    Suite("fuzz", "test", 45, "stored inputs through every fuzz target, under ASan", ["tools/fuzz.py replay"]),
    Suite("matrix", "test", 240, "our Matrix engine and real clients through a real Synapse", MATRIX, files=["test/matrix"]),
    Suite("docs", "test", 5, "links and paths in the documents", ["tools/tidy.py docs"]),

    Suite("format", "lint", 20, "clang-format", ["tools/lint.py format"]),
    Suite("tidy", "lint", 30, "layers, banned calls, exported names, headers",
          ["tools/build.sh debug", "tools/tidy.py all"]),
    Suite("clang-tidy", "lint", 240, "clang-tidy with the list in .clang-tidy",
          ["tools/lint.py clang-tidy"]),
    Suite("analyze", "lint", 60, "gcc -fanalyzer", ["tools/lint.py analyze"]),

    Suite("quick", "check", 45, "unit tests of the library and of what needs no server",
          unit("debug", "", "runtime base lib json net")),

    Suite("unit-long", "long", 1200, "unit tests with the big numbers", unit("debug"), environment=LONG),
    Suite("asan-long", "long", 2400, "the same under ASan and UBSan", unit("asan"), environment=LONG),
    Suite("tsan-long", "long", 3600, "the same under TSan", unit("tsan", "--no-aslr"), environment=LONG),
    Suite("sim-long", "long", 3600, "simulations, 20,000 fresh seeds a scenario", SIM, environment={
        **LONG, "TROUPE_SEED": str(int(time.time())), "TROUPE_SEEDS": os.environ.get("SEEDS") or "20000"}),
    Suite("spin-long", "long", 1800, "models with their large parameters", ["test/spin/run.sh"],
          tools=["spin", "gcc"], files=["test/spin/run.sh"], environment=LONG),
    Suite("mutants-long", "long", 1800, "planted bugs", ["test/mutants/run.sh"],
          tools=["patch"], files=["test/mutants/run.sh"], environment=LONG),
    Suite("fuzz-long", "long", 9000, "libFuzzer, ten minutes a target", ["tools/fuzz.py run --seconds 600"],
          tools=["clang"]),
    Suite("libolm-long", "long", 420, "Matrix unit tests with the backend libolm", LIBOLM,
          files=["/usr/include/olm/olm.h"], environment=LONG),
    Suite("oracle-long", "long", 900, "the same, 1,000 conversations of every pair", ORACLE, environment=LONG),
    Suite("matrix-long", "long", 560, "the same, and the other clients without it", MATRIX, files=["test/matrix"],
          environment=LONG),
    Suite("integration-long", "long", 9000, "programs and examples", INTEGRATION,
          files=["test/integration"], environment={**BUILT, **LONG}),
]

# `make check`: the fast loop.
GROUPS = {"check": ["quick", "tidy"]}


@dataclasses.dataclass
class Result:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    why_failed: list = dataclasses.field(default_factory=list)
    why_skipped: list = dataclasses.field(default_factory=list)

    def line(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def stop(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_command(command, environment, limit_s):
    """Show the output as it comes. Returns exit status, lines, and whether it had to be stopped."""
    # pylint: disable=consider-using-with  # it is waited for below
    process = subprocess.Popen(["sh", "-c", command], cwd=ROOT, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, **environment}, start_new_session=True)
    stopped = threading.Event()

    def out_of_time():
        stopped.set()
        stop(process)

    timer = threading.Timer(max(limit_s, 0.1), out_of_time)
    timer.start()
    lines = []
    try:
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            lines.append(line)
            print(line, flush=True)
        status = process.wait()
    finally:
        timer.cancel()
        stop(process)  # also what a test left running
    return status, lines, stopped.is_set()


def what_is_missing(suite):
    for tool in suite.tools:
        if not shutil.which(tool):
            return f"{tool} is not installed"
    for path in suite.files:
        if not os.path.exists(os.path.join(ROOT, path)):
            return f"{path} is not there"
    return None


def add_up(result, status, lines):
    """Read what the suite's last command said about itself."""
    said = [line.strip() for line in lines if line.strip()]
    last = said[-1] if said else ""
    found = SUMMARY.match(last)
    for line in said:
        if SKIPPED.match(line):
            result.why_skipped.append("{}: {}".format(*SKIPPED.match(line).groups()))
        elif FAILED.match(line):
            result.why_failed.append(FAILED.match(line).group(1))
    if found:
        result.passed, result.failed, result.skipped = (int(number) for number in found.groups())
        if status != 0 and result.failed == 0:
            result.failed = 1
            result.why_failed.append(f"exit status {status}, though no case failed")
        if result.skipped > len(result.why_skipped):
            result.why_skipped.append(f"{result.skipped - len(result.why_skipped)} gave no reason")
        if result.passed + result.failed + result.skipped == 0:
            result.skipped = 1
            result.why_skipped.append("there is no case to run")
    elif status == SKIP_STATUS:
        result.skipped = 1
        result.why_skipped.append(last or "no reason given")
    else:
        result.failed = 1
        result.why_failed.append(f"exit status {status} and no summary line")


def run_suite(suite):
    result = Result()
    print(f"\n== {suite.name}: {suite.what} (budget {suite.budget_s} s)", flush=True)
    started = time.monotonic()
    limit_s = suite.budget_s * PATIENCE
    reason = what_is_missing(suite)
    if reason:
        result.skipped = 1
        result.why_skipped.append(reason)
        print(f"skipped: {reason}")
    else:
        for number, command in enumerate(suite.commands, start=1):
            status, lines, stopped = run_command(
                command, suite.environment, limit_s - (time.monotonic() - started))
            if stopped:
                result.failed = 1
                result.why_failed.append(f"stopped after {limit_s:.0f} s, budget {suite.budget_s} s")
                break
            if number == len(suite.commands):
                add_up(result, status, lines)
            elif status != 0:
                result.failed = 1
                result.why_failed.append(f"{command}: exit status {status}")
                break
    result.seconds = time.monotonic() - started
    print(f"== {suite.name}: {result.line()} ({result.seconds:.0f} s)", flush=True)
    return result


def report(results):
    print(f"\n{'suite':<17}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'budget':>8}")
    for suite, result in results:
        late = "  over its budget" if result.seconds > suite.budget_s else ""
        print(f"{suite.name:<17}{result.passed:>8}{result.failed:>8}{result.skipped:>9}"
              f"{result.seconds:>9.0f}{suite.budget_s:>8}{late}")
    for title, field in (("skipped", "why_skipped"), ("failed", "why_failed")):
        notes = [f"  {suite.name}: {why}" for suite, result in results for why in getattr(result, field)]
        if notes:
            print(f"\n{title}:")
            print("\n".join(notes))
    print()


def choose(names):
    chosen = []
    for name in names:
        wanted = GROUPS.get(name, [name])
        found = [suite for suite in SUITES if suite.name in wanted or suite.group in wanted]
        if not found:
            sys.exit(f"tools/run-suites.py: no suite or group is called '{name}'")
        chosen += [suite for suite in found if suite not in chosen]
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="GROUP|SUITE", help="groups: check, test, lint, long")
    parser.add_argument("--list", action="store_true", help="print the suites and their budgets")
    parser.add_argument("--summary", default="", help="write the last line to this file too")
    options = parser.parse_args()
    suites = choose(options.names)
    print(f"{len(suites)} suites, budget {sum(suite.budget_s for suite in suites)} s:")
    for suite in suites:
        print(f"  {suite.name:<17}{suite.budget_s:>6} s  {suite.what}")
    if options.list:
        return 0

    results = [(suite, run_suite(suite)) for suite in suites]
    report(results)
    total = Result(*(sum(getattr(result, field) for _, result in results)
                     for field in ("passed", "failed", "skipped")))
    if options.summary:
        os.makedirs(os.path.dirname(os.path.abspath(options.summary)), exist_ok=True)
        with open(options.summary, "w", encoding="utf-8") as file:
            print(total.line(), file=file)
    print(total.line(), flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
