#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""docs/api describes the delivery service as it is.

- delivery.yaml is OpenAPI 3.1 in the small part of YAML that is read here: references lead somewhere and everything
  is referred to, what is required is described, types are known, names are unique;
- it has the routes of routes.c and no others, with their methods, largest bodies and who needs no token;
- every route has a row in the table of who may call what, and what the table expects is described;
- what handlers read and write under a name is described, and what is described is read or written somewhere;
- errors.md has every label the service answers with, and its status; so has delivery.yaml; a test expects each of them;
- the tables of the declared calls (test_delivery_calls writes them, where it is built) are as described: parameters, members, types;
- the answers that test_delivery_authz gets, where it is built, are as described: members and their types.

With an argument, the root of another tree.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVICE = os.path.join(ROOT, "src/services/delivery")
PREFIX = "/xrpc/blue.catbird.mls."
ALWAYS = {"PayloadTooLarge", "RateLimitExceeded", "Overloaded"}  # of the HTTP layer
# Written as a label, but never seen under it: a 503 says Overloaded. Of any errand, should its rows be gone.
UNSEEN = {"Busy", "Conflict"}
# Labels that no test can bring about, each with its reason. There are none.
UNTESTED = set()

passed, problems = 0, []


def check(name, wrong):
    global passed
    wrong = list(wrong)
    if wrong:
        problems.append(name)
        print("not ok - " + name)
        for line in wrong[:40]:
            print("  " + line)
    else:
        passed += 1
        print("ok - " + name)


def read(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


# ---- YAML: block maps and lists, JSON strings, plain words and numbers, flow maps and lists on one line

class Trouble(Exception):
    pass


TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([{}\[\],:])|([^\s{}\[\],":#][^{}\[\],":]*?)(?=\s*(?:[{}\[\],]|:\s|$)))')
WORD = re.compile(r"[A-Za-z$/_][\w$./-]*$|-?\d+(\.\d+)*$")


def plain(text):
    if not WORD.match(text):
        raise Trouble("quote %r" % text)
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    if re.match(r"-?\d+$", text):
        return int(text)
    if re.match(r"-?\d+\.\d+$", text):
        return float(text)
    return text


class Flow:
    def __init__(self, text):
        self.tokens, at = [], 0
        while at < len(text.rstrip()):
            match = TOKEN.match(text, at)
            if not match:
                raise Trouble("cannot read %r" % text[at:])
            string, mark, word = match.groups()
            self.tokens.append(("text", json.loads(string)) if string else ("mark", mark) if mark else ("text", plain(word)))
            at = match.end()
        self.at = 0

    def next(self, wanted=None):
        if self.at == len(self.tokens):
            raise Trouble("the line ends too early")
        token = self.tokens[self.at]
        if wanted and token != ("mark", wanted):
            raise Trouble("wanted %s, not %r" % (wanted, token[1]))
        self.at += 1
        return token

    def is_next(self, mark):
        return self.at < len(self.tokens) and self.tokens[self.at] == ("mark", mark)

    def value(self):
        kind, value = self.next()
        if kind == "text":
            return value
        if value == "[":
            return self.items("]", lambda into: into.append(self.value()), [])
        if value == "{":
            return self.items("}", self.pair, {})
        raise Trouble("unexpected %s" % value)

    def items(self, end, take, into):
        while not self.is_next(end):
            take(into)
            if not self.is_next(end):
                self.next(",")
        self.next(end)
        return into

    def pair(self, into):
        key = self.next()[1]
        self.next(":")
        put(into, key, self.value())

    def whole(self):
        value = self.value()
        if self.at != len(self.tokens):
            raise Trouble("there is more on the line")
        return value


def put(into, key, value):
    if key in into:
        raise Trouble("%s is there twice" % key)
    into[key] = value


KEY = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s"#\[{][^\s:]*):(?: (.*))?$')


