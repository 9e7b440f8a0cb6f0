#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Check what a compiler does not: the rules of STYLE.md that a machine can judge.

    tools/tidy.py [all|docs|CHECK...]

Every check names the file, the line and what to do. A line of C may be exempted from a banned call
by a comment on it that says why:  /* tidy: allow NAME, because ... */
The last line is "N passed, N failed, N skipped", in checks.
"""
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = "build/debug/libtroupe.so"
LIBRARY_LAYERS = ("base", "runtime")
STRICT = ["-std=c17", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes",
          "-Wundef", "-Wshadow", "-Wconversion", "-fsyntax-only"]
STRICT_CXX = ["-std=c++20", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-Wconversion",
              "-Wno-missing-field-initializers", "-fsyntax-only"]
# The inline functions of TR_ACTOR are compiled where a program uses it.
CXX_USE = """
#include <troupe/troupe.h>
struct counter { int count; };
struct counter_message { int add; };
extern const struct tr_type counter_type;
TR_ACTOR(counter, struct counter, struct counter_message)
int tidy_use(void)
{
    struct tr_system_options options = { TR_SIZED(tr_system_options), .workers = 1 };
    struct tr_system *system;
    return tr_system_create(&options, &system);
}
"""

# The C runtime's, and the countdown of simulated faults, which only builds with tests have (src/base/alloc.c).
GLOBALS_ALLOWED = {"completed.0", "__dso_handle", "fault", "fault_on"}

# Never: no bound, hidden state, or no way to report an error.
BANNED = {
    "strcpy": "use memcpy or snprintf with a length", "strcat": "use snprintf with a length",
    "sprintf": "use snprintf", "vsprintf": "use vsnprintf", "gets": "use fgets",
    "strtok": "use strcspn, or strtok_r", "atoi": "use strtol and check it", "atol": "use strtol and check it",
    "atoll": "use strtoll and check it", "atof": "use strtod and check it",
    "gmtime": "use gmtime_r", "localtime": "use localtime_r", "ctime": "use strftime",
    "asctime": "use strftime", "rand": "use the seeded generator", "srand": "use the seeded generator",
    "random": "use the seeded generator", "srandom": "use the seeded generator",
    "drand48": "use the seeded generator", "lrand48": "use the seeded generator",
}
# Only where the outside world is let in, or a run could not be replayed from its seed.
OUTSIDE = {name: "ask the environment table: time and randomness come through it" for name in (
    "clock_gettime", "gettimeofday", "timespec_get", "time", "clock", "clock_nanosleep", "nanosleep",
    "usleep", "sleep", "thrd_sleep", "getrandom", "getentropy", "arc4random", "__rdtsc", "_rdrand64_step",
    "__builtin_ia32_rdtsc")}
OUTSIDE_ALLOWED = re.compile(r"^src/(base/env[^/]*|runtime/env_[^/]*)\.c$")
# A test that sleeps is slow on one machine and wrong on another.
SLEEPS = {name: "step the simulated clock, or wait for an event with a deadline" for name in (
    "sleep", "usleep", "nanosleep", "clock_nanosleep", "thrd_sleep")}


class Tidy:
    def __init__(self):
        self.problems = []
        self.texts = {}
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                                capture_output=True, check=False)
        names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
        if "src/README.md" not in names:  # an unpacked archive, or a copy inside build/
            names = [os.path.relpath(os.path.join(folder, name), ROOT)
                     for folder, folders, files in os.walk(ROOT)
                     for name in files
                     if not os.path.relpath(folder, ROOT).startswith(("build", ".git"))]
        self.files = sorted(name for name in set(names) if name and os.path.isfile(os.path.join(ROOT, name)))

    def text(self, path):
        if path not in self.texts:
            with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
                self.texts[path] = file.read()
        return self.texts[path]

    def problem(self, path, line, what):
        self.problems.append(f"{path}:{line}: {what}")

    def c_files(self, *folders):
        return [path for path in self.files if path.endswith((".c", ".h")) and path.startswith(folders)]


class Skip(Exception):
    pass


def without_comments(text, strings=True):
    """Blanks comments, and with strings also literals; lines keep their numbers."""
    def blank(found):
        word = found.group(0)
        if word.startswith(("/*", "//")):
            return re.sub(r"[^\n]", " ", word)
        return word[0] + " " * (len(word) - 2) + word[0] if strings and "\n" not in word else word
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", blank, text, flags=re.DOTALL)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


# ---- layers -------------------------------------------------------------------------------------

def layer_table(tidy):
    """The rows "| order | `folder` | ..." of src/README.md."""
    orders = {}
    for order, names in re.findall(r"^\| *(\d+) *\|([^|]*)\|", tidy.text("src/README.md"), re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", names):
            orders[name.rstrip("/")] = int(order)
    return orders


def layer_of(path, orders):
    """path is relative to src/. The longest row that is a folder above it, or the file itself."""
    while path:
        if path in orders:
            return path
        path = os.path.dirname(path)
    return None


def check_layers(tidy):
    """a file includes only what is below its layer, or in it"""
    orders = layer_table(tidy)
    if not orders:
        tidy.problem("src/README.md", 1, "there is no layer table")
        return
    for path in tidy.c_files("src/"):
        mine = layer_of(path[len("src/"):], orders)
        if not mine:
            tidy.problem(path, 1, "its folder is not in the table of src/README.md")
            continue
        for found in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', tidy.text(path), re.MULTILINE):
            line, name = line_of(tidy.text(path), found.start()), found.group(1)
            theirs = layer_of(name, orders)
            if f"src/{name}" not in tidy.files:
                tidy.problem(path, line, f'"{name}" is not a file under src/: write the path from there')
            elif not theirs:
                tidy.problem(path, line, f'"{name}" is in no layer of src/README.md')
            elif theirs != mine and orders[theirs] >= orders[mine]:
                tidy.problem(path, line, f"{mine} may not include {theirs}: see src/README.md")
            elif mine in LIBRARY_LAYERS and theirs not in LIBRARY_LAYERS:
                tidy.problem(path, line, f"{mine} may not include {theirs}: libtroupe is base and runtime alone")
            elif mine in ("server", "cli") and theirs.startswith("services/"):
                tidy.problem(path, line, f"{mine} may not include {theirs}: main.c gives it the table of services")
    for path in tidy.c_files("include/", "examples/"):
        for found in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', tidy.text(path), re.MULTILINE):
            beside = os.path.normpath(os.path.join(os.path.dirname(path), found.group(1)))
            if path.startswith("include/") or not beside.startswith("examples/") or beside not in tidy.files:
                tidy.problem(path, line_of(tidy.text(path), found.start()),
                             f'only <troupe/...> and the system\'s headers here, not "{found.group(1)}"')


# ---- calls --------------------------------------------------------------------------------------

def find_calls(tidy, path, names):
    text = tidy.text(path)
    code = without_comments(text)
    lines = text.split("\n")
    for found in re.finditer(r"(?<![\w.>])(" + "|".join(names) + r")\s*\(", code):
        line = line_of(code, found.start())
        if not re.search(rf"/\* *tidy: allow {found.group(1)}\b, *\w", lines[line - 1]):
            tidy.problem(path, line, f"{found.group(1)} is not used here: {names[found.group(1)]}")


def check_calls(tidy):
    """no banned call; clock and randomness only in env*.c; no sleep in tests"""
    for path in tidy.c_files("src/", "include/", "test/", "examples/", "bench/"):
        if path.startswith("bench/peers/"):
            continue
        find_calls(tidy, path, BANNED)
        if path.startswith(("src/", "include/")) and not OUTSIDE_ALLOWED.match(path):
            find_calls(tidy, path, OUTSIDE)
        if path.startswith(("test/unit/", "test/sim/")):
            find_calls(tidy, path, SLEEPS)


# ---- public headers -----------------------------------------------------------------------------

def declarations(tidy, path):
    """Yields (line, text) of what stands at the top level of a header: no macros, no bodies."""
    code = without_comments(tidy.text(path))
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda found: "\n" * found.group(0).count("\n"), code,
                  flags=re.MULTILINE)
    code = re.sub(r'extern\s*"[^"]*"\s*\{', "", code)
    depth, start, out = 0, 0, []
    for offset, char in enumerate(code):
        if char == "{":
            depth += 1
        elif char == "}":
            depth = max(0, depth - 1)
            if depth == 0 and re.search(r"\)\s*\{", code[start:offset]) and "=" not in code[start:offset].split("{")[0]:
                start = offset + 1  # the body of an inline function; nothing follows it
                continue
        elif char == ";" and depth == 0:
            out.append((line_of(code, start + len(code[start:offset]) - len(code[start:offset].lstrip())),
                        re.sub(r"\{.*\}", "{}", code[start:offset], flags=re.DOTALL).strip()))
            start = offset + 1
    return out


def public_names(tidy):
    """Names declared for users: functions and variables that carry TR_API."""
    names = {}
    for path in tidy.c_files("include/troupe/"):
        for line, text in declarations(tidy, path):
            text = re.sub(r"__attribute__\s*\(\(.*?\)\)\s*\)?|\b_Noreturn\b", " ", text, flags=re.DOTALL)
            text = re.sub(r"^(TR_READY_[A-Z]+\(\w+\)\s*)+", "", text)  # inline functions of a macro
            if re.match(r"(typedef|static|_Static_assert|struct\s+\w+\s*$|union\s+\w+\s*$|enum\b)", text) or not text:
                continue
            called = re.search(r"\b(?!TR_API\b)([A-Za-z_]\w*)\s*\(", text)
            if called and not re.search(r"\bTR_API\b", text):
                tidy.problem(path, line, f"{called.group(1)} is declared without TR_API")
            elif called:
                names[called.group(1)] = (path, line)
            elif re.search(r"\bTR_API\b", text):
                names[re.findall(r"[A-Za-z_]\w*", re.sub(r"\[.*?\]", "", text))[-1]] = (path, line)
    return names


def check_exports(tidy):
    """libtroupe.so exports what the public headers declare, has no mutable global, and needs libc alone"""
    names = public_names(tidy)
    for name, (path, line) in names.items():
        if not name.startswith("tr_"):
            tidy.problem(path, line, f"{name}: public names begin with tr_")
    library = os.path.join(ROOT, os.environ.get("TROUPE_LIBRARY") or LIBRARY)
    if not os.path.exists(library):
        raise Skip(f"{os.path.relpath(library, ROOT)} is not built")
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    exported = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    exported -= {"_init", "_fini", "_edata", "_end", "__bss_start"}
    for name in sorted(exported - set(names)):
        tidy.problem("include/troupe", 0, f"{name} is exported, but no public header declares it")
    for name in sorted(set(names) - exported):
        tidy.problem(*names[name], f"{name} is declared, but {os.path.basename(library)} does not export it")
    symbols = subprocess.run(["objdump", "-t", library], capture_output=True, text=True, check=True).stdout
    for section, size, name in re.findall(r"^\S+ .{7} (\.data|\.bss)\t([0-9a-f]+) +(?:\.hidden )?(\S+)$", symbols,
                                          re.MULTILINE):
        if int(size, 16) > 0 and name not in GLOBALS_ALLOWED:
            tidy.problem("src/base", 0, f"{name} is a mutable global of libtroupe ({section}): "
                         "two systems in one process must not share state")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"\(NEEDED\).*\[(.*?)\]", needed):
        if not re.match(r"(libc|ld-linux.*|libm)\.so", name):
            tidy.problem("meson.build", 0, f"libtroupe.so needs {name}; base and runtime use libc alone")


def compiles(command, source, language="c"):
    done = subprocess.run(command + ["-x", language, "-"], input=source, capture_output=True, text=True, cwd=ROOT,
                          check=False)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return next((line for line in lines if "error:" in line), lines[0] if lines else "unknown error")


def check_headers(tidy):
    """every header compiles alone: public ones as strict C17, with gcc and with clang, and as C++20"""
    compilers = [name for name in ("gcc", "clang") if shutil.which(name)]
    if "gcc" not in compilers:
        raise Skip("gcc is not installed")
    for path in tidy.c_files("include/troupe/"):
        name = path[len("include/"):]
        for compiler in compilers:
            # Twice, for the include guard; the declaration makes it a translation unit of its own.
            error = compiles([compiler, *STRICT, "-Iinclude"],
                             f"#include <{name}>\n#include <{name}>\nextern int tidy_unit;\n")
            if error:
                tidy.problem(path, 1, f"does not compile alone with {compiler}: {error}")
        if shutil.which("g++"):
            error = compiles(["g++", *STRICT_CXX, "-Iinclude"], f"#include <{name}>\nextern int tidy_unit;\n", "c++")
            if error:
                tidy.problem(path, 1, f"does not compile as C++20: {error}")
        if shutil.which("g++") and name == "troupe/troupe.h":
            error = compiles(["g++", *STRICT_CXX, "-Iinclude"], CXX_USE, "c++")
            if error:
                tidy.problem(path, 1, f"TR_ACTOR does not compile as C++20: {error}")
        if name != "troupe/troupe.h" and 'extern "C" {' not in tidy.text(path):
            tidy.problem(path, 1, 'wrap the declarations in extern "C"')
    for path in [path for path in tidy.c_files("src/", "test/lib/") if path.endswith(".h")]:
        error = compiles(["gcc", *STRICT, "-D_GNU_SOURCE", "-Iinclude", "-Isrc", "-Itest/lib"],
                         f'#include "{os.path.join(ROOT, path)}"\nextern int tidy_unit;\n')
        if error:
            tidy.problem(path, 1, f"does not compile alone: {error}")
    if not shutil.which("g++"):
        print("# g++ is not installed: public headers were not tried as C++20")
    if "clang" not in compilers:
        print("# clang is not installed: headers were tried with gcc only")


def check_version(tidy):
    """version.h says the version of meson.build"""
    version = re.search(r"version: '([0-9.]+)'", tidy.text("meson.build")).group(1)
    header = "include/troupe/version.h"
    parts = re.findall(r"^#define TR_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", tidy.text(header), re.MULTILINE)
    text = re.search(r'^#define TR_VERSION "([^"]*)"$', tidy.text(header), re.MULTILINE)
    if not text or text.group(1) != version or ".".join(parts) != version:
        tidy.problem(header, 1, f"meson.build has version {version}")


def check_spdx(tidy):
    """every source file names its licence; every header has a guard named after its path"""
    for path in tidy.c_files("src/", "include/", "test/", "examples/", "bench/"):
        if path.startswith("bench/peers/"):
            continue
        if "SPDX-License-Identifier: Apache-2.0" not in tidy.text(path)[:200]:
            tidy.problem(path, 1, "begins with /* SPDX-License-Identifier: Apache-2.0 */")
        if path.endswith(".h"):
            short = re.sub(r"^(src|include)/", "", path)
            guard = re.sub(r"\W", "_", short).upper()
            if not re.search(rf"^#ifndef {guard}\n#define {guard}\b", tidy.text(path), re.MULTILINE):
                tidy.problem(path, 1, f"its include guard is {guard}")


# ---- documents ----------------------------------------------------------------------------------

def slug(heading):
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def prose(text):
    """Markdown with its code blanked."""
    text = re.sub(r"^(```|~~~).*?^\1", lambda found: "\n" * found.group(0).count("\n"), text,
                  flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda found: " " * len(found.group(0)), text)


def check_links(tidy):
    """every relative link in a document leads somewhere"""
    folders = {os.path.dirname(path) for path in tidy.files}
    folders |= {above for folder in set(folders) for above in parents(folder)}
    for path in [path for path in tidy.files if path.endswith(".md")]:
        text = prose(tidy.text(path))
        targets = [(found.start(), found.group(1)) for found in re.finditer(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", text)]
        targets += [(found.start(), found.group(1))
                    for found in re.finditer(r"^ {0,3}\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)]
        for offset, target in targets:
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            goal = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            goal = "" if goal == "." else goal
            if goal not in tidy.files and goal not in folders:
                tidy.problem(path, line_of(text, offset), f"the link to {target} leads nowhere")
            elif anchor and goal.endswith(".md"):
                headings = re.findall(r"^#+ +(.*?)(?: #+)?$", re.sub(
                    r"^(```|~~~).*?^\1", "", tidy.text(goal), flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
                if anchor not in {slug(heading) for heading in headings}:
                    tidy.problem(path, line_of(text, offset), f"{goal} has no heading #{anchor}")


def parents(folder):
    while folder:
        folder = os.path.dirname(folder)
        yield folder


def check_paths(tidy):
    """no file names a place that exists on one machine only"""
    places = re.compile(r"(?<![\w.~$}@-])/(?:" + "|".join(("root", "work", r"home/\w+", "Users")) + r")/")
    for path in tidy.files:
        text = tidy.text(path)
        if "\0" in text[:4096]:
            continue
        for found in places.finditer(text):
            tidy.problem(path, line_of(text, found.start()), f"{found.group(0)}... exists on one machine only")


# ---- words --------------------------------------------------------------------------------------

# A sentence hides its subject when it opens with a clause that has no noun: "Who had returned ...", "What was asked
# before ...". A question may. STYLE.md has the rule; this number is its smoke alarm.
HIDDEN = re.compile(
    r"^(?:(?:And|But|So|Then|For|To|Of|By|With|From|In|On|After|Before|Behind|Until)\s+)?"
    r"(?:[Ww]ho|[Ww]hom|[Ww]hose|[Ww]hat|[Ww]hoever|[Ww]homever|[Ww]hatever|[Tt]hat which|[Tt]hose who)\b")
# Of 1,000 sentences, by where they stand.
HIDDEN_MAX = (("test/", 5), ("include/", 2), ("src/", 2), ("docs/", 2), ("README.md", 2), ("ARCHITECTURE.md", 2),
              ("STYLE.md", 2), ("CONTRIBUTING.md", 2), ("CHANGELOG.md", 2), ("examples/", 2), ("bench/", 2))


def comments(text):
    for found in re.finditer(r"/\*(.*?)\*/|//([^\n]*)", text, re.DOTALL):
        body = found.group(1) if found.group(1) is not None else found.group(2)
        yield line_of(text, found.start()), re.sub(r"\n[ \t]*\*", "\n", body)


def sentences(body):
    """Yields (lines before it, sentence) for those of four words and more."""
    at = 0
    for part in re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*[-|#*]+\s*|\s*\|\s*", body):
        at = max(at, body.find(part, at))
        sentence = " ".join(part.split()).strip("- ")
        if len(sentence.split()) >= 4:
            yield body.count("\n", 0, at), sentence


def texts_of(tidy, path):
    if path.endswith(".md"):
        blank = re.sub(r"```.*?```", lambda found: "\n" * found.group(0).count("\n"), tidy.text(path), flags=re.DOTALL)
        return [(1, blank)]
    return comments(tidy.text(path))


def check_prose(tidy):
    """sentences name their subject"""
    for place, most in HIDDEN_MAX:
        total, hidden = 0, []
        for path in [path for path in tidy.files if path.startswith(place) and path.endswith((".c", ".h", ".md"))
                     and not path.startswith("bench/peers/")]:
            for line, body in texts_of(tidy, path):
                for below, sentence in sentences(body):
                    total += 1
                    if HIDDEN.match(sentence) and not sentence.endswith("?"):
                        hidden.append((path, line + below, sentence))
        if len(hidden) * 1000 > most * total:
            for path, line, sentence in hidden:
                tidy.problem(path, line, f"name the subject: {sentence[:80]}")


def check_rulers(tidy):
    """a section's ruler stands on one line"""
    for path in tidy.c_files("src/", "include/", "test/", "examples/", "bench/"):
        for found in re.finditer(r"^[ \t]*(?:/\* -{4}[^\n]*[^/\n]|\* -{9}[^\n]*)$", tidy.text(path), re.MULTILINE):
            tidy.problem(path, line_of(tidy.text(path), found.start()), "the ruler is broken: /* ---- name ---- */")


