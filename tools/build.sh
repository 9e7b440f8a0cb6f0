#!/bin/sh
# tools/build.sh KIND [TARGET...]: configure build/KIND if that is needed, and build it.
#
#   debug    what `make` builds          asan    AddressSanitizer and UBSan
#   release  what users run              tsan    ThreadSanitizer
#   clang    the other compiler          sim     simulations, with extra preemption points
#   analyze  gcc -fanalyzer              fuzz    fuzz targets, for libFuzzer
#   libolm   Olm and Megolm by libolm
#                                        (TARGET "none" configures only)
#
# PREFIX is where `meson install` of the release build puts things; changing it compiles nothing.
# CC, CFLAGS and LDFLAGS count when a directory is configured for the first time, as usual with meson.
set -eu
cd "$(dirname "$0")/.."

kind=${1:?"usage: tools/build.sh KIND [TARGET...]"}
shift
cc=${CC:-gcc}
case $kind in
debug) options="-Dbuildtype=debug" ;;
release) options="-Doptimization=3 -Ddebug=true -Db_lto=true -Dhardened=true -Db_pie=true -Dtests=false
    -Dprefix=/usr/local" ;;
asan) options="-Doptimization=1 -Ddebug=true -Db_sanitize=address,undefined" ;;
tsan) options="-Doptimization=1 -Ddebug=true -Db_sanitize=thread" ;;
clang)
    options="-Doptimization=2 -Ddebug=true"
    cc=clang
    ;;
fuzz)
    options="-Doptimization=1 -Ddebug=true -Db_sanitize=address,undefined -Dfuzz=true -Db_lundef=false"
    cc=clang
    ;;
libolm) options="-Dbuildtype=debug -Dolm_backend=libolm" ;;
sim) options="-Doptimization=2 -Ddebug=true -Dpoints=true" ;;
analyze) options="-Doptimization=0 -Ddebug=true -Dtests=false -Dc_args=-fanalyzer" ;;
*)
    echo "tools/build.sh: no build is called '$kind'" >&2
    exit 2
    ;;
esac

dir=build/$kind
meson=/usr/bin/meson # the distribution's: a newer one elsewhere in PATH may warn or behave differently
[ -x "$meson" ] || meson=$(command -v meson || true)
for tool in "$meson" ninja "$cc"; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "tools/build.sh: ${tool:-meson} is missing: run tools/install-deps.sh build test" >&2
        exit 1
    fi
done

# Two builds of one directory at once would break each other. The lock goes with the process.
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9

now=$(mktemp)
trap 'rm -f "$now"' EXIT
{
    echo $cc $options
    tools/sources.sh 'include/troupe/*.h' 'src/*.c' 'src/*/*.c' 'src/*/*/*.c' 'src/*/*/*/*.c' 'bench/*.c' 'examples/*.c' \
        'test/lib/*.c' 'test/unit/*/test_*.c' 'test/sim/sim_*.c' 'test/fuzz/*.c'
} >"$now"
if [ ! -f "$dir/build.ninja" ] || [ ! -f "$dir/.configured" ] ||
    [ "$(head -n 1 "$now")" != "$(head -n 1 "$dir/.configured")" ]; then
    find "$dir" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} +
    # shellcheck disable=SC2086 # options are words
    CC=$cc "$meson" setup $options "$dir" >"$dir/.setup.log" 2>&1 || {
        cat "$dir/.setup.log" >&2
        exit 1
    }
    cp "$now" "$dir/.configured"
elif ! cmp -s "$now" "$dir/.configured"; then
    "$meson" setup --reconfigure "$dir" >"$dir/.setup.log" 2>&1 || {
        cat "$dir/.setup.log" >&2
        exit 1
    }
    ninja -C "$dir" -t cleandead >/dev/null # programs whose source is gone
    cp "$now" "$dir/.configured"
fi

# Not one of the options above: those differ, and everything is built again.
if [ "$kind" = release ] && [ -n "${PREFIX:-}" ] &&
    [ "$PREFIX" != "$(cat "$dir/.prefix" 2>/dev/null || echo /usr/local)" ]; then
    "$meson" configure "$dir" "-Dprefix=$PREFIX"
    printf '%s\n' "$PREFIX" >"$dir/.prefix"
fi

[ "${1:-}" = none ] && exit 0
if [ -t 1 ]; then
    ninja -C "$dir" "$@" 9>&-
else
    # The log grows while it builds; shown is what is not progress.
    ninja -C "$dir" "$@" >"$dir/.build.log" 2>&1 9>&- || {
        sed '/^\[[0-9]*\/[0-9]*\] /d' "$dir/.build.log"
        exit 1
    }
    if grep -q 'warning:' "$dir/.build.log"; then sed '/^\[[0-9]*\/[0-9]*\] /d' "$dir/.build.log"; fi
fi
