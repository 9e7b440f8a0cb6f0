#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md knows every metric that a server shows, every error label in the source and every admin route."""
import glob
import os
import re
import sys
import tempfile

sys.dont_write_bytecode = True
import serve_run  # noqa: E402  # pylint: disable=wrong-import-position  # beside this one


def read(path):
    with open(os.path.join(serve_run.ROOT, path), encoding="utf-8") as file:
        return file.read()


def main():
    if not os.access(serve_run.TROUPE, os.X_OK):
        print(f"there is no {serve_run.TROUPE}: run make release")
        return 77
    manual = read("docs/operations.md")
    prose = re.sub(r"^```.*?^```", "", manual, flags=re.DOTALL | re.MULTILINE)
    documented = set(re.findall(r"`([^`\n]+)`", prose))
    missing = []
    with tempfile.TemporaryDirectory() as folder:
        server = serve_run.Server(folder, "--dev")
        server.ask("/xrpc/_health")
        metrics = re.findall(r"^# HELP (\S+)", server.ask("/metrics", admin=True)[1], re.MULTILINE)
        server.end()
    missing += [f"the metric {name}" for name in metrics if name not in documented]
    labels = set()
    for path in glob.glob("src/*/*.c", root_dir=serve_run.ROOT):  # services have pages of their own
        labels |= set(re.findall(r'http_respond_error\(\s*\w+,\s*\d+,\s*"(\w+)"', read(path)))
    missing += [f"the error label {label}" for label in sorted(labels) if label not in documented]
    routes = re.findall(r'ROUTE\(HTTP_(\w+), "([^"]+)"', read("src/ops/admin_routes.c"))
    for method, path in routes:
        pattern = f"{method} {path.replace('{name}', 'NAME')}"
        if not any(text.split("?")[0] == pattern for text in documented):
            missing.append(f"the route {pattern}")
    for what in missing:
        print(f"not ok - docs/operations.md does not know {what}")
    passed = len(metrics) + len(labels) + len(routes) - len(missing)
    print(f"{passed} passed, {len(missing)} failed, 0 skipped")
    return 1 if missing or len(routes) < 11 or len(labels) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
