#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that people really use fetch a pack: curl (ranges, resume), aria2 in eight segments, a browser."""
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import packing
import serving

SIZE = 24 << 20


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Site:
    """A server with one pack."""

    def __init__(self, folder, *arguments):
        self.folder = folder
        self.server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
        self.data = packing.content(1, SIZE)
        self.admin = packing.Admin(self.server)
        self.admin.register("core")
        self.admin.add("core", "1.0.0", self.data)
        self.url = f"http://{self.server.public}/v1/packs/core/download"

    def run(self, *command, check=0):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, timeout=120, check=False)
        assert done.returncode == check, f"{command}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def end(self):
        self.admin.close()
        self.server.end()


def curl_takes_ranges(folder):
    if not shutil.which("curl"):
        return "curl is not installed"
    site = Site(folder)
    data = site.data
    for text, wanted in (("0-0", data[:1]), ("100-199", data[100:200]), (f"{SIZE - 10}-", data[-10:]), ("-7", data[-7:]),
                         (f"0-{SIZE * 2}", data)):
        got = site.run("curl", "-sS", "--fail", "-r", text, site.url)
        assert got == wanted, f"{text}: {len(got)} bytes"
    # Several at once come as parts, each with its place.
    parts = site.run("curl", "-sS", "--fail", "-i", "-r", "0-4,100-104,-5", site.url)
    assert b"multipart/byteranges" in parts, parts[:400]
    for place, wanted in ((f"bytes 0-4/{SIZE}", data[:5]), (f"bytes 100-104/{SIZE}", data[100:105]),
                          (f"bytes {SIZE - 5}-{SIZE - 1}/{SIZE}", data[-5:])):
        at = parts.index(place.encode())
        begin = parts.index(b"\r\n\r\n", at) + 4
        assert parts[begin:begin + 5] == wanted, place
    assert site.run("curl", "-sS", "-o", os.devnull, "-w", "%{http_code}", "-r", f"{SIZE}-", site.url) == b"416"
    assert site.run("curl", "-sS", "-o", os.devnull, "-w", "%{http_code}", "-H", "Range: pages=1-2", site.url) == b"200"
    # HTTP/2 without TLS is the same.
    assert site.run("curl", "-sS", "--fail", "--http2-prior-knowledge", "-r", "5-9", site.url) == data[5:10]
    assert site.run("curl", "-sS", "--fail", "--http2-prior-knowledge", site.url) == data
    # Who has it is told so.
    etag = re.search(rb'(?i)\r\netag: ("[0-9a-f]{64}")', site.run("curl", "-sSI", site.url)).group(1).decode()
    assert etag == f'"{packing.digest(data)}"'
    assert site.run("curl", "-sS", "-o", os.devnull, "-w", "%{http_code}", "-H", f"If-None-Match: {etag}",
                    site.url) == b"304"
    site.end()
    return None


