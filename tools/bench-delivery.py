#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench-delivery.py [race|hot|adds|many|idle|fanout|all] [--postgres] [--quick] [--markdown FILE]

The delivery service measured against what it replaces and against what the database can do, in one run and as ratios.

race    ten and a hundred adds at once, and unread counts: a naive server, a naive one with UNIQUE and retries, `direct`
        and `actor` side by side (make bench-race)
adds    a hundred adds to one conversation, `actor` and `direct` in turns, on the disk as it is and on one slowed to ~1 ms
many    sendMessage and commits a second over many conversations beside batched SQL alone on the same disk, reads
        beside hello-JSON, latency at half the load
hot     what one busy conversation does to the latency of the others
idle    memory of 100,000 conversations that were used once
fanout  one message to 5,000 streams
all     adds, many, hot, idle and fanout (make bench-delivery)

TROUPE_BUILD says where the programs are (build/release). Exit status 1 if a target is missed."""
import argparse
import contextlib
import os
import re
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "test/lib"))
import serving  # noqa: E402  # pylint: disable=wrong-import-position,import-error

SLOW_US = os.environ.get("SLOW_SYNC_US", "900")
PACKAGES = ["sqlite3", "libpq", "openssl", "libsodium", "libsecp256k1", "libnghttp2", "zlib", "libcurl"]
# Topmost first, as the linker wants them.
LAYERS = ["services_delivery", "ops", "auth", "http", "sql", "net", "json", "crypto"]
LIMITS = [*serving.FAST, "--set", "http.connections_max=12000", "--set", "http.access_log=off"]


class Bench:
    """The programs, a folder, and the verdicts so far."""

    def __init__(self, folder, options):
        self.folder = folder
        self.options = options
        self.rows = []
        self.next_convo = 0
        self.load_program = self.program("delivery-load", ["load.c", "client.c"])
        self.naive_program = self.program("delivery-naive", ["naive.c"])
        self.sql_program = os.path.join(serving.BUILD, "sql-bench")
        self.raw_program = os.path.join(serving.BUILD, "sql-raw")
        self.shim = os.path.join(folder, "slow_sync.so")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-DSLOW_SYNC_MODULE", "-o", self.shim,
                        os.path.join(ROOT, "test/lib/slow_sync.c"), "-ldl"], check=True)

    def program(self, name, sources):
        """Built by meson, or by us from the libraries it built."""
        path = os.path.join(serving.BUILD, name)
        if os.access(path, os.X_OK):
            return path
        path = os.path.join(self.folder, name)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", *PACKAGES], check=True, capture_output=True,
                               text=True).stdout.split()
        libraries = [os.path.join(serving.BUILD, f"liblayer_{layer}.a") for layer in LAYERS]
        subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-O2", "-flto", "-D_GNU_SOURCE", "-Iinclude", "-Isrc", "-o", path,
                        *[f"bench/delivery/{source}" for source in sources], *libraries,
                        os.path.join(serving.BUILD, "libtroupe.a"), *flags, "-lwslay", "-lpthread"],
                       check=True, cwd=ROOT)
        return path

    def load(self, server, command, **options):
        words = [word for name, value in options.items() for word in (f"-{name}", str(value))]
        done = subprocess.run([self.load_program, command, server.public, *words], capture_output=True, text=True,
                              timeout=300, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{command} {options}: {done.stdout}{done.stderr}")
        if done.stderr:
            print(f"  ({command}: {done.stderr.strip()})")
        return serving.numbers(done.stdout)

    def naive(self, url, what, count):
        done = subprocess.run([self.naive_program, url, what, str(count)], capture_output=True, text=True, timeout=300,
                              check=True)
        return serving.numbers(done.stdout)

    def convos(self, server, count=1):
        """The number of the first of some new conversations."""
        first = self.next_convo
        self.next_convo += count
        made = self.load(server, "create", n=count, f=first, x=min(count, 64))
        assert made["ok"] == count, made
        return first

    def verdict(self, what, value, target, is_good, unit=""):
        self.rows.append((what, f"{value:.3g}{unit}" if isinstance(value, float) else f"{value}{unit}", target,
                          "yes" if is_good else "**no**"))
        print(f"  {'ok    ' if is_good else 'MISSED'} {what}: {self.rows[-1][1]} (target {target})", flush=True)

    def probe(self, slow=False):
        """8 KB writes, each followed by fdatasync, a second, on the disk the databases are on."""
        code = ("import os,sys,time\nfd=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\nn=0\nt=time.monotonic()\n"
                "while time.monotonic()-t<0.4:\n os.pwrite(fd,b'p'*8192,n%512*8192)\n os.fdatasync(fd)\n n+=1\n"
                "print(n/(time.monotonic()-t))")
        env = {**os.environ, **(self.slow_environment() if slow else {})}
        path = os.path.join(self.folder, "probe")
        return float(subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, env=env)
                     .stdout)

    def slow_environment(self):
        return {"LD_PRELOAD": self.shim, "SLOW_SYNC_US": SLOW_US}

    @contextlib.contextmanager
    def server(self, name, *arguments, url=None, **more):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        words = ["--dev", *LIMITS, *arguments]
        if url:
            words += ["--set", f"sql.url={url}"]
        server = serving.Server(folder, *words, **more)
        try:
            yield server
        finally:
            if server.process in serving.Server.alive:
                server.end()


def set_direct(server, percent):
    subprocess.run([serving.TROUPE, "flags", "set", "delivery.direct", f"{percent}%", "--data", server.data], check=True,
                   capture_output=True, env=serving.environment())


def children_cpu_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def load_average():
    return "load average " + " ".join(f"{value:.1f}" for value in os.getloadavg())


@contextlib.contextmanager
def databases(bench, slow=False):
    """SQLite, and a PostgreSQL of our own if it was asked for: (name, url of the server, url of the naive one)."""
    more = bench.slow_environment() if slow else {}
    found = [("SQLite", None, f"sqlite:{bench.folder}/naive.db")]
    postgres = None
    if bench.options.postgres:
        folder = os.path.join(bench.folder, "postgres" + ("-slow" if slow else ""))
        os.mkdir(folder)
        os.chmod(bench.folder, 0o755)
        postgres = serving.Postgres(folder, **more)
        postgres.make()
        psql = [f"{postgres.bin}/psql", "-h", postgres.folder, "-U", "troupe", "-d", "postgres", "-qc"]
        postgres.run(*psql, "ALTER SYSTEM SET max_connections = 300")  # a naive server has one for each request
        postgres.stop("fast")
        postgres.start()
        postgres.run(f"{postgres.bin}/createdb", "-h", postgres.folder, "-U", "troupe", "naive")
        found.append(("PostgreSQL", postgres.url, postgres.url.replace("/postgres?", "/naive?")))
    try:
        yield found
    finally:
        if postgres:
            postgres.stop("fast")


# ---- the seed's tables


def one_add_round(bench, server, count):
    """A fresh conversation and `count` adds at once: the load's numbers, commits and retries beside them."""
    first = bench.convos(server)
    names = ("troupe_sql_commits_total", "troupe_delivery_direct_retries_total", "troupe_delivery_replans_total")
    before = [server.metric(name) for name in names]
    found = bench.load(server, "adds", n=count, f=first)
    after = [server.metric(name) for name in names]
    found["commits"] = after[0] - before[0]
    found["retries"] = after[1] - before[1] + after[2] - before[2]
    return found