def check_names(tidy):
    """tr__ is the library's own; SQL of a service is in its store, and the commands have none; every folder has a README"""
    for path in tidy.c_files("src/"):
        code = without_comments(tidy.text(path))
        if not path.startswith(("src/base/", "src/runtime/")):
            for found in re.finditer(r"\btr__\w+", code):
                tidy.problem(path, line_of(code, found.start()), f"{found.group(0)} is internal to libtroupe")
        if path.startswith(("src/services/", "src/cli/")) and "/store/" not in path and not path.endswith(("_store.c", "_store.h")):
            for found in re.finditer(r"^SQL_(?:LOCKING_)?STATEMENT\(\w+", code, re.MULTILINE):
                tidy.problem(path, line_of(code, found.start()), f"{found.group(0)}...: statements live in the store")
    for folder in sorted({os.path.dirname(path) for path in tidy.c_files("src/")}):
        if f"{folder}/README.md" not in tidy.files:
            tidy.problem(folder, 0, "this folder has no README.md")


# The last commit before subjects had a form.
COMMITS_AFTER = "7fedf68"


def check_commits(tidy):
    """a commit's subject is imperative and has 60 characters at most"""
    listed = subprocess.run(["git", "log", "--no-merges", "--format=%h %s", f"{COMMITS_AFTER}..HEAD"], cwd=ROOT,
                            capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise Skip("the history is not here")
    for line in listed.stdout.splitlines():
        short, _, subject = line.partition(" ")
        found = re.match(r"[\w/., -]+: (\w+)", subject)
        if len(subject) > 60:
            tidy.problem(short, 0, f"{len(subject)} characters: {subject}")
        elif not found:
            tidy.problem(short, 0, f"'module: do the thing' is the form: {subject}")
        elif re.fullmatch(r"the|an?|who|what|no|nothing|every|all|each|it|is|are|\w+(?<!s)(?<!e)ed|\w+ing", found.group(1)):
            tidy.problem(short, 0, f"begin with a verb in the imperative: {subject}")


# ---- information --------------------------------------------------------------------------------

def print_sizes(tidy):
    """What is long is worth a look, not an error."""
    sizes = sorted(((tidy.text(path).count("\n"), path) for path in tidy.c_files("src/", "include/")), reverse=True)
    functions = []
    for path in tidy.c_files("src/"):
        start = None
        for number, line in enumerate(without_comments(tidy.text(path)).split("\n"), start=1):
            if line == "{":
                start = number
            elif line == "}" and start:
                functions.append((number - start - 1, f"{path}:{start}"))
                start = None
    print("# longest files: " + ", ".join(f"{path} {lines}" for lines, path in sizes[:5]))
    print("# longest functions: " + ", ".join(f"{place} {lines}" for lines, place in sorted(functions)[:-6:-1]))


CHECKS = {"layers": check_layers, "calls": check_calls, "exports": check_exports, "headers": check_headers,
          "version": check_version, "spdx": check_spdx, "links": check_links, "paths": check_paths, "prose": check_prose,
          "rulers": check_rulers, "names": check_names, "commits": check_commits}
GROUPS = {"all": list(CHECKS), "docs": ["links", "paths", "prose"]}


def main():
    wanted = [name for word in sys.argv[1:] or ["all"] for name in GROUPS.get(word, [word])]
    if any(name not in CHECKS for name in wanted):
        sys.exit(__doc__ + "\nchecks: " + ", ".join(CHECKS))
    tidy = Tidy()
    passed = failed = skipped = 0
    for number, name in enumerate(wanted, start=1):
        before = len(tidy.problems)
        title = f"{name}: {CHECKS[name].__doc__}"
        try:
            CHECKS[name](tidy)
        except Skip as reason:
            if len(tidy.problems) == before:
                skipped += 1
                print(f"ok {number} - {title} # SKIP {reason}")
                continue
        if len(tidy.problems) > before:
            failed += 1
            print(f"not ok {number} - {title}")
            print("\n".join(tidy.problems[before:]))
        else:
            passed += 1
            print(f"ok {number} - {title}")
    if "layers" in wanted:
        print_sizes(tidy)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
