#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md, "Behind a proxy": the block for nginx as it is printed, with other ports and a certificate of our own,
in front of a server. Requests, answers as they come, WebSockets, large bodies and the client's address go through it."""
import base64
import grp
import http.client
import json
import os
import pwd
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import serving

CLIENT = "127.0.0.2"  # another address than the proxy's own
PROXY = ("--set", "server.trusted_proxies=127.0.0.1")
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")


def printed():
    with open(os.path.join(serving.ROOT, "docs/operations.md"), encoding="utf-8") as file:
        section = file.read().split("\n## Behind a proxy\n")[1].split("\n## ")[0]
    return re.search(r"^```nginx\n(.*?)^```$", section, re.DOTALL | re.MULTILINE).group(1)


def replaced(text, old, new):
    assert text.count(old) == 1, f"the block does not have {old!r} once"
    return text.replace(old, new)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Proxy:
    """nginx with the printed block, in a folder of its own; one process, so that ending it ends all of it."""

    def __init__(self, folder, upstream, user=None):
        self.folder = os.path.join(folder, "nginx")
        self.port = free_port()
        os.mkdir(self.folder)
        os.chmod(folder, 0o755)
        os.chmod(self.folder, 0o755)
        self.certificate()
        block = replaced(printed(), "listen 443 ssl;", f"listen 127.0.0.1:{self.port} ssl;")
        block = replaced(block, "/etc/letsencrypt/live/chat.example.org/fullchain.pem", f"{self.folder}/cert.pem")
        block = replaced(block, "/etc/letsencrypt/live/chat.example.org/privkey.pem", f"{self.folder}/key.pem")
        block = replaced(block, "server 127.0.0.1:8080;", f"server {upstream};")
        folders = "\n".join(f"{kind}_temp_path {self.folder}/{kind};"
                            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        path = os.path.join(self.folder, "nginx.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"master_process off;\ndaemon off;\npid {self.folder}/pid;\n"
                       f"error_log {self.folder}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\n{folders}\n{block}}}\n")
        if user:
            for name in ("", *os.listdir(self.folder)):
                shutil.chown(os.path.join(self.folder, name), user)
        with open(os.path.join(self.folder, "said"), "wb") as said:
            # pylint: disable=consider-using-with  # it ends in end()
            self.process = subprocess.Popen([NGINX, "-p", self.folder, "-c", path, "-e", f"{self.folder}/error.log"],
                                            stdin=subprocess.DEVNULL, stdout=said, stderr=said, user=user, group=user,
                                            extra_groups=[] if user else None)
        serving.Server.alive.append(self.process)  # whoever fails, it is ended
        serving.wait_until(self.is_there, "nginx listens")

    def certificate(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        f"{self.folder}/key.pem", "-out", f"{self.folder}/cert.pem", "-days", "2", "-subj",
                        "/CN=chat.example.org", "-addext", "subjectAltName=DNS:chat.example.org"],
                       check=True, capture_output=True, timeout=serving.LIMIT_S)

    def is_there(self):
        assert self.process.poll() is None, self.errors()
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except ConnectionError:
            return False

    def errors(self):
        with open(f"{self.folder}/error.log", encoding="utf-8") as file:
            return file.read()

    def connect(self):
        """A TLS connection from CLIENT."""
        context = ssl.create_default_context(cafile=f"{self.folder}/cert.pem")
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=serving.LIMIT_S, source_address=(CLIENT, 0))
        return context.wrap_socket(plain, server_hostname="chat.example.org")

    def ask(self, path, method="GET", headers=None, body=None):
        connection = http.client.HTTPSConnection("chat.example.org", timeout=serving.LIMIT_S)
        connection.sock = self.connect()
        connection.request(method, path, headers=headers or {}, body=body)
        answer = connection.getresponse()
        said = answer.read().decode()
        connection.close()
        return answer.status, said

    def end(self):
        self.process.terminate()
        self.process.wait(serving.LIMIT_S)
        serving.Server.alive.remove(self.process)


def missing():
    if NGINX is None:
        return "nginx is not installed"
    return None if shutil.which("openssl") else "openssl is not installed"


def ticket(server, folder):
    status, answer = serving.call(server, folder, "getSubscriptionTicket", {"convoId": "convo"})
    assert status == 200, answer
    return f"/xrpc/{serving.PREFIX}subscribeConvoEvents?convoId=convo&ticket={answer['ticket']}"


def say_something(server, folder, number):
    status, answer = serving.call(server, folder, "addMembers", {"convoId": "convo", "didList": [f"did:example:{number}"]})
    assert status == 200, answer


