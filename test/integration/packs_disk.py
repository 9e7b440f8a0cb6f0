#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A disk that is full, and files that are not what they were: each is a documented error, nothing is lost, and it goes
on when the trouble is over."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import packing
import serving

MIB = 1 << 20


class Small:
    """A file system with little room; needs root."""

    def __init__(self, path, size):
        self.path = path
        os.makedirs(path, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0750", "tmpfs", path], check=False,
                              capture_output=True, text=True)
        self.problem = done.stderr.strip() if done.returncode else None

    def grow(self, size):
        subprocess.run(["mount", "-o", f"remount,size={size}", self.path], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while serving.Server.alive:
            process = serving.Server.alive.pop()
            process.kill()
            process.wait()
        if not self.problem:
            subprocess.run(["umount", "-l", self.path], check=False)


def why_not():
    if os.geteuid() != 0:
        return "a small file system can be mounted by root alone"
    if not shutil.which("mount"):
        return "there is no mount"
    return None


def serve(folder, *arguments):
    server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
    return server, packing.Admin(server)


def full_disk_in_an_upload(folder, *arguments):
    reason = why_not()
    if reason:
        return reason
    with Small(os.path.join(folder, "data/packs"), "4m") as small:
        if small.problem:
            return f"no file system can be mounted here: {small.problem}"
        os.chmod(os.path.join(folder, "data"), 0o700)
        server, admin = serve(folder, *arguments)
        live, large = packing.content(1, MIB), packing.content(2, 8 * MIB)
        admin.register("core")
        admin.add("core", "1", live)
        begun = admin.announce("core", "2", large)
        offset, status = 0, 204
        while status == 204:
            status, headers, answer = admin.patch(begun["upload"], offset, large[offset:offset + MIB // 4])
            offset = int(headers.get("upload-offset", offset))
        assert status == 507 and answer["error"] == "DiskFull", (status, answer)
        admin.close()
        admin = packing.Admin(server)
        offset = admin.good("GET", f"uploads/{begun['upload']}")["offset"]
        assert 0 < offset < len(large), offset
        assert os.stat(os.path.join(server.data, "packs/incoming", begun["upload"])).st_size == offset
        status, _, answer = admin.ask("POST", f"uploads/{begun['upload']}/finish", {})
        assert status == 409 and answer["error"] == "UploadIncomplete", (status, answer)
        assert packing.download(server, "/v1/packs/core/download")[2] == live, "the live file was touched"
        # Somebody makes room: it goes on where it stopped.
        small.grow("16m")
        admin.upload("core", "2", large)
        assert packing.download(server, "/v1/packs/core/download")[2] == live
        admin.publish("core", "2")
        assert packing.download(server, "/v1/packs/core/download")[2] == large
        admin.close()
        server.end()
        assert not packing.check_packs(folder, *arguments)
    return None


def full_disk_of_the_database(folder):
    """Everything is on the disk that is full, the database too."""
    reason = why_not()
    if reason:
        return reason
    with Small(os.path.join(folder, "data"), "12m") as small:
        if small.problem:
            return f"no file system can be mounted here: {small.problem}"
        server, admin = serve(folder)
        live, more = packing.content(1, MIB), packing.content(2, MIB)
        admin.register("core")
        admin.add("core", "1", live)
        filler = os.path.join(server.data, "filler")
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        wanted = {"version": "2", "size": len(more), "sha256": packing.digest(more)}
        refused = 0
        for _ in range(3):
            status, _, answer = admin.ask("POST", "packs/core/uploads", wanted)
            if status in (200, 201):  # there was room for a row, in what the database has already
                status, _, answer = admin.patch(answer["upload"], answer["offset"], more[:MIB // 4])
            assert status in (507, 503), (status, answer)
            refused += 1
            admin.close()
            admin = packing.Admin(server)
        assert refused == 3
        assert packing.download(server, "/v1/packs/core/download")[2] == live
        os.unlink(filler)

        def works():
            try:
                admin.upload("core", "2", more)
                return True
            except AssertionError:
                return False
        serving.wait_until(works, "it works again")
        admin.publish("core", "2")
        assert packing.download(server, "/v1/packs/core/download")[2] == more
        admin.close()
        server.end()
        assert not packing.check_packs(folder)
    return None


def files_that_are_not_what_they_were(folder, *arguments):
    """Truncated, longer, exchanged, gone, unreadable: a documented error each, and never a wrong byte."""
    server, admin = serve(folder, *arguments)
    data = packing.content(1, 300_000)
    path = os.path.join(server.data, "packs/objects", packing.digest(data))
    admin.register("core")
    admin.add("core", "1", data)

    def replace(content):
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.path.lexists(path):
            os.unlink(path)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)

    def make_folder():
        replace(None)
        os.mkdir(path)

    def make_link():
        replace(None)
        other = os.path.join(folder, "elsewhere")
        with open(other, "wb") as file:
            file.write(data)
        os.symlink(other, path)

    for what in (lambda: replace(data[:-1]), lambda: replace(b""), lambda: replace(data + b"x"),
                 lambda: replace(b"x" + data[1:]), lambda: replace(None), make_folder, make_link):
        replace(data)
        status, _, body = packing.download(server, "/v1/packs/core/download")
        assert status == 200 and body == data, status
        server.end()  # what is open is served on: a restart sees the disk
        what()
        server, admin = serve(folder, *arguments)
        status, headers, body = packing.download(server, "/v1/packs/core/download")
        assert status in (404, 500, 503) and b'"error"' in body, (status, headers, body[:200])
    server.end()
    assert packing.check_packs(folder, *arguments), "it finds nothing wrong"
    replace(data)
    assert not packing.check_packs(folder, *arguments)


if __name__ == "__main__":
    sys.exit(serving.run_cases([
        *serving.on_both(full_disk_in_an_upload), full_disk_of_the_database,
        *serving.on_both(files_that_are_not_what_they_were)]))
