# SPDX-License-Identifier: Apache-2.0
"""What the scripts about packs share: the admin API of a server, uploads in pieces, and `troupe packs` and
`troupe check packs` as commands. Not a test itself."""
import hashlib
import http.client
import json
import os
import random
import subprocess

import serving


def content(seed, size):
    return random.Random(seed).randbytes(size)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def run(server, *arguments, home=None, check=0, limit_s=120, **more):
    """A command of `troupe`; `check` is the exit status it must have, None for any."""
    done = subprocess.run([serving.TROUPE, *arguments], capture_output=True, text=True, timeout=limit_s, check=False,
                          cwd=server.folder if server else None,
                          env=serving.environment(HOME=home or (server.folder if server else "/nonexistent"), **more))
    assert check is None or done.returncode == check, \
        f"troupe {' '.join(arguments)}: exit status {done.returncode}, wanted {check}\n{done.stdout}{done.stderr}"
    return done


def check_packs(folder, *arguments):
    """The violations and notes that `troupe check packs` names, as (check, subject, text)."""
    done = subprocess.run([serving.TROUPE, "check", "packs", "--json", "--data", os.path.join(folder, "data"), *arguments],
                          capture_output=True, text=True, timeout=120, check=False, env=serving.environment())
    assert done.returncode in (0, 1), f"{done.stdout}{done.stderr}"
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["violations"] else 0), done.stdout
    return [(found["check"], found["subject"], found["text"]) for found in report["violations"] + report["notes"]]


class Admin:
    """The admin listener of a server, on one connection."""

    def __init__(self, server):
        self.server = server
        with open(os.path.join(server.data, "admin.token"), encoding="ascii") as file:
            self.headers = {"Authorization": "Bearer " + file.read().strip()}
        self.connection = http.client.HTTPConnection(server.admin, timeout=serving.LIMIT_S)

    def ask(self, method, path, body=None, headers=None):
        """Status, headers (lower case) and JSON."""
        if isinstance(body, dict):
            body = json.dumps(body)
        self.connection.request(method, "/v1/admin/" + path, body=body, headers={**self.headers, **(headers or {})})
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(text) if text else {}

    def good(self, method, path, body=None, headers=None):
        status, _, answer = self.ask(method, path, body, headers)
        assert 200 <= status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def register(self, name):
        return self.good("POST", "packs", {"package_id": name})

    def announce(self, name, version, data, **more):
        return self.good("POST", f"packs/{name}/uploads",
                         {"version": version, "size": len(data), "sha256": digest(data), **more})

    def patch(self, upload, offset, data):
        return self.ask("PATCH", f"uploads/{upload}", data, {"Upload-Offset": str(offset)})

    def upload(self, name, version, data, piece=1 << 20, **more):
        """Announced or gone on with, sent in pieces, finished."""
        begun = self.announce(name, version, data, **more)
        offset = begun["offset"]
        while offset < len(data):
            status, headers, answer = self.patch(begun["upload"], offset, data[offset:offset + piece])
            assert status == 204, (status, answer)
            offset = int(headers["upload-offset"])
        return self.good("POST", f"uploads/{begun['upload']}/finish", {})

    def publish(self, name, version):
        return self.good("POST", f"packs/{name}/versions/{version}/publish", {})

    def add(self, name, version, data):
        self.upload(name, version, data)
        self.publish(name, version)

    def show(self, name):
        return self.good("GET", f"packs/{name}")

    def close(self):
        self.connection.close()


def download(server, path, headers=None):
    """Status, headers (lower case) and bytes of a GET on the public listener."""
    connection = http.client.HTTPConnection(server.public, timeout=serving.LIMIT_S)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def objects(server):
    return set(os.listdir(os.path.join(server.data, "packs/objects")))


def incoming(server):
    return set(os.listdir(os.path.join(server.data, "packs/incoming")))