class Block:
    """Lines as (indent, text, number)."""

    def __init__(self, text):
        self.lines, self.at = [], 0
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                self.lines.append([len(line) - len(line.lstrip()), line.strip(), number])

    def node(self, indent):
        line = self.lines[self.at]
        return self.list(indent) if line[1].startswith("- ") else self.map(indent)

    def here(self, indent):
        return self.at < len(self.lines) and self.lines[self.at][0] == indent

    def list(self, indent):
        result = []
        while self.here(indent) and self.lines[self.at][1].startswith("- "):
            line = self.lines[self.at]
            rest = line[1][2:]
            if rest[0] not in "[{" and KEY.match(rest):
                line[0], line[1] = indent + 2, rest
                result.append(self.map(indent + 2))
            else:
                result.append(Flow(rest).whole())
                self.at += 1
        return result

    def map(self, indent):
        result = {}
        while self.here(indent):
            match = KEY.match(self.lines[self.at][1])
            if not match:
                raise Trouble("wanted KEY: VALUE")
            key = json.loads(match[1]) if match[1][0] == '"' else match[1]
            self.at += 1
            if match[2]:
                put(result, key, Flow(match[2]).whole())
            elif self.at < len(self.lines) and self.lines[self.at][0] > indent:
                put(result, key, self.node(self.lines[self.at][0]))
            else:
                raise Trouble("%s has no value" % key)
        return result

    def whole(self):
        try:
            value = self.node(0)
            if self.at < len(self.lines):
                raise Trouble("wrong indentation")
            return value
        except Trouble as trouble:
            line = self.lines[min(self.at, len(self.lines) - 1)][2]
            raise Trouble("line %d: %s" % (line, trouble)) from None


# ---- the description by itself

TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
WORDS = {"type", "properties", "required", "items", "enum", "const", "anyOf", "minLength", "maxLength", "minimum", "maximum",
         "minItems", "maxItems", "pattern", "format", "contentEncoding", "description", "default", "additionalProperties", "$ref"}


def is_schema_wrong(schema, where):
    if not isinstance(schema, dict) or not schema:
        yield where + ": is no schema"
        return
    for word in schema:
        if word not in WORDS:
            yield "%s: %s is no word of a schema" % (where, word)
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in TYPES:
            yield "%s: there is no type %s" % (where, kind)
    if not {"type", "enum", "const", "anyOf", "$ref"} & set(schema):
        yield where + ": says nothing of what it is"
    for name in schema.get("required", []):
        if name not in schema.get("properties", {}):
            yield "%s: %s is required and not described" % (where, name)
    if schema.get("type") == "array" and "items" not in schema:
        yield where + ": a list of what?"
    for low, high in (("minLength", "maxLength"), ("minimum", "maximum"), ("minItems", "maxItems")):
        if low in schema and high in schema and schema[low] > schema[high]:
            yield "%s: %s is more than %s" % (where, low, high)
    if "pattern" in schema:
        re.compile(schema["pattern"])
    inner = [(name, value) for name, value in schema.get("properties", {}).items()]
    inner += [("item", schema["items"])] if "items" in schema else []
    inner += [("value", schema["additionalProperties"])] if "additionalProperties" in schema else []
    inner += [(str(i), value) for i, value in enumerate(schema.get("anyOf", []))]
    for name, value in inner:
        yield from is_schema_wrong(value, where + "." + name)


def walk(value):
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from walk(inner)


def contents(api):
    """Every (where, schema) but the components'."""
    for path, method, operation in operations(api):
        where = operation.get("operationId", path)
        for parameter in operation.get("parameters", []):
            yield where + "?" + parameter.get("name", ""), parameter.get("schema")
        for part in [operation.get("requestBody", {})] + list(operation.get("responses", {}).values()):
            for media in part.get("content", {}).values():
                yield where, media.get("schema")
    for name, response in api["components"]["responses"].items():
        for media in response["content"].values():
            yield name, media.get("schema")