def race_table(bench, name, url, naive_url, counts=(10, 100)):
    is_good = True
    print(f"\n{name}: {load_average()}, {bench.probe():.0f} syncs/s")
    print("| adds at once | path | success | duplicate epochs | retries | durable commits | time |")
    print("|---|---|---|---|---|---|---|")
    with bench.server(f"race-{name}", url=url) as server:
        one_add_round(bench, server, 4)
        for count in counts:
            for path in ("naive", "naive, UNIQUE, retries", "direct", "actor"):
                if path.startswith("naive"):
                    found = bench.naive(naive_url, "adds" if path == "naive" else "adds-retry", count)
                    commits = "-"
                else:
                    set_direct(server, 100 if path == "direct" else 0)
                    found = one_add_round(bench, server, count)
                    commits = f"{found['commits']:.0f}"
                    is_good = is_good and found["ok"] == count and found["distinct_epochs"] == count
                print(f"| {count} | {path} | {100 * found['ok'] / count:.0f} % | {found['duplicate_epochs']:.0f} | "
                      f"{found['retries']:.0f} | {commits} | {1000 * found['seconds']:.0f} ms |", flush=True)
        print("\n| 50 who send and 50 who read at once | unread, expected | counted | lost updates | "
              "after a last read |")
        print("|---|---|---|---|---|")
        found = bench.naive(naive_url, "unread", 50)
        print(f"| naive | {found['unread_expected']:.0f} | {found['unread_counted']:.0f} | {found['lost_updates']:.0f} | |")
        for path in ("direct", "actor"):
            set_direct(server, 100 if path == "direct" else 0)
            found = bench.load(server, "unread", n=50, f=bench.convos(server))
            print(f"| {path} | {found['unread_expected']:.0f} | {found['unread_counted']:.0f} | "
                  f"{found['lost_updates']:.0f} | {found['unread_final']:.0f} |", flush=True)
            is_good = is_good and found["lost_updates"] == 0 and found["unread_final"] == 0 and found["errors"] == 0
    bench.verdict(f"{name}: direct and actor lose and double nothing", "all" if is_good else "no", "all", is_good)


