#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""docs/api describes packs as they are.

- packs.yaml is OpenAPI 3.1 in the small part of YAML that api_description.py reads: references lead somewhere and everything is
  referred to, what is required is described, every {part} of a path is a parameter;
- it has the routes of routes.c and no others, with their methods, largest bodies and who may call them;
- every label in the sources is in errors-packs.md with its status, and every label of that page is answered somewhere;
- the answers that the unit tests of packs get, where they are built, are as described: status, label, members and types;
- the settings and metrics of packs are in docs/operations.md.

With an argument, the root of another tree.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import api_description as common  # noqa: E402  # pylint: disable=wrong-import-position  # beside this one

SERVICE = os.path.join(common.ROOT, "src/services/packs")
# Of the HTTP layer, the gates and the admin listener.
ALWAYS = {"PayloadTooLarge", "RateLimitExceeded", "Overloaded", "TokenMissing", "TokenForm", "AuthRequired", "Forbidden"}
UNSEEN = {"TooManyUploads", "TokenReplayed"}  # a 503 says Overloaded; sessions are not used up
PROGRAMS = ("test_packs_catalogue", "test_packs_admin", "test_packs_release")
check, read = common.check, common.read


def sources():
    """But for the people's devices, which are another service."""
    found = {}
    for path in sorted(glob.glob(SERVICE + "/*.c")):
        if not os.path.basename(path).startswith("user"):
            with open(path, encoding="utf-8") as file:
                found[os.path.basename(path)] = common.without_comments(file.read())
    return found