def operations(api):
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def structure(api):
    if not re.match(r"3\.1\.\d+$", str(api.get("openapi"))):
        yield "openapi must be 3.1.x"
    for word in ("title", "version"):
        if not isinstance(api.get("info", {}).get(word), str):
            yield "info.%s must be a text" % word
    tags, seen = {tag["name"] for tag in api["tags"]}, set()
    schemes = set(api["components"]["securitySchemes"])
    for path, method, operation in operations(api):
        where = "%s %s" % (method, path)
        name = operation.get("operationId")
        if path != PREFIX + str(name) or name in seen or method not in ("GET", "POST"):
            yield where + ": operationId is not its own"
        seen.add(name)
        if not operation.get("summary") or not set(operation.get("tags", [])) <= tags:
            yield where + ": has no summary, or an unknown tag"
        if not {scheme for need in operation.get("security", []) for scheme in need} <= schemes or not operation.get("security"):
            yield where + ": has no security, or an unknown one"
        is_stream = "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
        for status in ("200", "401", "429", "503") + (() if is_stream else ("504",)):
            if status not in operation["responses"]:
                yield "%s: what about %s?" % (where, status)
        if "requestBody" in operation and method == "GET":
            yield where + ": a GET has no body"
        names = [parameter["name"] for parameter in operation.get("parameters", [])]
        if len(names) != len(set(names)) or any(p.get("in") != "query" for p in operation.get("parameters", [])):
            yield where + ": parameters are of the query, once each"
        for status, response in operation["responses"].items():
            if "$ref" not in response and not response.get("description"):
                yield "%s: %s has no description" % (where, status)
            if "x-errors" in response and any(label not in response["description"] for label in response["x-errors"]):
                yield "%s: the description of %s leaves a label out" % (where, status)
            if status >= "400" and "$ref" not in response and not response.get("x-errors"):
                yield "%s: %s names no label" % (where, status)
    for where, schema in contents(api):
        yield from is_schema_wrong(schema, where)
    for name, schema in api["components"]["schemas"].items():
        yield from is_schema_wrong(schema, name)


def references(api):
    used = {value["$ref"] for value in walk(api) if isinstance(value, dict) and "$ref" in value}
    there = {"#/components/%s/%s" % (kind, name) for kind in ("schemas", "responses") for name in api["components"][kind]}
    for name in sorted(used - there):
        yield name + " leads nowhere"
    for name in sorted(there - used):
        yield name + " is not referred to"


# ---- against the sources

def sources():
    """But for what operators ask and what their push gateway is told, which docs/operations.md describes."""
    paths = glob.glob(SERVICE + "/**/*.[ch]", recursive=True) + glob.glob(os.path.join(ROOT, "src/services/common/*.[ch]"))
    return {os.path.relpath(path, SERVICE): open(path, encoding="utf-8").read() for path in sorted(paths)
            if not path.endswith(("/admin_api.c", "/push.c"))}


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def routes():
    text = without_comments(read("src/services/delivery/api/calls.h"))
    sizes = dict(re.findall(r"\b(API_\w+) = ([0-9 <]+)", read("src/services/delivery/api/api.h")))

    def size(expression):
        product = [int(part) for part in sizes.get(expression.strip(), expression).split("<<")]
        return product[0] << sum(product[1:])

    found = {name: (method, size(most), False)
             for method, name, most in re.findall(r'(?:ACT|CALL)\((\w+), "(\w+)", \w+, ([^()]*)\)', text)}
    for name in re.findall(r'STREAM_ROUTE\("(\w+)"\)', without_comments(read("src/services/delivery/api/routes.c"))):
        found[name] = ("GET", 0, True)  # the macro's method, and a ticket will do
    return found


def same_routes(api, there):
    described = {operation["operationId"]: (method, operation) for _, method, operation in operations(api)}
    for name in sorted(set(there) - set(described)):
        yield name + " is not in delivery.yaml"
    for name in sorted(set(described) - set(there)):
        yield name + " is no route"
    for name in sorted(set(described) & set(there)):
        (method, most, is_open), (said, operation) = there[name], described[name]
        if method != said:
            yield "%s is a %s" % (name, method)
        if method == "POST" and operation.get("x-body-bytes-max") != most:
            yield "%s takes bodies of %d bytes" % (name, most)
        if is_open != ({"ticket": []} in operation["security"]):
            yield name + ": who needs no token?"


MACRO = re.compile(r"#define (\w+)(\([^)]*\))?((?:[^\n\\]|\\.|\\\n)*)")


def table():
    """name -> {(status, label)} of authz_table.h."""
    text = without_comments(read("test/unit/delivery/authz_table.h"))
    macros = {name: body for name, _, body in MACRO.findall(text)}

    def pairs(text, seen=frozenset()):
        found = set(re.findall(r'(?:NO|OWNER|PHONE)\((\d+), ("\w+")\)', text))
        for word in set(re.findall(r"\b[A-Z_]{4,}\b", text)) & set(macros) - seen:
            found |= pairs(macros[word], seen | {word})
        return found

    rows = text[text.index("authz_rows[] = {"):]
    starts = list(re.finditer(r'^    \{ "(\w+)', rows, re.M))
    ends = [start.start() for start in starts[1:]] + [len(rows)]
    return {start[1]: {(status, label.strip('"')) for status, label in pairs(rows[start.start():end])}
            for start, end in zip(starts, ends)}