def race(bench):
    with databases(bench) as found:
        for name, url, naive_url in found:
            race_table(bench, name, url, naive_url)


# ---- adds to one conversation


def adds_on(bench, name, url, slow):
    disk = "~1 ms disk" if slow else "disk as it is"
    target = 10 if slow else 3
    ratios, times, commits = [], {"actor": [], "direct": []}, []
    is_whole = True
    more = bench.slow_environment() if slow and url is None else {}
    print(f"\n{name}, {disk}: {load_average()}, {bench.probe(slow):.0f} syncs/s")
    with bench.server(f"adds-{name}-{slow}", url=url, **more) as server:
        for path in ("actor", "direct"):
            set_direct(server, 100 if path == "direct" else 0)
            one_add_round(bench, server, 20)  # warm
        for _ in range(bench.options.rounds):
            seconds = {}
            for path in ("actor", "direct"):
                set_direct(server, 100 if path == "direct" else 0)
                found = one_add_round(bench, server, 100)
                is_whole = is_whole and found["ok"] == 100 and found["distinct_epochs"] == 100
                seconds[path] = found["seconds"]
                times[path].append(1000 * found["seconds"])
                if path == "actor":
                    commits.append(found["commits"])
            ratios.append(seconds["direct"] / seconds["actor"])
    print(f"  actor {' '.join(f'{t:.1f}' for t in times['actor'])} ms ({max(commits):.0f} commits at most), "
          f"direct {' '.join(f'{t:.0f}' for t in times['direct'])} ms")
    bench.verdict(f"{name}, {disk}: 100 adds at once succeed in sequence", "all" if is_whole else "no", "all", is_whole)
    bench.verdict(f"{name}, {disk}: durable commits for 100 adds (median)", statistics.median(commits), "<= 8",
                  statistics.median(commits) <= 8)
    bench.verdict(f"{name}, {disk}: direct / actor time (median of {len(ratios)}; actor "
                  f"{statistics.median(times['actor']):.1f} ms)", statistics.median(ratios), f">= {target} x",
                  statistics.median(ratios) >= target, " x")


def adds(bench):
    for slow in (False, True):
        with databases(bench, slow) as found:
            for name, url, _ in found:
                adds_on(bench, name, url, slow)


# ---- many conversations

