#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program outside the repository is built with pkg-config alone, from the build directory and from an
# installed tree, with every compiler that is there, as C17 and as gnu17.
set -u
cd "$(dirname "$0")/../.."
root=$PWD
build=${TROUPE_BUILD:-build/release}
case $build in /*) ;; *) build=$root/$build ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

if ! command -v pkg-config >/dev/null; then
    echo "pkg-config is not installed"
    exit 77
fi
if [ ! -f "$build/troupe.pc" ]; then
    echo "there is no $build/troupe.pc: run make release"
    exit 77
fi

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

# use NAME: with the environment's PKG_CONFIG_PATH
use() {
    for cc in gcc clang; do
        command -v $cc >/dev/null || continue
        for std in c17 gnu17; do
            (
                set -e
                cd "$work"
                # shellcheck disable=SC2046 # flags are words
                $cc -std=$std -Wall -Wextra -Wpedantic -Werror "$root/examples/unit_test.c" -o program \
                    $(pkg-config --cflags --libs troupe)
                ./program | grep -q "answered 0 1 2"
            ) >"$work/log" 2>&1
            report "$1, $cc -std=$std" $?
        done
    done
}

PKG_CONFIG_PATH=$build
export PKG_CONFIG_PATH
use "from the build directory"
version=$(sed -n "s/^ *version: '\(.*\)',$/\1/p" meson.build | head -n 1)
[ "$(pkg-config --modversion troupe)" = "$version" ] >"$work/log" 2>&1
report "its version is $version" $?

meson=/usr/bin/meson
[ -x $meson ] || meson=$(command -v meson || echo meson)
if $meson install -C "$build" --no-rebuild --destdir "$work/root" >"$work/log" 2>&1; then
    installed=$(find "$work/root" -name troupe.pc)
    PKG_CONFIG_PATH=$(dirname "$installed")
    PKG_CONFIG_SYSROOT_DIR=$work/root
    LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
    export PKG_CONFIG_SYSROOT_DIR LD_LIBRARY_PATH
    use "installed"
    for header in include/troupe/*.h; do
        [ -f "$(find "$work/root" -path "*/$header")" ] || echo "$header is not installed"
    done >"$work/log"
    [ ! -s "$work/log" ]
    report "every public header is installed" $?
    find "$work/root" -name '*.h' ! -path '*/include/troupe/*' >"$work/log"
    [ ! -s "$work/log" ]
    report "and no other" $?
else
    report "meson install" 1
fi

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