def same_table(api, rows, there):
    for name in sorted(set(there) - set(rows)):
        yield name + " has no row in authz_table.h"
    for name in sorted(set(rows) - set(there)):
        yield name + " of authz_table.h is no route"
    for _, _, operation in operations(api):
        for status, label in sorted(rows.get(operation["operationId"], ())):
            if label not in labels_of(api, operation, status) | labels_of(api, operation, status, True):
                yield "%s: %s %s is in the table and not described" % (operation["operationId"], status, label)


def labels_of(api, operation, status, common=False):
    response = operation["responses"].get(status, {})
    if common and status == "401":
        response = api["components"]["responses"]["Unauthorized"]
    if "$ref" in response:
        response = api["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    return set(response.get("x-errors", []))


def described_names(api):
    inputs, outputs, schemas = set(), set(), api["components"]["schemas"]

    def names(schema, into, seen):
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            if name not in seen:
                names(schemas[name], into, seen | {name})
            return
        for name, value in schema.get("properties", {}).items():
            into.add(name)
            names(value, into, seen)
        for value in [schema[word] for word in ("items", "additionalProperties") if word in schema] + schema.get("anyOf", []):
            names(value, into, seen)

    for _, _, operation in operations(api):
        for parameter in operation.get("parameters", []):
            inputs.add(parameter["name"])
        for media in operation.get("requestBody", {}).get("content", {}).values():
            names(media["schema"], inputs, frozenset())
        for response in operation["responses"].values():
            for media in response.get("content", {}).values():
                names(media["schema"], outputs, frozenset())
    return inputs, outputs


READ = r'(?:json_(?:need|may)_\w+|json_expect_member)\s*\(\s*[&\w.>-]+,\s*"(\w+)"'
READ_QUERY = r'http_parameter\w*\s*\(\s*request,\s*"(\w+)"'
WRITTEN = r'(?:json_put_\w+|text_put_\w+)\s*\(\s*&?\w+,\s*"(\$?\w+)"'


def same_fields(api, files):
    inputs, outputs = described_names(api)
    text = without_comments("\n".join(files.values()))
    policy = set(re.findall(r'\{ "(\w+)", PARAM_(?:BOOL|INT)', files["api/policy_api.c"]))
    # For whoever operates the server, not for callers.
    view = next(text for name, text in files.items() if name.endswith(".c") and "\nstatic void state_answer" in text)
    state = view[view.index("\nstatic void state_answer"):].split("\n}\n", 1)[0]
    known = set(re.findall(r'"(\$?\w+)"', text))
    for name in sorted((inputs | outputs) - known):
        yield "no handler knows %s" % name
    for name in sorted((set(re.findall(READ, text) + re.findall(READ_QUERY, text)) | policy) - inputs):
        yield "%s is read and not described" % name
    for name in sorted((set(re.findall(WRITTEN, text)) | policy) - outputs - set(re.findall(WRITTEN, state))):
        yield "%s is written and not described" % name


# ---- against answers of a server: the cells of the table, as test_delivery_authz saw them

def schema_of(api, schema):
    while "$ref" in schema:
        schema = api["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


IS = {"object": lambda v: isinstance(v, dict), "array": lambda v: isinstance(v, list), "string": lambda v: isinstance(v, str),
      "integer": lambda v: isinstance(v, int) and not isinstance(v, bool), "boolean": lambda v: isinstance(v, bool),
      "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool), "null": lambda v: v is None}


def differs(api, schema, value, where):
    """What is in an answer is described, and what is described as there is there."""
    schema = schema_of(api, schema)
    if "anyOf" in schema:
        found = [list(differs(api, inner, value, where)) for inner in schema["anyOf"]]
        if all(found):
            yield from min(found, key=len)
        return
    if "const" in schema and value != schema["const"] or "enum" in schema and value not in schema["enum"]:
        yield "%s is %r" % (where, value)
    kinds = schema.get("type")
    if kinds and not any(IS[kind](value) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        yield "%s is %r, no %s" % (where, value, kinds)
        return
    if isinstance(value, str) and (not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)) or
                                   not re.search(schema.get("pattern", ""), value)):
        yield "%s is %r" % (where, value)
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield "%s is %r" % (where, value)
    if isinstance(value, list):
        for inner in value:
            yield from differs(api, schema["items"], inner, where + "[]")
    if isinstance(value, dict) and "properties" in schema:
        for name in sorted(set(schema.get("required", [])) - set(value)):
            yield "%s has no %s" % (where, name)
        for name, inner in value.items():
            if name in schema["properties"]:
                yield from differs(api, schema["properties"][name], inner, where + "." + name)
            else:
                yield "%s.%s is not described" % (where, name)


def same_answers(api, lines, there):
    described = {operation["operationId"]: operation for _, _, operation in operations(api)}
    good = set()
    for line in lines:
        name, status, body = line.rstrip("\n").split("\t", 2)
        response = described[name]["responses"].get(status)
        if response is None:
            yield "%s answers %s" % (name, status)
            continue
        if "$ref" in response:
            response = api["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        if status == "200":
            good.add(name)
        if "application/json" not in response.get("content", {}):
            continue
        yield from sorted(set(differs(api, response["content"]["application/json"]["schema"], json.loads(body), name + " " + status)))
    for name in sorted(set(there) - good):
        yield "no answer of %s was seen" % name


# ---- against the tables of the declared calls

def body_schema(api, operation):
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        if kind == "application/json":
            return schema_of(api, media["schema"])
    return {}


def type_of(api, schema):
    """The word of test_calls.c for a schema."""
    schema = schema_of(api, schema)
    if "anyOf" in schema:
        kinds = {type_of(api, inner) for inner in schema["anyOf"]}
        return "bytes" if "bytes" in kinds else "array" if "array" in kinds else sorted(kinds)[0]
    kinds = schema.get("type", [])
    kind = next((kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"), None)
    if kind is None and ("const" in schema or "enum" in schema):
        value = schema.get("const", (schema.get("enum") or [""])[0])
        return "boolean" if isinstance(value, bool) else "string"
    if kind == "object" and "$bytes" in schema.get("properties", {}):
        return "bytes"
    if kind == "object" and "additionalProperties" in schema:
        return "map"
    return kind


def differs_param(api, where, param, schema, is_required):
    kind, wanted = type_of(api, schema), param["type"]
    if param["required"] and not is_required:
        yield "%s is required" % where
    if kind != wanted and wanted != "any" and not (wanted == "bytes" and kind == "string"):
        yield "%s is a %s, not a %s" % (where, wanted, kind)
    schema = schema_of(api, schema)
    if param["bounded"] and (schema.get("minimum", param["min"]), schema.get("maximum", param["max"])) != (param["min"], param["max"]):
        yield "%s is %d to %d" % (where, param["min"], param["max"])
    if "choices" in param and "enum" in schema and set(schema["enum"]) != set(param["choices"]):
        yield "%s is one of %s" % (where, ", ".join(param["choices"]))


def same_params(api, name, call, operation):
    described = {p["name"]: (p["schema"], p.get("required", False)) for p in operation.get("parameters", [])}
    body = body_schema(api, operation)
    described.update({key: (value, key in body.get("required", [])) for key, value in body.get("properties", {}).items()})
    for param in call["params"]:
        where = "%s.%s" % (name, param["name"])
        if param["name"] not in described:
            yield where + " is read and not described"
        else:
            yield from differs_param(api, where, param, *described[param["name"]])
    for key in sorted(set(described) - {param["name"] for param in call["params"]}):
        yield "%s.%s is described and not read" % (name, key)


def is_shared(api, schema):
    """Several calls or events refer to it: a member that is not required may be of another of them."""
    return "$ref" in schema and sum(value.get("$ref") == schema["$ref"] for value in walk(api) if isinstance(value, dict)) > 1


def same_members(api, where, fields, schema):
    shared, schema = is_shared(api, schema), schema_of(api, schema)
    described, required = schema.get("properties", {}), schema.get("required", [])
    for field in fields:
        name = "%s.%s" % (where, field["name"])
        if field["name"] not in described:
            yield name + " is written and not described"
            continue
        inner = described[field["name"]]
        if type_of(api, inner) != field["type"]:
            yield "%s is a %s, not a %s" % (name, field["type"], type_of(api, inner))
        if field["required"] != (field["name"] in required) and not (field["required"] and shared):
            yield "%s is %s" % (name, "always there" if field["required"] else "sometimes left out")
        if "choices" in field and not set(field["choices"]) >= set(schema_of(api, inner).get("enum", field["choices"])):
            yield "%s is one of %s" % (name, ", ".join(field["choices"]))
        if field["type"] == "object":
            yield from same_members(api, name, field["fields"], inner)
        elif field["type"] == "array" and "name" in field["fields"][0]:
            yield from same_members(api, name, field["fields"], schema_of(api, inner)["items"])
        elif field["type"] == "array" and type_of(api, schema_of(api, inner)["items"]) != field["fields"][0]["type"]:
            yield "%s is a list of %ss" % (name, field["fields"][0]["type"])
    for key in sorted(set(described) - {field["name"] for field in fields} - (set() if not shared else set(described) - set(required))):
        yield "%s.%s is described and not written" % (where, key)


def same_calls(api, calls):
    described = {operation["operationId"]: operation for _, _, operation in operations(api)}
    for name, call in sorted(calls.items()):
        yield from same_params(api, name, call, described[name])
        if "fields" not in call:  # an act: the answers below are held against the description
            continue
        answer = described[name]["responses"]["200"]["content"].get("application/json", {}).get("schema", {})
        yield from same_members(api, name, call["fields"], answer)


def built(test, variable):
    """The test program of a build, or None."""
    builds = [os.path.join(ROOT, "build", build, "test", test) for build in ("debug", "asan", "clang")]
    return os.environ.get(variable) or next((path for path in builds if os.path.exists(path)), None)


def check_calls(api):
    name, program = "the tables of the declared calls are as described", built("test_delivery_calls", "TROUPE_CALLS_TEST")
    if not program:
        print("ok - %s # SKIP there is no test_delivery_calls: make build/debug first" % name)
        return 1
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "calls")
        done = subprocess.run([program], env={**os.environ, "TROUPE_CALLS": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=300, check=False)
        calls = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else {}
    check(name, ["%s fails" % program] if done.returncode != 0 or not calls else same_calls(api, calls))
    print("# %d declared calls" % len(calls))
    return 0


def check_answers(api, there):
    name = "answers of a server are as described"
    program = built("test_delivery_authz", "TROUPE_AUTHZ")
    if not program:
        print("ok - %s # SKIP there is no test_delivery_authz: make build/debug first" % name)
        return 1
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "answers")
        done = subprocess.run([program, "is_as_the_table_says"], env={**os.environ, "TROUPE_ANSWERS": path}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300, check=False)
        lines = open(path, encoding="utf-8").readlines() if os.path.exists(path) else []
    if done.returncode != 0:
        check(name, ["%s fails" % program])
    else:
        check(name, sorted(set(same_answers(api, lines, there))))
        print("# %d answers" % len(lines))
    return 0


# ---- labels

LABEL = r"[A-Z][a-z]+(?:[A-Z][a-z]*)*"
REFUSALS = re.compile(r"(?<!#define )\b(?:http_respond_error|api_refuse|(?:act|op)_fail|(?:act|convo|package|call)_refuse|fail|answer_error|refuse|ROLE_CHECK)\s*\(([^;]*?)\)\s*;", re.S)
# A refusal of a table of calls, or of another table: a status, a label and a sentence.
ROWS = re.compile(r'(?:REFUSE\(|\{)\s*([45]\d\d),\s*"(%s)"' % LABEL)
TOO_MANY = re.compile(r'REFUSE_MANY\(\s*\w+,\s*"(%s)"' % LABEL)


def labels(files):
    found = {}
    for text in files.values():
        # A sentence may have a semicolon, which ends a call elsewhere.
        text = re.sub(r'"(?:[^"\\\n]|\\.)*"', lambda found: found[0].replace(";", ","), without_comments(text))
        # Whatever looks like one: two humps, and no label of MLS or of a header.
        for label in re.findall(r'"([A-Z][a-z]+(?:[A-Z][a-z]+)+)"', text):
            found.setdefault(label, set())
        for status, label in ROWS.findall(text) + [("429", label) for label in TOO_MANY.findall(text)]:
            found.setdefault(label, set()).add(status)
        for call in REFUSALS.findall(text):
            statuses = set(re.findall(r"\b([45]\d\d)\b", call)) or ({"404"} if "SELECT" in call else set())
            names = re.findall(r'"(%s)"' % LABEL, call)
            ordered = re.findall(r"\b([45]\d\d)\b", call)
            for at, label in enumerate(names):
                # `is ? 403 : 404, is ? "One" : "Other"` says which belongs to which by its order.
                found.setdefault(label, set()).update([ordered[at]] if len(ordered) == len(names) else statuses)
    return found


def errors_page():
    rows = {}
    for line in read("docs/api/errors.md").split("\n"):
        match = re.match(r"\| `(\w+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", line)
        if match:
            rows.setdefault(match[1], []).append((set(re.findall(r"\d+", match[2])), match[3].strip(), match[4].strip()))
    return rows


def same_labels(there, page):
    for label in sorted(set(there) - set(page)):
        yield "%s is not in errors.md" % label
    for label in sorted(set(page) - set(there)):
        yield "%s of errors.md is never answered" % label
    for label, rows in sorted(page.items()):
        if len(rows) > 1 or not rows[0][1] or not rows[0][2]:
            yield "%s: one row, with a meaning and what to do" % label
        if not there.get(label, set()) <= rows[0][0]:
            yield "%s is answered with %s" % (label, ", ".join(sorted(there[label])))


def tested_labels(page):
    """What stands in a string of a test that talks to the service. The simulations do not count: they know labels they may never meet."""
    text = ""
    for pattern in ("test/unit/delivery/*.[ch]", "test/integration/*.py", "test/clients/*.mjs"):
        for path in sorted(glob.glob(os.path.join(ROOT, pattern))):
            if not os.path.basename(path).startswith("api_"):
                with open(path, encoding="utf-8") as file:
                    text += file.read()
    tested = {label for label in page if re.search(r"""["'`]%s\b""" % label, text)}
    for label in sorted(set(page) - tested - UNTESTED):
        yield "no test expects %s" % label
    for label in sorted(UNTESTED & tested | UNTESTED - set(page)):
        yield "%s is no exception: there is a test, or no such label" % label


def same_described_labels(api, page):
    described = {}
    for value in [operation["responses"] for _, _, operation in operations(api)]:
        for status, response in value.items():
            for label in response.get("x-errors", []):
                described.setdefault(label, set()).add(status)
    common = {label for response in api["components"]["responses"].values() for label in response["x-errors"]}
    for label in sorted(set(page) - set(described) - common - UNSEEN):
        yield "no call of delivery.yaml answers %s" % label
    for label in sorted(set(described) - set(page) - ALWAYS):
        yield "%s of delivery.yaml is not in errors.md" % label
    for label in sorted(set(described) & set(page)):
        if not described[label] <= page[label][0][0]:
            yield "%s: delivery.yaml says %s" % (label, ", ".join(sorted(described[label])))
    tokens = set(re.findall(r'X\(JWT_\w+, "(\w+)"', read("src/auth/jwt.h"))) - {"Ok", "NoMemory"} | {"TokenReplayed"}
    for label in sorted(tokens ^ set(api["components"]["responses"]["Unauthorized"]["x-errors"])):
        yield "%s: Unauthorized and jwt.h differ" % label


def main():
    text, files, there = read("docs/api/delivery.yaml"), sources(), routes()
    try:
        api = Block(text).whole()
    except Trouble as trouble:
        check("delivery.yaml can be read", [str(trouble)])
        return 0
    check("delivery.yaml can be read", [])
    try:
        import yaml
        check("another reader reads the same", [] if yaml.safe_load(text) == api else ["PyYAML reads something else"])
    except ImportError:
        print("ok - another reader reads the same # SKIP python3-yaml is not here")
    check("the description is whole", structure(api))
    check("references lead somewhere and everything is referred to", references(api))
    check("the routes are as described", same_routes(api, there))
    check("every route has a row of who may call it, as described", same_table(api, table(), there))
    check("names in requests and answers are described", same_fields(api, files))
    page, answered = errors_page(), labels(files)
    check("errors.md has every label with its status", same_labels(answered, page))
    check("calls are described with the labels of errors.md", same_described_labels(api, page))
    check("every label of errors.md has a test", tested_labels(page))
    skipped = check_calls(api) + check_answers(api, there)
    print("# %d routes, %d labels, %d schemas" % (len(there), len(page), len(api["components"]["schemas"])))
    return skipped


if __name__ == "__main__":  # api_packs.py takes the reader and the comparisons from here
    skips = main()
    print("%d passed, %d failed, %d skipped" % (passed, len(problems), skips))
    sys.exit(1 if problems else 0)