UNDER_WAY = 600
LABELS = {"raw": "raw batched SQL", "layer": "our SQL layer alone", "mls": "sendMessage, raw MLS", "send": "sendMessage, JSON", "commit": "durable commits",
          "health": "hello-JSON", "epoch": "getEpoch", "messages": "getMessages, nothing new",
          "page": "getMessages, page of 10 messages"}


def raw_sql(bench, number):
    """Units a second of SQLite driven by one loop (bench/sql/raw.c), and CPU microseconds a unit."""
    done = subprocess.run([bench.raw_program, os.path.join(bench.folder, f"raw{number}.db"), "-c", str(UNDER_WAY), "-s",
                           str(bench.options.seconds)], capture_output=True, text=True, check=True, timeout=120)
    found = serving.numbers(done.stdout)
    return found["units_per_s"], found["cpu_us"]


def sql_layer(bench, number):
    """Units a second of our SQL layer with nothing around it, and syncs a second of the disk beside it."""
    done = subprocess.run([bench.sql_program, f"sqlite:{bench.folder}/layer{number}.db", "-a", str(UNDER_WAY), "-s",
                           str(bench.options.seconds), "-r", "1"], capture_output=True, text=True, check=True, timeout=120)
    row = re.search(r"^ +1 +(\d+) +(\d+)", done.stdout, re.MULTILINE)
    return float(row.group(2)), float(row.group(1))


class Many:
    """Measurements of many conversations, by name. Raw SQL, the SQL layer and the service have as many conversations; every
    measurement that writes begins with an empty database."""

    def __init__(self, bench):
        self.bench = bench
        self.found = {}

    def measure(self, server, name, **options):
        before = server.cpu_s()
        one = self.bench.load(server, name, s=self.bench.options.seconds, n=UNDER_WAY, **options)
        one["us"] = 1e6 * (server.cpu_s() - before) / max(one["ok"], 1)
        self.found.setdefault(name, []).append(one)
        print(f"    {LABELS[name]:32} {one['per_second']:7.0f}/s, server {one['us']:.0f} us of CPU, load {one['own_us']:.0f} us",
              flush=True)
        return one

    def writes(self, number):
        raw, raw_us = raw_sql(self.bench, number)
        layer, syncs = sql_layer(self.bench, number)
        self.found.setdefault("raw", []).append({"per_second": raw})
        self.found.setdefault("layer", []).append({"per_second": layer})
        print(f"  syncs/s {syncs:.0f}, raw batched SQL {raw:.0f}/s ({raw_us:.0f} us of CPU each), our SQL layer alone "
              f"{layer:.0f}/s; {load_average()}")
        for name in ("mls", "send", "commit"):
            with self.bench.server(f"many-{number}-{name}") as server:
                self.measure(server, name, f=self.bench.convos(server, UNDER_WAY), x=UNDER_WAY)

    def reads(self, number):
        with self.bench.server(f"many-{number}-reads") as server:
            quiet = self.bench.convos(server, UNDER_WAY)  # nothing was said in these
            spoken = self.bench.convos(server, UNDER_WAY)
            said = 0  # in each of them
            while said < 10:
                said += int(self.bench.load(server, "mls", n=UNDER_WAY, f=spoken, x=UNDER_WAY, s=1)["ok"]) // UNDER_WAY
            self.measure(server, "health", x=64)
            for name in ("epoch", "messages"):
                self.measure(server, name, f=quiet, x=64)
            self.measure(server, "page", f=spoken, x=64)

    def rest(self):
        """Latency at half the load, and what is left of the speed when the database has grown."""
        seconds = self.bench.options.seconds
        full = self.median("send")
        more = 20000 if self.bench.options.quick else 200000
        with self.bench.server("many-rest") as server:
            first = self.bench.convos(server, UNDER_WAY)
            half = self.bench.load(server, "send", n=UNDER_WAY, f=first, x=UNDER_WAY, s=seconds * 2, r=full / 2)
            grown = 0
            while grown < more:
                grown += self.bench.load(server, "mls", n=UNDER_WAY, f=first, x=UNDER_WAY, s=10, r=min(full, more / 10))["ok"]
            late = self.bench.load(server, "send", n=UNDER_WAY, f=first, x=UNDER_WAY, s=seconds)
        return half, grown, late

    def median(self, name, key="per_second"):
        return statistics.median(one[key] for one in self.found[name])

    def ratio(self, name, against):
        return statistics.median(one["per_second"] / other["per_second"]
                                 for one, other in zip(self.found[name], self.found[against]))


