#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 and WebSocket with clients that others wrote: curl, h2load, nghttp, OpenSSL; plain and over TLS. No request fails."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))
TROUPE = os.path.join(BUILD, "troupe")
LIMIT_S = 60
HEALTH = "/xrpc/_health"


class Server:
    def __init__(self, folder, tls=False):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TROUPE_")}
        command = [TROUPE, "serve", "--dev", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data",
                   os.path.join(folder, "data")]
        if tls:
            settings = os.path.join(folder, "settings")
            with open(settings, "w", encoding="ascii") as file:
                file.write(f"[server]\ntls_certificate = {folder}/crt.pem\ntls_key = {folder}/key.pem\n")
            command += ["--config", settings]
        self.log = os.path.join(folder, "log")
        with open(self.log, "ab") as log:
            # pylint: disable=consider-using-with  # it ends in end()
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                                            text=True, env=kept)
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        found = re.search(r"public +(https?)://([\d.]+):(\d+)", said)
        assert found, f"it did not start: {said}"
        self.url = f"{found.group(1)}://{found.group(2)}:{found.group(3)}"

    def answered(self):
        """Requests of HTTP/2 in the access log."""
        with open(self.log, encoding="utf-8") as file:
            return file.read().count(" http=2\n")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LIMIT_S) == 0, self.process.returncode


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout


def load(url, requests, clients, streams, extra=()):
    """Run h2load; every request must have been answered with 200."""
    code, said = run(["h2load", "-n", str(requests), "-c", str(clients), "-m", str(streams), *extra, url + HEALTH])
    assert code == 0, said
    assert f"{requests} succeeded, 0 failed, 0 errored, 0 timeout" in said, said
    assert f"status codes: {requests} 2xx" in said, said


def test_curl_speaks_http_2_without_asking(server):
    code, said = run(["curl", "-sS", "--http2-prior-knowledge", "-w", "%{http_version} %{http_code}", server.url + HEALTH])
    assert code == 0 and said.endswith("2 200"), said


def test_curl_agrees_on_it_by_tls(server):
    for option, version in (("--http2", "2"), ("--http1.1", "1.1")):
        code, said = run(["curl", "-sS", "-k", option, "-w", "%{http_version} %{http_code}", server.url + HEALTH])
        assert code == 0 and said.endswith(f"{version} 200"), said


def test_upgrade_of_http_1_is_declined(server):
    """h2c by Upgrade is obsolete: the answer is HTTP/1.1's."""
    code, said = run(["curl", "-sS", "--http2", "-w", "%{http_version} %{http_code}", server.url + HEALTH])
    assert code == 0 and said.endswith("1.1 200"), said


def test_thousands_of_requests(server):
    for streams in (1, 32, 128):
        load(server.url, 20000, 8, streams)


def test_a_head_and_a_path_that_is_not_there(server):
    code, said = run(["curl", "-sS", "-k", "--http2-prior-knowledge" if server.url.startswith("http:") else "--http2",
                      "-I", server.url + HEALTH])
    assert code == 0 and said.startswith("HTTP/2 200") and "content-length: 19" in said, said
    code, said = run(["curl", "-sS", "-k", "--http2-prior-knowledge" if server.url.startswith("http:") else "--http2",
                      "-w", "%{http_code}", server.url + "/nothing"])
    assert code == 0 and said.endswith("404"), said


def test_a_large_upload_nobody_wants_is_refused(server):
    prior = "--http2-prior-knowledge" if server.url.startswith("http:") else "--http2"
    code, said = run(["curl", "-sS", "-k", prior, "-w", "%{http_code}", "--data-binary", "@" + TROUPE, server.url + HEALTH])
    assert said.endswith("405") or said.endswith("413"), (code, said)


def test_nghttp_asks_side_by_side(server):
    code, said = run(["nghttp", "-nv", "-m", "50", server.url + HEALTH])
    assert code == 0 and said.count(":status: 200") == 50, said[-2000:]


def test_a_drain_loses_no_answer(server):
    """SIGTERM under load: whatever the server took on arrives. (h2load also counts as failed what it had not sent yet.)"""
    result = {}
    before = server.answered()

    def work():
        result["said"] = run(["h2load", "-D", "3", "-c", "4", "-m", "16", server.url + HEALTH])[1]

    thread = threading.Thread(target=work)
    thread.start()
    while server.answered() < before + 100 and thread.is_alive():
        thread.join(0.05)
    server.end()
    thread.join(LIMIT_S)
    found = re.search(r"(\d+) succeeded", result["said"])
    assert found and int(found.group(1)) > 50, result["said"]
    assert int(found.group(1)) == server.answered() - before, (result["said"], server.answered(), before)


def main():
    for tool in ("curl", "h2load", "nghttp", "openssl"):
        if not shutil.which(tool):
            print(f"{tool} is not installed")
            sys.exit(77)
    passed = failed = 0
    plain = [test_curl_speaks_http_2_without_asking, test_upgrade_of_http_1_is_declined, test_thousands_of_requests,
             test_a_head_and_a_path_that_is_not_there, test_a_large_upload_nobody_wants_is_refused,
             test_nghttp_asks_side_by_side]
    secret = [test_curl_agrees_on_it_by_tls, test_thousands_of_requests, test_a_head_and_a_path_that_is_not_there,
              test_a_large_upload_nobody_wants_is_refused]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", f"{folder}/key.pem", "-out", f"{folder}/crt.pem", "-days", "1", "-subj", "/CN=localhost"],
                       check=True, capture_output=True)
        for kind, tests in (("plain", plain), ("tls", secret), ("drain", [test_a_drain_loses_no_answer])):
            server = Server(folder, tls=kind == "tls")
            try:
                for test in tests:
                    name = f"{kind}: {test.__name__[5:]}"
                    try:
                        test(server)
                        print(f"ok - {name}")
                        passed += 1
                    except (AssertionError, OSError, subprocess.SubprocessError) as error:
                        print(f"not ok - {name}\n# {error}")
                        failed += 1
            finally:
                if server.process.poll() is None:
                    server.end()
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