def structure(api):
    tags, seen = {tag["name"] for tag in api["tags"]}, set()
    schemes = set(api["components"]["securitySchemes"])
    for path, method, operation in common.operations(api):
        where = "%s %s" % (method, path)
        name = operation.get("operationId")
        if not name or name in seen:
            yield where + ": operationId is not its own"
        seen.add(name)
        if not operation.get("summary") or not set(operation.get("tags", [])) <= tags:
            yield where + ": has no summary, or an unknown tag"
        if not operation.get("security") or not {scheme for need in operation["security"] for scheme in need} <= schemes:
            yield where + ": has no security, or an unknown one"
        if "requestBody" in operation and method in ("GET", "DELETE"):
            yield where + ": has no body"
        parts = [parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"]
        if sorted(parts) != sorted(re.findall(r"\{(\w+)\}", path)):
            yield where + ": its parameters are not the parts of its path"
        for status, response in operation["responses"].items():
            if "$ref" not in response and not response.get("description"):
                yield "%s: %s has no description" % (where, status)
            if any(label not in response["description"] for label in response.get("x-errors", [])):
                yield "%s: the description of %s leaves a label out" % (where, status)
            if status >= "400" and "$ref" not in response and not response.get("x-errors"):
                yield "%s: %s names no label" % (where, status)
        if not any(status < "300" for status in operation["responses"]):
            yield where + ": never succeeds"
        if path.startswith("/v1/admin/") and not {"401", "403", "429", "503", "504"} <= set(operation["responses"]):
            yield where + ": what about 401, 403, 429, 503 and 504?"
    for where, schema in common.contents(api):
        yield from common.is_schema_wrong(schema, where)
    for name, schema in api["components"]["schemas"].items():
        yield from common.is_schema_wrong(schema, name)


# ---- routes

def routes():
    """{(method, path): (largest body, kind)} of routes.c."""
    text = common.without_comments(read("src/services/packs/routes.c")).replace("\\\n", " ")
    sizes = dict(re.findall(r"\b(NO_BODY|SMALL|MEDIUM) = ([0-9 <]+)", text))
    sizes.update(re.findall(r"#define (UPLOAD_BODY_MAX) \(\(size_t\)([0-9 <]+)\)", read("src/services/packs/upload.h")))

    def size(expression):
        product = [int(part) for part in sizes.get(expression.strip(), expression).split("<<")]
        return product[0] << sum(product[1:])

    found, table = {}, text[text.index("static const struct http_route routes"):]
    kinds = {"OPEN_READ": "OPEN", "PUBLIC_READ": "PUBLIC", "DOWNLOAD": "DOWNLOAD", "ADMIN_READ": "ADMIN", "EDIT": "ADMIN", "CALL": "ADMIN"}
    for row, method, path, rest in re.findall(r'\b([A-Z_]+)\((?:HTTP_([A-Z]+), )?"([^"]+)"([^()]*)\)', table):
        values = [value.strip() for value in rest.split(",")[1:]]
        # A row without a method reads, and has no body. A public read names its caching first.
        size_max = "NO_BODY" if not method else values[2 if row == "PUBLIC_READ" else 1]
        found[method or "GET", "/v1/" + path] = (size(size_max), kinds[row])
    return found


SECURITY = {"OPEN": [{"nobody": []}], "PUBLIC": [{"nobody": []}, {"session": []}], "DOWNLOAD": [{"nobody": []}, {"session": []}],
            "ADMIN": [{"adminSession": []}, {"adminToken": []}]}


def same_routes(api, there):
    described = {(method, path): operation for path, method, operation in common.operations(api)}
    for method, path in sorted(set(there) - set(described)):
        yield "%s %s is not in packs.yaml" % (method, path)
    for method, path in sorted(set(described) - set(there)):
        yield "%s %s is no route" % (method, path)
    for key in sorted(set(described) & set(there)):
        most, kind = there[key]
        if described[key].get("x-body-bytes-max", 0) != most:
            yield "%s %s takes bodies of %d bytes" % (key + (most,))
        if described[key]["security"] != SECURITY[kind]:
            yield "%s %s: who may call it?" % key


# ---- labels

def labels(files):
    found = {}
    for text in files.values():
        for status, label in re.findall(r'\b([45]\d\d),\s*"([A-Z][A-Za-z]+)"', text):
            found.setdefault(label, set()).add(status)
    for label in re.findall(r"\b(Manifest\w+|Signature\w+|Key[A-Z]\w+)", read("src/manifest/manifest.h").split("struct manifest_refusal")[1].split("}")[0]):
        found.setdefault(label, set()).add("422")
    return found


def errors_page():
    rows = {}
    for line in read("docs/api/errors-packs.md").split("\n"):
        match = re.match(r"\| `(\w+)` \| ([\d, ]*) \| ([^|]*) \| ([^|]*) \|$", line)
        if match:
            rows.setdefault(match[1], []).append((set(re.findall(r"\d+", match[2])), match[3].strip(), match[4].strip()))
    return rows


def same_labels(there, page):
    for label in sorted(set(there) - set(page) - ALWAYS):
        yield "%s is not in errors-packs.md" % label
    for label in sorted(set(page) - set(there)):
        yield "%s of errors-packs.md is never answered" % label
    for label, rows in sorted(page.items()):
        if len(rows) > 1 or not rows[0][1] or not rows[0][2]:
            yield "%s: one row, with a meaning and what to do" % label
        if not there.get(label, set()) <= rows[0][0]:
            yield "%s is answered with %s" % (label, ", ".join(sorted(there[label])))


def same_described_labels(api, page):
    described = {}
    for _, _, operation in common.operations(api):
        for status, response in operation["responses"].items():
            for label in response.get("x-errors", []):
                described.setdefault(label, set()).add(status)
    for label in sorted(set(page) - set(described) - UNSEEN):
        yield "no call of packs.yaml answers %s" % label
    for label in sorted(set(described) - set(page) - ALWAYS):
        yield "%s of packs.yaml is not in errors-packs.md" % label
    for label in sorted(set(described) & set(page)):
        if not described[label] <= page[label][0][0]:
            yield "%s: packs.yaml says %s" % (label, ", ".join(sorted(described[label])))


# ---- answers of a server, as the unit tests saw them

def operation_of(api, method, path):
    best = None
    for template, said, operation in common.operations(api):
        pattern = re.sub(r"\{\w+\}", "[^/]+", template)
        if said == method and re.fullmatch(pattern, path) and (best is None or "{" not in template):
            best = operation
    return best


def same_answers(api, lines):
    seen = set()
    for line in lines:
        method, target, status, body = line.rstrip("\n").split("\t", 3)
        path = target.split("?")[0]
        operation = operation_of(api, method, path)
        if operation is None or '"InvalidPath"' in body:  # no call was reached
            if status not in ("400", "404", "405"):
                yield "%s %s answers %s and is not described" % (method, path, status)
            continue
        name = operation["operationId"]
        response = operation["responses"].get(status)
        if response is None:
            yield "%s answers %s" % (name, status)
            continue
        if "$ref" in response:
            response = api["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        if status < "300":
            seen.add(name)
        if "application/json" not in response.get("content", {}):
            continue
        value = json.loads(body)
        yield from sorted(set(common.differs(api, response["content"]["application/json"]["schema"], value, name + " " + status)))
        if "x-errors" in response and status != "401" and value["error"] not in response["x-errors"]:
            yield "%s %s answers %s" % (name, status, value["error"])
    for _, _, operation in common.operations(api):
        if operation["operationId"] not in seen | {"changePackKeys"}:
            yield "no answer of %s was seen" % operation["operationId"]


def check_answers(api):
    name = "answers of a server are as described"
    places = os.environ.get("TROUPE_TESTS")
    folders = [places] if places else [os.path.join(common.ROOT, "build", build, "test") for build in ("debug", "asan", "clang")]
    folder = next((place for place in folders if all(os.path.exists(os.path.join(place, program)) for program in PROGRAMS)), None)
    if not folder:
        print("ok - %s # SKIP there is no %s: make build/debug first" % (name, PROGRAMS[0]))
        return 1
    with tempfile.TemporaryDirectory() as place:
        path, failed = os.path.join(place, "answers"), []
        for program in PROGRAMS:
            done = subprocess.run([os.path.join(folder, program)], env={**os.environ, "TROUPE_ANSWERS": path}, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.STDOUT, timeout=300, check=False)
            failed += [program] if done.returncode != 0 else []
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    check(name, [program + " fails" for program in failed] or sorted(set(same_answers(api, lines))))
    print("# %d answers" % len(lines))
    return 0


# ---- the manual

def manual(files):
    text = read("docs/operations.md")
    for name in sorted(set(re.findall(r'\.name = "(troupe_pack\w+)"', "\n".join(files.values())))):
        if "`%s`" % name not in text:
            yield "docs/operations.md does not know the metric %s" % name
    for key in sorted(set(re.findall(r'\.key = "(packs\.\w+)"', read("src/ops/config_table.c")))):
        if "`%s`" % key not in text:
            yield "docs/operations.md does not know the setting %s" % key


def main():
    text, files, there = read("docs/api/packs.yaml"), sources(), routes()
    try:
        api = common.Block(text).whole()
    except common.Trouble as trouble:
        check("packs.yaml can be read", [str(trouble)])
        return 0
    check("packs.yaml can be read", [])
    try:
        import yaml
        check("another reader reads the same", [] if yaml.safe_load(text) == api else ["PyYAML reads something else"])
    except ImportError:
        print("ok - another reader reads the same # SKIP python3-yaml is not here")
    check("the description is whole", structure(api))
    check("references lead somewhere and everything is referred to", common.references(api))
    check("the routes are as described", same_routes(api, there))
    page = errors_page()
    check("errors-packs.md has every label with its status", same_labels(labels(files), page))
    check("calls are described with the labels of errors-packs.md", same_described_labels(api, page))
    check("settings and metrics are in the manual", manual(files))
    skipped = check_answers(api)
    print("# %d routes, %d labels, %d schemas" % (len(there), len(page), len(api["components"]["schemas"])))
    return skipped


if __name__ == "__main__":
    skips = main()
    print("%d passed, %d failed, %d skipped" % (common.passed, len(common.problems), skips))
    sys.exit(1 if common.problems else 0)
