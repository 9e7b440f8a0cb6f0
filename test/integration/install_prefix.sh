#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Another PREFIX says where things are installed; the build directory stays, and nothing in it is to be compiled again. In a
# copy of the sources, which is configured and not built.
set -u
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

for tool in /usr/bin/meson ninja gcc pkg-config; do
    if ! command -v $tool >/dev/null; then
        echo "$tool is not installed"
        exit 77
    fi
done

report() {
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok - $1"
    else
        failed=$((failed + 1))
        echo "not ok - $1"
        cat "$work/log"
    fi
}

# configure [PREFIX]
configure() {
    (
        unset PREFIX MAKEFLAGS
        [ $# -eq 0 ] || export PREFIX="$1"
        tools/build.sh release none && ninja -C build/release build.ninja
    ) >"$work/log" 2>&1
}

# is PREFIX: what would be installed says so, and what is compiled is what it was
is() {
    grep -qx "prefix=$1" build/release/troupe.pc && [ -f build/release/kept ] &&
        cmp build/release/compile_commands.json "$work/compiled" >>"$work/log" 2>&1
}

tar cf - --exclude=__pycache__ --exclude=node_modules include src bench examples test tools meson.build \
    meson_options.txt | (cd "$work" && tar xf -)
cd "$work" || exit 1

configure
status=$?
report "it can be configured" $status
[ $status -eq 0 ] || exit 1
touch build/release/kept
cp build/release/compile_commands.json "$work/compiled"
is /usr/local
report "the first prefix is /usr/local" $?
configure "$work/some where"
is "$work/some where"
report "another prefix compiles nothing again" $?
configure
is "$work/some where"
report "a build that does not install leaves it alone" $?
configure /usr/local
is /usr/local
report "and back" $?

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
