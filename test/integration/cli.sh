#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program `troupe`: its help, its version, its tour, and what it says to a wrong command line.
set -u
cd "$(dirname "$0")/../.."
troupe=${TROUPE_BUILD:-build/release}/troupe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

if [ ! -x "$troupe" ]; then
    echo "there is no $troupe: run make release"
    exit 77
fi

# check NAME STATUS COMMAND...: runs it, keeps its output in $work/out and $work/err
check() {
    name=$1
    wanted=$2
    shift 2
    timeout 60 "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    if [ $status -ne "$wanted" ]; then
        fail "$name" "exit status $status, wanted $wanted"
        cat "$work/out" "$work/err"
        return 1
    fi
    passed=$((passed + 1))
}

fail() {
    failed=$((failed + 1))
    echo "not ok - $1: $2"
}

# has FILE TEXT: a line of the file contains it
has() {
    if grep -qF -- "$2" "$work/$1"; then
        passed=$((passed + 1))
    else
        fail "$name" "its $1 does not say: $2"
        cat "$work/$1"
    fi
}

is_empty() {
    if [ -s "$work/$1" ]; then
        fail "$name" "its $1 is not empty"
        cat "$work/$1"
    else
        passed=$((passed + 1))
    fi
}

for option in --help -h help; do
    check "$option" 0 "$troupe" $option && has out "usage: troupe COMMAND" && has out "troupe tour --step" &&
        has out "Actors for C, and a server built on them." && has out "troupe packs push"
    is_empty err
done
check "help tour" 0 "$troupe" help tour && has out "usage: troupe tour [--step]"
check "tour --help" 0 "$troupe" tour --help && has out "Examples:"
version=$(sed -n "s/^ *version: '\(.*\)',$/\1/p" meson.build | head -n 1)
check "--version" 0 "$troupe" --version && has out "troupe $version"

check "no command" 2 "$troupe" && has err "usage: troupe COMMAND"
is_empty out
check "unknown command" 2 "$troupe" dance && has err "There is no command 'dance'." && has err "troupe --help"
check "unknown option" 2 "$troupe" --dance && has err "There is no option '--dance'." && has err "troupe --help"
check "unknown option of tour" 2 "$troupe" tour --dance && has err "There is no option '--dance'." &&
    has err "troupe tour --help"
check "argument of tour" 2 "$troupe" tour dance && has err "'dance'"
check "help of an unknown command" 2 "$troupe" help dance && has err "There is no command 'dance'."

check "tour" 0 "$troupe" tour
is_empty err
has out "answers: 0 1 2"
has out "gave back { .next = 103 }"
has out "sum 5000050000, as it should be"
has out "break: TR_ECRASHED"
has out "ids  idle, 3 handled, 1 restart"
has out "writer ends: done: no senders left"
has out "reader: 1 sender, held by a cache that nobody empties"
has out "wait cycle (hold): bob -> ann -> bob"
has out "the same seed gives the same trace, another seed another"
has out " dead letters + 0 queued"
if grep -q "$(printf '\033')" "$work/out"; then
    fail "tour" "there are colours in a file"
else
    passed=$((passed + 1))
fi
check "tour --step without anybody there" 0 "$troupe" tour --step && has out "1. An actor is its data"

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