def many(bench):
    found = Many(bench)
    print(f"\nmany conversations (SQLite): {load_average()}")
    for number in range(bench.options.rounds):
        found.writes(number)
        found.reads(number)
    half, grown, late = found.rest()
    for name, against, target in (("mls", "raw", 0.5), ("send", "raw", 0.5), ("commit", "raw", 0.4),
                                  ("mls", "layer", None), ("send", "layer", None), ("commit", "layer", None),
                                  ("epoch", "health", 0.6), ("messages", "health", 0.6), ("page", "health", None)):
        value = found.ratio(name, against)
        what = f"{LABELS[name]} / {LABELS[against]} (median of {bench.options.rounds})"
        if target is None:
            bench.rows.append((what, f"{value:.2f} x", "reported", "-"))
        else:
            bench.verdict(what, value, f">= {target} x", value >= target, " x")
        if against == "health":  # what other programs on the machine do to the two differs; this does not show it
            server = [found.median(key, "us") for key in (against, name)]
            both = [statistics.median(one["us"] + one["own_us"] for one in found.found[key]) for key in (against, name)]
            bench.rows.append((f"the same by CPU of the server ({server[1]:.0f} us, hello {server[0]:.0f} us); of server and load",
                               f"{server[0] / server[1]:.2f} x; {both[0] / both[1]:.2f} x", "reported", "-"))
    bench.rows.append((f"{LABELS['send']}, after {grown:.0f} more messages / {LABELS['raw']}",
                       f"{late['per_second'] / found.median('raw'):.2f} x", "reported", "-"))
    bench.rows.append((f"sendMessage at half load ({found.median('send') / 2:.0f}/s): p50, p99",
                       f"{half['p50_ms']:.2f} ms, {half['p99_ms']:.2f} ms", "reported", "-"))
    print(f"         p99 at half load: {half['p99_ms']:.2f} ms")


# ---- one hot conversation


def hot(bench):
    """Others at a modest rate: alone, beside a load spread over many conversations, and beside the same load on one."""
    seconds, rate, flood = bench.options.seconds * 2, 300, 1500
    worst = {"alone": [], "spread": [], "hot": []}
    print(f"\none hot conversation (SQLite): {load_average()}")
    with bench.server("hot") as server:
        others, spread, one = bench.convos(server, 200), bench.convos(server, 500), bench.convos(server)
        for _ in range(bench.options.rounds):
            for what in worst:
                beside = None
                if what != "alone":
                    words = ["-f", str(one), "-n", "1"] if what == "hot" else ["-f", str(spread), "-n", "500"]
                    # pylint: disable-next=consider-using-with  # it is waited for below
                    beside = subprocess.Popen([bench.load_program, "send", server.public, *words, "-x", "64", "-s",
                                               str(seconds + 1), "-r", str(flood)], stdout=subprocess.PIPE, text=True)
                    time.sleep(1 + flood * seconds * 6e-5)  # its tokens
                worst[what].append(bench.load(server, "send", n=200, f=others, x=64, s=seconds, r=rate)["p99_ms"])
                if beside:
                    beside.communicate(timeout=120)
            print("  p99 of the others: " + ", ".join(f"{what} {found[-1]:.1f} ms" for what, found in worst.items()), flush=True)
    ratio = statistics.median(h / a for h, a in zip(worst["hot"], worst["alone"]))
    same = statistics.median(h / s for h, s in zip(worst["hot"], worst["spread"]))
    bench.verdict(f"p99 of others beside one hot conversation ({flood}/s) / alone", ratio, "<= 2 x", ratio <= 2, " x")
    bench.rows.append(("the same / beside that load on 500 conversations", f"{same:.2f} x", "reported", "-"))


