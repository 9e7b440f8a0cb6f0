#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md knows every metric that a server shows or the source defines, every error label in the source and
every admin route; and the limits it gives are those of the source."""
import glob
import os
import re
import sys
import tempfile

sys.dont_write_bytecode = True
import serve_run  # noqa: E402  # pylint: disable=wrong-import-position  # beside this one

# Written like labels, and none: the type of a key in a DID document; what the verifier answers with 503 Overloaded.
NO_LABELS = {"JsonWebKey", "NoMemory"}
UNITS = {"": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "ms": 10**6, "s": 10**9, "h": 3600 * 10**9, "pages": 1}


def read(path):
    with open(os.path.join(serve_run.ROOT, path), encoding="utf-8") as file:
        return file.read()


def sources(*folders):
    for folder in folders:
        for path in glob.glob(f"src/{folder}/*.[ch]", root_dir=serve_run.ROOT):
            yield read(path)


def metrics_of_the_source():
    """`.name = "x", .help …` and `{ "x", NULL, "help", METRIC_…`; ours also where a function is given the name."""
    names = set()
    for text in sources("*", "services/*", "services/*/*"):
        names |= set(re.findall(r'"((?:troupe|process)_[a-z0-9_]+)"', text))
        names |= set(re.findall(r'\.name = "([a-z0-9_]+)",\s*\.(?:labels|help|kind)\b', text))
        names |= set(re.findall(r'\{\s*"([a-z0-9_]+)",\s*(?:NULL|"(?:[^"\\]|\\.)*"),\s*"[^;{}]*?METRIC_', text))
        names |= set(re.findall(r'\b(?:X|TIME)\(\w+, (?:(?:COUNTER|DIRECT|GAUGE), )?"([a-z0-9_]+)",', text))
    return names


def labels_of_the_source():
    """Of the layers; services have pages of their own. Tables of refusals have nothing but labels in this form; a label of
    one word is known by what it is given to."""
    labels = set()
    for text in sources("auth", "http", "ops"):
        labels |= set(re.findall(r'"((?:[A-Z][a-z]+){2,}[A-Z]?)"', text))
        labels |= set(re.findall(r'(?:error|refuse)\([^;"]*?"([A-Z][A-Za-z]+)"', text))
        labels |= set(re.findall(r'\blabel = "([A-Z][A-Za-z]+)"', text))
    return labels - NO_LABELS


def source_values(path, name):
    """What the source says, in bytes, nanoseconds or pieces."""
    text = read(os.path.join("src", path))
    if name == "PRAGMA cache_size":
        return [int(kib) << 10 for kib in re.findall(r"PRAGMA cache_size=-(\d+)", text)]
    found = []
    for value in re.findall(rf"\b{name} =\s*([^,;}}/]+)", text):
        value = value.split("?")[-1].split(":")[0] if "== 0 ?" in value else value
        value = re.sub(r"UINT64_C\((\d+)\)", r"\1", value)
        value = re.sub(r"TR_SECONDS\((\d+)\)", r"(\1 * 10**9)", value).strip()
        if re.fullmatch(r"[\d\s()*<]+", value):
            number = eval(value)  # pylint: disable=eval-used  # digits and operators
            if re.search(r"_S(_|$)", name):
                number *= 10**9
            elif re.search(r"_MS(_|$)", name):
                number *= 10**6
            found.append(number)
    return found


def limits_of_the_manual(manual):
    table = re.search(r"<!-- limits -->\n(.*?)<!-- end -->", manual, re.DOTALL).group(1)
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[1]:
            value = re.match(r"(\d+) ?([A-Za-z]*)", cells[1])
            path, name = re.fullmatch(r"`([^`]+)`: `([^`]+)`", cells[3]).groups()
            yield cells[0], int(value[1]) * UNITS[value[2]], path, name


def wrong_limits(manual):
    for what, value, path, name in limits_of_the_manual(manual):
        values = source_values(path, name)
        if value not in values:
            yield f"has another limit for: {what}. {path} says {name} = {values}"


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
        shown = set(re.findall(r"^# HELP (\S+)", server.ask("/metrics", admin=True)[1], re.MULTILINE))
        server.end()
    defined = metrics_of_the_source()
    missing += [f"does not know the metric {name}" for name in sorted(shown | defined) if name not in documented]
    # What a server shows and the search does not find would be a hole in the search.
    missing += [f"cannot be held against {name}: it is not found in the source" for name in sorted(shown - defined)]
    labels = labels_of_the_source()
    missing += [f"does not know the error label {label}" for label in sorted(labels) if label not in documented]
    routes = re.findall(r'ROUTE\(HTTP_(\w+), "([^"]+)"', read("src/ops/admin_routes.c"))
    for method, path in routes:
        pattern = f"{method} {path.replace('{name}', 'NAME')}"
        if not any(text.split("?")[0] == pattern for text in documented):
            missing.append(f"does not know the route {pattern}")
    missing += wrong_limits(manual)
    limits = len(list(limits_of_the_manual(manual)))
    for what in missing:
        print(f"not ok - docs/operations.md {what}")
    passed = len(shown | defined) + len(labels) + len(routes) + limits - len(missing)
    print(f"{passed} passed, {len(missing)} failed, 0 skipped")
    return 1 if missing or len(routes) < 11 or len(labels) < 80 or len(defined) < 100 or limits < 55 else 0


if __name__ == "__main__":
    sys.exit(main())
