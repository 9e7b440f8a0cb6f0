#!/bin/sh
# tools/install-deps.sh [--list] GROUP...: the one list of packages this repository needs.
#
#   library  compile the library alone
#   build    compile the library and the programs, run them
#   test     the test suites and lint
#   bench    what the benchmarks compare with
#   homeserver, nio   the Matrix homeserver and the client of test/matrix that are Debian's; not all releases have them
#
# When nothing is missing, nothing is called and no rights are needed. Otherwise the missing packages
# are printed; on a terminal it asks before it installs them, elsewhere it installs them at once.
set -eu

library="gcc libc6-dev make meson ninja-build pkgconf python3"
build="$library curl libcurl4-openssl-dev libinih-dev libnghttp2-dev libpq-dev libseccomp-dev libsecp256k1-dev
    libsodium-dev libsqlite3-dev libssl-dev libwslay-dev node-llhttp libzstd-dev zlib1g-dev"
test="aria2 chromium clang clang-format clang-tidy g++ git libcbor-dev libcjson-dev libclang-rt-14-dev libolm-dev libsimdjson-dev
    libuv1-dev nghttp2-client openssl patch postgresql-15 prometheus slowhttptest spin sqlite3"
homeserver="mmdebstrap"
nio="python3-matrix-nio python3-olm"
bench="g++ libolm-dev nginx-light wrk libcaf-dev erlang-base erlang-dev golang-go cargo librust-tokio-dev"

list=no
if [ "${1:-}" = --list ]; then
    list=yes
    shift
fi
wanted=
for group in "$@"; do
    case $group in
    library) wanted="$wanted $library" ;;
    build) wanted="$wanted $build" ;;
    test) wanted="$wanted $test" ;;
    bench) wanted="$wanted $bench" ;;
    homeserver) wanted="$wanted $homeserver" ;;
    nio) wanted="$wanted $nio" ;;
    *)
        echo "tools/install-deps.sh: no group is called '$group' (library, build, test, bench, homeserver, nio)" >&2
        exit 2
        ;;
    esac
done
if [ -z "$wanted" ]; then
    echo "usage: tools/install-deps.sh [--list] library|build|test|bench|homeserver|nio..." >&2
    exit 2
fi
if [ $list = yes ]; then
    printf '%s\n' $wanted
    exit 0
fi

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "This is not a Debian system, so nothing is installed here. Needed, by Debian's names:$wanted" >&2
    exit 0
fi

missing=
for package in $wanted; do
    case $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true) in
    ?i*) ;;
    *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0

echo "Packages that are missing:$missing"
install="apt-get install -y --no-install-recommends$missing"

if [ -t 0 ] && [ -t 1 ]; then
    printf 'Install them now? [Y/n] '
    read -r answer || answer=n
    case $answer in
    '' | y | Y | yes | Yes) ;;
    *)
        echo "Not installed. To do it yourself: $install"
        exit 1
        ;;
    esac
fi

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1; then
    as_root=sudo
    [ -t 0 ] || as_root="sudo -n" # nobody is there to type a password
else
    echo "This needs root, and there is no sudo. As root, run: $install"
    exit 1
fi

as_root="$as_root env DEBIAN_FRONTEND=noninteractive"
# The package index may be old or, in a fresh container, absent: refresh it only if it has to be.
if ! $as_root $install; then
    $as_root apt-get update
    $as_root $install
fi