# ---- idle conversations


def copy_convos(path, name, count):
    """Conversations like one that is there, straight into a database that no server has open."""
    database = sqlite3.connect(path)
    for table, key in (("convos", "id"), ("members", "convo")):
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        values = ", ".join("'idle-' || n" if column == key else column for column in columns)
        database.execute(f"WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {count - 1}) "
                         f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM c, {table} WHERE {key} = '{name}'")
    database.commit()
    database.close()


def idle(bench):
    count = 20000 if bench.options.quick else 100000
    print(f"\n{count} idle conversations (SQLite): {load_average()}")
    with bench.server("idle") as server:
        first = bench.convos(server)
    path = os.path.join(bench.folder, "idle", "data", "troupe.db")
    copy_convos(path, f"bench-{first}", count)
    database = sqlite3.connect(path)
    database.execute("PRAGMA foreign_keys = OFF")
    for table, key in (("convos", "id"), ("members", "convo")):
        database.execute(f"UPDATE {table} SET {key} = 'bench-' || (1000000 + CAST(substr({key}, 6) AS INTEGER)) "
                         f"WHERE {key} LIKE 'idle-%'")
    database.commit()
    database.close()
    with bench.server("idle") as server:
        # What the database keeps of its file in memory is bounded and not what this is about: fill it first.
        bench.load(server, "scan", n=count, f=1000000, x=64)
        bench.load(server, "touch", n=1000, f=1000000)
        before = server.memory_kb()
        found = bench.load(server, "touch", n=count - 1000, f=1001000, x=64)
        grown = (server.memory_kb() - before) / 1024
        assert found["ok"] == count - 1000, found
    per = grown * 1024 * 1024 / (count - 1000)
    bench.verdict(f"memory of 100,000 idle conversations ({per:.0f} bytes each, measured with {count})",
                  per * 100000 / 1024 / 1024, "< 100 MB", per * 100000 < 100 * 1024 * 1024, " MB")


# ---- fan-out


def fanout(bench):
    streams = 1000 if bench.options.quick else 5000
    print(f"\nfan-out to {streams} streams (SQLite): {load_average()}")
    with bench.server("fanout") as server:
        found = bench.load(server, "fanout", x=streams, n=20, f=bench.convos(server))
    print(f"  p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms, max {found['max_ms']:.1f} ms")
    bench.verdict(f"one message to {streams} SSE streams, p99 from send to last bytes", found["p99_ms"], "< 100 ms",
                  found["p99_ms"] < 100 and found["events"] == streams * 20, " ms")


PARTS = {"race": race, "adds": adds, "many": many, "hot": hot, "idle": idle, "fanout": fanout}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("parts", nargs="*", default=["all"], choices=[*PARTS, "all"])
    parser.add_argument("--postgres", action="store_true", help="race and adds also on a PostgreSQL of our own")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller numbers")
    parser.add_argument("--seconds", type=int, default=0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=0)
    options = parser.parse_args()
    options.seconds = options.seconds or (1 if options.quick else 6)
    options.rounds = options.rounds or (2 if options.quick else 5)
    if not os.access(serving.TROUPE, os.X_OK):
        sys.exit(f"there is no {serving.TROUPE}: run make release")
    parts = [part for part in PARTS if part in options.parts or ("all" in options.parts and part != "race")]
    folder = tempfile.mkdtemp(prefix="troupe-bench-delivery.")
    try:
        bench = Bench(folder, options)
        print(f"{os.cpu_count()} cores, {load_average()}, {bench.probe():.0f} syncs/s")
        for part in parts:
            PARTS[part](bench)
    finally:
        while serving.Server.alive:
            process = serving.Server.alive.pop()
            process.kill()
            process.wait()
        while serving.Postgres.alive:
            serving.Postgres.alive[-1].stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n| what | measured | target | met |\n|---|---|---|---|")
    for row in bench.rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(load_average())
    return 1 if any(row[3] == "**no**" for row in bench.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