def curl_resumes(folder, *arguments):
    if not shutil.which("curl"):
        return "curl is not installed"
    site = Site(folder, "--set", "packs.rate_max=8MiB", *arguments)
    out = os.path.join(folder, "out")
    with subprocess.Popen(["curl", "-sS", "-o", out, site.url]) as process:
        serving.wait_until(lambda: os.path.exists(out) and os.stat(out).st_size > 0, "bytes arrive")
        process.send_signal(signal.SIGKILL)
    assert 0 < os.stat(out).st_size < SIZE
    site.run("curl", "-sS", "--fail", "-C", "-", "-o", out, site.url)
    assert read(out) == site.data
    # Defect 2: what was begun before a publish is not gone on with after it.
    half = site.data[:SIZE // 2]
    etag = f'"{packing.digest(site.data)}"'
    other = packing.content(2, SIZE)
    site.admin.add("core", "2.0.0", other)
    got = site.run("curl", "-sS", "--fail", "-H", f"Range: bytes={len(half)}-", "-H", f"If-Range: {etag}", site.url)
    assert got == other, "it mixed two files"
    got = site.run("curl", "-sS", "--fail", "-H", f"Range: bytes={len(half)}-", "-H", f"If-Range: {etag}",
                   site.url.replace("/download", "/versions/1.0.0/download"))
    assert half + got == site.data
    site.end()
    return None


def curl_uploads(folder, *arguments):
    """By HTTP/1.1, which asks before it sends (Expect), in chunks, and by HTTP/2; in two pieces each."""
    if not shutil.which("curl"):
        return "curl is not installed"
    site = Site(folder, *arguments)
    for number, how in enumerate((("--http1.1", "-H", "Expect: 100-continue"),
                                  ("--http1.1", "-H", "Transfer-Encoding: chunked"), ("--http2-prior-knowledge",))):
        data = packing.content(100 + number, 9_000_001)
        version = f"up.{number}"
        begun = site.admin.announce("core", version, data)
        url = f"http://{site.server.admin}/v1/admin/uploads/{begun['upload']}"
        for begin, end in ((0, 4_000_000), (4_000_000, len(data))):
            piece = os.path.join(folder, "piece")
            with open(piece, "wb") as file:
                file.write(data[begin:end])
            got = site.run("curl", "-sS", "--fail", "-o", os.devnull, "-w", "%{http_code} %header{upload-offset}", *how,
                           "-X", "PATCH", "-T", piece, "-H", f"Upload-Offset: {begin}", "-H",
                           f"Authorization: {site.admin.headers['Authorization']}", url)
            assert got.decode() == f"204 {end}", (how, got)
        site.admin.good("POST", f"uploads/{begun['upload']}/finish", {})
        site.admin.publish("core", version)
        assert packing.download(site.server, "/v1/packs/core/download")[2] == data, how
    site.end()
    return None


def an_upload_takes_little_memory(folder):
    """96 MiB in one request: what the server holds of it at a time is bounded."""
    site = Site(folder)
    data = packing.content(7, 96 << 20)
    before = site.server.memory_kb()
    begun = site.admin.announce("core", "large", data)
    status, headers, answer = site.admin.patch(begun["upload"], 0, data)
    assert status == 204 and int(headers["upload-offset"]) == len(data), (status, answer)
    grown = site.server.memory_kb() - before
    assert grown < 24 << 10, f"{grown} KiB more"
    site.admin.good("POST", f"uploads/{begun['upload']}/finish", {})
    site.end()


def aria2_takes_eight_segments(folder):
    if not shutil.which("aria2c"):
        return "aria2 is not installed"
    site = Site(folder)
    site.run("aria2c", "-x8", "-s8", "-k1M", "--quiet", "--dir", folder, "-o", "out", "--allow-overwrite=true",
             f"--checksum=sha-256={packing.digest(site.data)}", site.url)
    assert read(os.path.join(folder, "out")) == site.data
    partial = len(re.findall(r"path=/v1/packs/core/download status=206 ", site.server.log()))
    assert partial >= 7, f"{partial} ranges were asked for"
    # Stopped in the middle, it goes on.
    site.end()
    again = os.path.join(folder, "again")
    os.mkdir(again)
    site = Site(again, "--set", "packs.rate_max=1MiB")
    out = os.path.join(again, "slow")
    command = ["aria2c", "-x8", "-s8", "-k1M", "--quiet", "--file-allocation=none", "--auto-save-interval=1", "--dir", again,
               "-o", "slow"]
    with subprocess.Popen([*command, site.url]) as process:
        serving.wait_until(lambda: os.path.exists(out + ".aria2") and os.stat(out).st_size > 0, "bytes arrive")
        process.send_signal(signal.SIGINT)
    assert os.path.exists(out + ".aria2"), "it was over before it was stopped"
    site.end()
    port = site.server.public
    server = serving.Server(again, "--dev", *serving.FAST, listen=port)
    subprocess.run([*command, "-c", f"--checksum=sha-256={packing.digest(site.data)}", site.url], check=True, timeout=60)
    assert read(out) == site.data
    server.end()
    return None


def find_browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = os.environ.get("TROUPE_BROWSER") or shutil.which(name)
        if path:
            return path
    return None


def a_browser_downloads(folder):
    """Headless Chromium opens the address of the pack and saves it, as after a click."""
    browser = find_browser()
    if browser is None:
        return "there is no Chromium (Debian: chromium)"
    site = Site(folder)
    place = os.path.join(folder, "saved")
    profile = os.path.join(folder, "profile")
    os.makedirs(os.path.join(profile, "Default"))
    with open(os.path.join(profile, "Default/Preferences"), "w", encoding="ascii") as file:
        file.write('{"download":{"default_directory":"%s","prompt_for_download":false}}' % place)
    os.mkdir(place)
    with subprocess.Popen([browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                           "--disable-dev-shm-usage", f"--user-data-dir={profile}", site.url],
                          env=serving.environment(HOME=folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          start_new_session=True) as process:
        def saved():
            return [name for name in os.listdir(place) if not name.endswith((".crdownload", ".tmp"))]
        try:
            serving.wait_until(lambda: saved() and os.stat(os.path.join(place, saved()[0])).st_size == SIZE,
                               "the browser has saved it", 60)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert read(os.path.join(place, saved()[0])) == site.data
    site.end()
    return None


def who_begins_too_many_is_told_to_wait(folder):
    site = Site(folder, "--set", "packs.requests_per_address=3")
    connection = http.client.HTTPConnection(site.server.public, timeout=serving.LIMIT_S)
    answers = []
    for _ in range(60):
        connection.request("GET", "/v1/packs/core/download", headers={"Range": "bytes=0-9"})
        answer = connection.getresponse()
        assert answer.status in (206, 429), answer.status
        assert answer.status == 206 or answer.getheader("Retry-After"), "429 without Retry-After"
        assert (answer.status == 206) == (answer.read() == site.data[:10])
        answers.append(answer.status)
    connection.close()
    assert answers[:3] == [206] * 3 and 429 in answers, answers
    site.end()


if __name__ == "__main__":
    sys.exit(serving.run_cases([
        curl_takes_ranges, *serving.on_both(curl_resumes, curl_uploads), an_upload_takes_little_memory,
        aria2_takes_eight_segments, a_browser_downloads, who_begins_too_many_is_told_to_wait]))
