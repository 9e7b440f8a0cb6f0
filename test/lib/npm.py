# SPDX-License-Identifier: Apache-2.0
"""Packages of the npm registry, and a Node that is new enough for them, in folders under build/. Not a test itself."""
import fcntl
import os
import re
import shutil
import subprocess

from serving import ROOT

NODE_MAJOR = 20


class Skip(Exception):
    """The text says why a script, or a part of it, cannot run."""


def install(folder, source, programs):
    """Installs the packages of package.json in `source` to `folder`, once, and copies the programs there, where Node looks
    for packages. Returns the path of Node."""
    for name in ("node", "npm"):
        if not shutil.which(name):
            raise Skip(f"{name} is not installed")
    with open(os.path.join(source, "package.json"), encoding="utf-8") as file:
        wanted = file.read()
    install_once(folder, wanted, os.path.join(source, ".npmrc"), f"the packages of {os.path.relpath(source, ROOT)}")
    for path in programs:  # another script may start one of them just now: never show it half a file
        copy = os.path.join(folder, f".copy.{os.getpid()}")
        shutil.copy(path, copy)
        os.rename(copy, os.path.join(folder, os.path.basename(path)))
    return find_node()


def install_once(folder, wanted, settings, what):
    """Scripts that run together wait for the first. A package.json.done with the same text says that it is complete."""
    os.makedirs(folder, exist_ok=True)
    listed, done = (os.path.join(folder, name) for name in ("package.json", "package.json.done"))
    with open(os.path.join(folder, ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(done):
            with open(done, encoding="utf-8") as file:
                if file.read() == wanted:
                    return
        with open(listed, "w", encoding="utf-8") as file:
            file.write(wanted)
        shutil.copy(settings, folder)
        ran = subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True,
                             check=False, stdin=subprocess.DEVNULL)
        if ran.returncode != 0:
            print(ran.stdout + ran.stderr)
            raise Skip(f"{what} cannot be had from the npm registry")
        shutil.copy(listed, done)


def find_node():
    """The system's Node, or where that is older, the one that npm has as a package."""
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(re.match(r"v(\d+)", said).group(1)) >= NODE_MAJOR:
        return shutil.which("node")
    folder = os.path.join(ROOT, "build/node")
    install_once(folder, f'{{"private": true, "dependencies": {{"node": "{NODE_MAJOR}"}}}}\n',
                 os.path.join(ROOT, "test/clients/.npmrc"), f"Node {NODE_MAJOR}, needed because this is {said},")
    return os.path.join(folder, "node_modules/node/bin/node")
