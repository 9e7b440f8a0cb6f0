#!/bin/bash
# test/mutants/run.sh [NAME...]: plant one bug at a time and see that the simulations find it.
#
# Every *.patch beside this file is a small change to the sources that breaks the runtime. Its first lines say what it
# breaks, which programs must notice ("caught by", tried in this order), and after how many seeds at the latest, from
# "first seed" on where only rare ones do. It is
# applied to a copy of the tree, never to the tree itself; a patch that no longer applies is a failure. With
# "build: tsan" the programs are unit tests under ThreadSanitizer instead.
#
# TMPDIR says where the copy goes; TROUPE_LONG=1 multiplies the seeds by 10.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
copy=$(mktemp -d "${TMPDIR:-/tmp}/troupe-mutants.XXXXXX") || exit 1
trap 'rm -rf "$copy"' EXIT
meson=/usr/bin/meson
[ -x "$meson" ] || meson=meson
passed=0
failed=0
skipped=0

say() { # VERDICT TEXT
    case $1 in
    ok) passed=$((passed + 1)) ;;
    skip) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
    case $1 in
    skip) echo "ok - $2" ;;
    *) echo "$1 - $2" ;;
    esac
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}

for path in src include test tools examples bench meson.build meson_options.txt; do
    [ -e "$root/$path" ] && (cd "$root" && tar --exclude=bench/peers -cf - "$path") | tar -C "$copy" -xf -
done
cd "$copy" || exit 1
cp -r src true-src || exit 1

# The simulations, configured like build/sim. A mutant may leave a variable unused: no warning is an error here.
configure() { # KIND
    [ -f "build/$1/build.ninja" ] && return 0
    case $1 in
    sim) options="-Doptimization=1 -Ddebug=true -Dpoints=true" ;;
    tsan) options="-Doptimization=1 -Ddebug=true -Db_sanitize=thread" ;;
    esac
    # shellcheck disable=SC2086 # options are words
    "$meson" setup $options -Dwerror=false "build/$1" >"build.$1.log" 2>&1 || {
        cat "build.$1.log"
        return 1
    }
}

build() { # KIND PROGRAM
    configure "$1" && ninja --quiet -C "build/$1" "test/$2" >build.log 2>&1 || {
        tail -n 20 build.log
        return 1
    }
}

# Run one program. Its output is in run.log; succeeds if the program failed.
notices() { # KIND PROGRAM SEEDS [FIRST]
    local program="build/$1/test/$2" case=
    if [ "$1" = sim ]; then
        case=$("$program" --list | head -n 1)
        ! env ${4:+"TROUPE_SEED=$4"} TROUPE_SEEDS="$3" TROUPE_LIMIT_S=60 "$program" "$case" >run.log 2>&1
    else
        local fixed=
        setarch -R true 2>/dev/null && fixed="setarch -R"
        # shellcheck disable=SC2086 # a command and its option
        ! TSAN_OPTIONS=halt_on_error=1 TROUPE_LIMIT_S=60 $fixed "$program" >run.log 2>&1
    fi
}

# Without a bug they must all pass: else being caught would mean nothing.
check_clean() { # KIND PROGRAM
    [ -f "clean.$1.$2" ] && return 0
    build "$1" "$2" || return 1
    if notices "$1" "$2" 200; then
        cat run.log
        return 1
    fi
    touch "clean.$1.$2"
}

try() { # PATCH
    local patch=$1 name kind programs seeds first where number
    name=$(basename "$patch" .patch)
    kind=$(sed -n 's/^build: //p' "$patch")
    kind=${kind:-sim}
    programs=$(sed -n 's/^caught by: //p' "$patch")
    seeds=$(sed -n 's/^seeds: //p' "$patch")
    first=$(sed -n 's/^first seed: //p' "$patch")
    [ -n "${TROUPE_LONG:-}" ] && seeds=$((seeds * 10))
    where=$(sed -n 's,^+++ b/,,p' "$patch")
    if [ -z "$programs" ] || [ -z "$seeds" ] || [ -z "$where" ]; then
        say "not ok" "$name: its header does not say what it breaks and who must notice"
        return
    fi
    for program in $programs; do
        if ! check_clean "$kind" "$program"; then
            say "not ok" "$name: $program does not build or does not pass without it"
            return
        fi
    done
    if ! patch -p1 -l -F 0 -s --no-backup-if-mismatch <"$patch" >patch.log 2>&1; then
        cat patch.log
        say "not ok" "$name: the patch does not apply to the sources any more"
    else
        number=
        for program in $programs; do
            if ! build "$kind" "$program"; then
                say "not ok" "$name: does not build"
                number=-
                break
            fi
            if notices "$kind" "$program" "$seeds" "$first"; then
                number=$(sed -n 's/^# seed [0-9]* was number \([0-9]*\) of .*/\1/p' run.log | head -n 1)
                if grep -qE '\(seed .*timed out after|^# .*: coverage: ' run.log; then
                    # Slow is not broken, and seeds that met too little have found nothing.
                    say "not ok" "$name: $program ran out of time or met too little, and nothing else was wrong"
                    number=-
                elif [ "$kind" = tsan ]; then
                    grep -q 'WARNING: ThreadSanitizer' run.log && say ok "$name caught by $program under ThreadSanitizer" ||
                        say "not ok" "$name: $program failed, but not with a report of ThreadSanitizer"
                    number=-
                else
                    say ok "$name caught by $program after ${number:-1} seeds"
                    [ -n "${VERBOSE:-}" ] && grep '^# ' run.log | head -n 3
                    number=-
                fi
                break
            fi
        done
        [ -z "$number" ] && say "not ok" "$name: not caught by $programs within $seeds seeds"
    fi
    # Back to the true sources, as new, so that they are built again.
    for path in $where; do
        cp "true-$path" "$path"
    done
}

if [ $# -gt 0 ]; then
    for name in "$@"; do
        try "$here/$name.patch"
    done
    finish
fi
for patch in "$here"/*.patch; do
    try "$patch"
done
finish
