#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench-packs.py [PART...]: what packs promise about speed, measured on the shipped program beside nginx with
`sendfile on`, which serves the very same files.

Parts: small (requests per CPU-second, 4 KB to 64 KB), large (bytes per CPU-second, 1 MB to 1 GB), ranges (of a file of
1 GB), cold (verification beside `openssl speed`, and 1,000 requests at once after a restart), warm (the check alone).
Without any: all of them. -n ROUNDS and -s SECONDS make it longer or shorter; -q is the quick one. Rounds of the two
servers take turns; each figure is the median of the ratios of neighbours, with the load average of its time beside it:
on a machine that does other things too, run it again when that was high. CPU is what the scheduler counted for all
threads of the server, once the sockets are full. Run by root, it measures in a network of its own with congestion
control -c (reno); -c "" stays in the machine's: docs/benchmarks-packs.md says what BBR does to the figures. Prints one
table; exit status 1 if a target was missed, 2 if a part could not run."""
import argparse
import getpass
import importlib.util
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "test/lib")]
# pylint: disable=wrong-import-position
import serving


def load_chassis():
    """The table and the CPU counters are those of bench-chassis.py."""
    sys.path.insert(0, os.path.join(ROOT, "bench/overload"))
    spec = importlib.util.spec_from_file_location("bench_chassis", os.path.join(ROOT, "tools/bench-chassis.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_chassis"] = module
    spec.loader.exec_module(module)
    return module


chassis = load_chassis()
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
WORKERS = 2
WARM_UP_S = 0.5
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
NGINX = """
{user} worker_processes {workers}; daemon off; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 4096; }}
http {{
    access_log off; keepalive_requests 1000000000; default_type application/octet-stream; server_tokens off;
    sendfile on;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{ listen 127.0.0.1:{port}; root {files}; }}
}}
"""


class Pair:
    """Both servers with the same files: NAME at /NAME and at /v1/packs/NAME/download."""

    def __init__(self, folder, sizes):
        self.folder = folder
        self.files = os.path.join(folder, "files")
        os.chmod(folder, 0o755)
        os.mkdir(self.files)
        self.troupe = None
        self.start_troupe()
        for name, size in sizes.items():
            path = os.path.join(self.files, name)
            write_file(path, size)
            self.push(path, name)
            self.share(path)
        self.nginx, self.nginx_pids, self.nginx_address = self.start_nginx()

    def start_troupe(self):
        self.troupe = serving.Server(self.folder, "--dev", *serving.FAST, "--set", f"server.workers={WORKERS}", "--set",
                                     "http.access_log=off", "--set", "packs.downloads_per_address=10000",
                                     "--set", "packs.requests_per_address=0")

    def push(self, path, name):
        subprocess.run([serving.TROUPE, "packs", "push", path, "--name", name, "--version", "1.0.0", "--server",
                        f"http://{self.troupe.public}", "--admin", f"http://{self.troupe.admin}", "--data",
                        self.troupe.data, "--key", os.path.join(self.folder, "publisher.key"), "--quiet"], check=True,
                       stdout=subprocess.DEVNULL, env=serving.environment(HOME=self.folder))

    def share(self, path):
        """nginx gets the very inode that we send: another copy may lie differently in the page cache."""
        digest = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]
        os.unlink(path)
        os.link(os.path.join(self.troupe.data, "packs/objects", digest), path)

    def start_nginx(self):
        folder = os.path.join(self.folder, "nginx")
        os.mkdir(folder)
        port = chassis.free_port()
        with open(os.path.join(folder, "nginx.conf"), "w", encoding="ascii") as file:
            user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""  # objects are not for everybody
            file.write(NGINX.format(folder=folder, port=port, workers=WORKERS, files=self.files, user=user))
        # pylint: disable=consider-using-with  # close() ends it
        process = subprocess.Popen(["nginx", "-c", os.path.join(folder, "nginx.conf"), "-p", folder],
                                   stderr=subprocess.DEVNULL)

        def children():
            return subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True,
                                  check=False).stdout.split()

        serving.wait_until(lambda: len(children()) == WORKERS, "nginx has its workers")
        return process, [int(child) for child in children()], f"127.0.0.1:{port}"

    def close(self):
        self.troupe.kill()
        self.nginx.terminate()
        self.nginx.wait()

    def compare(self, name, connections, options, *headers):
        """Rounds of both by turns; their results as pairs."""
        pairs = []
        ask_at_once(self.troupe.public, f"/v1/packs/{name}/download", 1, "Range: bytes=0-0")
        for number in range(-1, options.rounds):
            ours = load(self.troupe.public, f"/v1/packs/{name}/download", connections, options.seconds,
                        [self.troupe.process.pid], *headers)
            theirs = load(self.nginx_address, f"/{name}", connections, options.seconds, self.nginx_pids, *headers)
            if number >= 0:
                pairs.append((ours, theirs))
        return pairs


def write_file(path, size):
    """Bytes that do not compress; the same ones in every run."""
    block = bytes(os.urandom(MIB) if size > MIB else os.urandom(size))
    with open(path, "wb") as file:
        while size > 0:
            file.write(block[:size])
            size -= len(block)
    os.chmod(path, 0o644)


def load(address, path, connections, seconds, pids, *headers):
    """(requests per CPU-second, bytes per CPU-second, bytes per second) of one round."""
    servers = [word for pid in pids for word in ("-p", str(pid))]
    said = subprocess.run([os.path.join(serving.BUILD, "packs-load"), "-w", str(WARM_UP_S), *servers, address, path,
                           str(connections), str(seconds), *headers], capture_output=True, text=True, check=True).stdout
    requests, sent, wrong, took, used = re.match(
        r"(\d+) requests (\d+) bytes (\d+) wrong ([\d.]+) s ([\d.]+) CPU", said).groups()
    assert wrong == "0", f"{address}{path}: {said}"
    return int(requests) / float(used), int(sent) / float(used), int(sent) / float(took)


def ask_at_once(address, path, connections, *headers):
    """(answers, those that were no 200 or 206) of one request on each connection."""
    said = subprocess.run([os.path.join(serving.BUILD, "packs-load"), address, path, str(connections), "once",
                           *headers], capture_output=True, text=True, check=True).stdout
    answered, wrong = re.match(r"(\d+) requests \d+ bytes (\d+) wrong", said).groups()
    return int(answered), int(wrong)


def ratio(pairs, field):
    return statistics.median(ours[field] / theirs[field] for ours, theirs in pairs)


def median(pairs, server, field):
    return statistics.median(pair[server][field] for pair in pairs)


def size_text(size):
    for unit, text in ((GIB, "GB"), (MIB, "MB"), (KIB, "KB")):
        if size >= unit:
            return f"{size // unit} {text}"
    return f"{size} B"


def part_small(options):
    sizes = {f"small{size // KIB}": size for size in (4 * KIB, 16 * KIB, 64 * KIB)}
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(folder, sizes)
        try:
            for name, size in sizes.items():
                for connections in (1, 16, 64, 256):
                    pairs = pair.compare(name, connections, options)
                    figures.append(chassis.at_least(
                        f"{size_text(size)}, {connections} connections: requests per CPU-second ÷ nginx's",
                        ratio(pairs, 0), 1.0))
                figures.append(chassis.told(f"{size_text(size)}, 256 connections: requests per CPU-second",
                                            f"{median(pairs, 0, 0):.0f} (nginx {median(pairs, 1, 0):.0f})"))
        finally:
            pair.close()
    return figures


def part_large(options):
    sizes = {f"large{size // MIB}": size for size in (MIB, 16 * MIB, GIB)}
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(folder, sizes)
        try:
            for name, size in sizes.items():
                for connections in (1, 16, 256):
                    pairs = pair.compare(name, connections, options)
                    figures.append(chassis.at_least(
                        f"{size_text(size)}, {connections} connections: bytes per CPU-second ÷ nginx's",
                        ratio(pairs, 1), 0.95))
                figures.append(chassis.told(f"{size_text(size)}, 256 connections: GB per CPU-second",
                                            f"{median(pairs, 0, 1) / 1e9:.2f} (nginx {median(pairs, 1, 1) / 1e9:.2f})"))
        finally:
            pair.close()
    return figures


def part_ranges(options):
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(folder, {"whole": GIB})
        try:
            for size in (64 * KIB, MIB, 64 * MIB):
                first = 300 * MIB + 12345
                for connections in (1, 64, 256):
                    pairs = pair.compare("whole", connections, options, f"Range: bytes={first}-{first + size - 1}")
                    figures.append(chassis.at_least(
                        f"{size_text(size)} of 1 GB, {connections} connections: bytes per CPU-second ÷ nginx's",
                        ratio(pairs, 1), 0.95))
        finally:
            pair.close()
    return figures


def openssl_speed():
    """Bytes per second of one core, in pieces of 16 KB."""
    said = subprocess.run(["openssl", "speed", "-evp", "sha256", "-bytes", "16384", "-seconds", "2", "-mr"],
                          capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"^\+F:.*:([\d.]+)$", said, re.MULTILINE)[-1])


def part_cold(options):
    figures, speeds = [], []
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(folder, {"big": GIB, "crowd": 64 * MIB})
        try:
            for _ in range(max(3, options.rounds // 2)):
                speed = openssl_speed()
                pair.troupe.end()
                pair.start_troupe()
                with open(os.path.join(pair.files, "big"), "rb") as file:  # in the page cache, as for openssl
                    while file.read(4 * MIB):
                        pass
                pid = [pair.troupe.process.pid]
                before = chassis.cpu_ns(pid)
                ask_at_once(pair.troupe.public, "/v1/packs/big/download", 1, "Range: bytes=0-0")
                speeds.append(GIB / ((chassis.cpu_ns(pid) - before) / 1e9) / speed)
            figures.append(chassis.at_least("cold verification of 1 GB ÷ openssl speed, per CPU-second",
                                            statistics.median(speeds), 0.9))
            pair.troupe.end()
            pair.start_troupe()
            answered, wrong = ask_at_once(pair.troupe.public, "/v1/packs/crowd/download", 1000, "Range: bytes=0-999")
            hashes = pair.troupe.metric("troupe_pack_hashes_total")
            figures.append(chassis.at_most("hashes for 1,000 cold requests at once after a restart", hashes, 1))
            figures.append(chassis.at_least("of those answered rightly", answered - wrong, 1000))
        finally:
            pair.close()
    return figures


def part_warm(options):
    found = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            said = subprocess.run([os.path.join(serving.BUILD, "packs-warm"), folder], capture_output=True, text=True,
                                  check=True).stdout
        assert "all found" in said and "NOT" not in said, said
        found.append([float(number) for number in re.findall(r"([\d.]+) ns", said)])
    return [chassis.at_most("warm check without the fstat, ns", statistics.median(row[0] for row in found), 100),
            chassis.told("the same with the fstat, the reference and the counters, ns",
                         f"{statistics.median(row[1] for row in found):.0f}")]


def congestion_control():
    with open(CONGESTION_CONTROL, encoding="ascii") as file:
        return file.read().strip()


def enter_network(wanted):
    """Start again in a network of our own, where nothing but this is set and nobody else is: root can."""
    if wanted in ("", congestion_control()) or os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))):
        return
    setup = f"ip link set lo up && echo {wanted} >{CONGESTION_CONTROL}"
    begin = ["unshare", "--net", "sh", "-c", f'{setup} && exec "$@"', "-"]
    if subprocess.run([*begin, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        os.execvp(begin[0], [*begin, sys.executable, *sys.argv])


PARTS = {"small": part_small, "large": part_large, "ranges": part_ranges, "cold": part_cold, "warm": part_warm}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []])
    parser.add_argument("-n", "--rounds", type=int, default=7)
    parser.add_argument("-s", "--seconds", type=float, default=1)
    parser.add_argument("-q", "--quick", action="store_true")
    parser.add_argument("-c", "--congestion-control", choices=["reno", "cubic", "bbr", ""], default="reno")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = min(options.rounds, 3), 0.5
    enter_network(options.congestion_control)
    if not os.access(serving.TROUPE, os.X_OK):
        print(f"there is no {serving.TROUPE}: run make release")
        return 2
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384) if hard > 0 else soft, hard))
    figures, missing = [], []
    for name in options.parts or PARTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            chassis.need("nginx", "pgrep", "openssl")
            figures += PARTS[name](options)
        except chassis.Missing as why:
            missing.append(f"{name}: {why}")
    chassis.print_table(figures)
    print(f"congestion control: {congestion_control()}")
    for text in missing:
        print(f"not measured: {text}")
    if any(figure.kept is False for figure in figures):
        return 1
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