def application_message(group, epoch, size):
    """As much of an MLS PrivateMessage as a delivery service can see."""
    return (b"\0\1\0\2" + bytes([len(group)]) + group.encode() + epoch.to_bytes(8, "big") + b"\1\0\x10" + b"s" * 16 +
            (size | 0x80000000).to_bytes(4, "big") + b"c" * size)


def until(client, text):
    """Reads until the text has come: if nginx kept it back, never."""
    said, deadline = b"", time.monotonic() + serving.LIMIT_S
    while text not in said:
        assert time.monotonic() < deadline, f"there is no {text!r} in {said!r}"  # the stream itself goes on for ever
        part = client.recv(4096)
        assert part, f"it ended with {said!r}"
        said += part
    return said


def requests_and_streams_go_through(folder):
    if missing():
        return missing()
    server = serving.Server(folder, "--dev", *serving.FAST, *PROXY)
    proxy = Proxy(folder, server.public)
    for _ in range(3):
        status, said = proxy.ask("/xrpc/_health")
        assert status == 200 and "version" in said, (status, said, proxy.errors())
    serving.create_convo(server, folder, "convo")
    # Events as they come.
    with proxy.connect() as client:
        client.sendall(f"GET {ticket(server, folder)} HTTP/1.1\r\nHost: chat.example.org\r\nAccept: text/event-stream\r\n\r\n"
                       .encode())
        assert until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200"), proxy.errors()
        say_something(server, folder, 1)
        until(client, b'"epoch":1,')
        say_something(server, folder, 2)
        until(client, b'"epoch":2,')
    with proxy.connect() as client:
        key = base64.b64encode(os.urandom(16)).decode()
        client.sendall(f"GET {ticket(server, folder)} HTTP/1.1\r\nHost: chat.example.org\r\nUpgrade: websocket\r\n"
                       f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode())
        assert until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 101"), proxy.errors()
        say_something(server, folder, 3)
        until(client, b"commit")
    # A body over nginx's usual limit, which is 1 MiB.
    body = json.dumps({"convoId": "convo", "msgId": "large", "epoch": 3,
                       "ciphertext": {"$bytes": base64.b64encode(application_message("convo", 3, 3 << 20)).decode()}})
    status, said = proxy.ask(f"/xrpc/{serving.PREFIX}sendMessage", "POST", {
        "Content-Type": "application/json", "Authorization": f"Bearer {serving.tokens(folder, 'sendMessage')[0]}"}, body)
    assert status == 200, (status, said, proxy.errors())
    proxy.end()
    server.end()
    return None


def the_address_is_the_clients(folder):
    if missing():
        return missing()
    for settings, wanted in ((PROXY, CLIENT), ((), "127.0.0.1")):
        place = os.path.join(folder, wanted)
        os.mkdir(place)
        server = serving.Server(place, "--dev", *settings)
        proxy = Proxy(place, server.public)
        # Who makes up an address is not believed.
        status, _ = proxy.ask("/xrpc/_health?x", headers={"X-Forwarded-For": "203.0.113.7"})
        assert status == 200, proxy.errors()
        proxy.end()
        server.end()
        peers = re.findall(r"path=/xrpc/_health status=200 .*peer=(\S+)", server.log())
        assert peers == [wanted], (settings, peers, server.log())
    return None


def a_unix_socket_is_opened_for_a_group(folder):
    if missing():
        return missing()
    if os.geteuid() != 0:
        return "only root can give the socket to another group"
    if not serving.has_user("www-data") or not serving.has_user("nobody"):
        return "there is no www-data or no nobody"
    run = os.path.join(folder, "run")
    os.mkdir(run, 0o750)
    shutil.chown(run, "nobody", grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name)
    os.chmod(folder, 0o755)
    path = os.path.join(run, "public.sock")
    server = serving.Server(folder, "--dev", "--set", "server.user=nobody", *PROXY, listen=f"unix:{path}")
    assert os.stat(path).st_mode & 0o777 == 0o700, oct(os.stat(path).st_mode)
    proxy = Proxy(folder, f"unix:{path}", "www-data")
    assert proxy.ask("/xrpc/_health")[0] == 502 and "Permission denied" in proxy.errors(), proxy.errors()
    with open(os.path.join(serving.ROOT, "docs/operations.md"), encoding="utf-8") as file:
        commands = re.findall(r"^ExecStartPost=\+(.*)$", file.read(), re.MULTILINE)
    assert len(commands) == 2, commands
    for command in commands:
        subprocess.run(command.replace("/run/troupe", run).split(), check=True)
    status, said = proxy.ask("/xrpc/_health")
    assert status == 200, (status, said, proxy.errors())
    proxy.end()
    server.end()
    assert f"peer={CLIENT}" in server.log(), server.log()
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases([requests_and_streams_go_through, the_address_is_the_clients,
                                a_unix_socket_is_opened_for_a_group]))
