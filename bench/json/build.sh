#!/bin/sh
# Builds build/json-bench and runs it: our parser beside simdjson and cJSON (libsimdjson-dev,
# libcjson-dev), which are used as they are packaged.
set -eu
cd "$(dirname "$0")/../.."
for header in simdjson.h cjson/cJSON.h; do
    if [ ! -e "/usr/include/$header" ]; then
        echo "$header is missing: install libsimdjson-dev and libcjson-dev"
        exit 2 # not offered
    fi
done
out=build/json-bench
mkdir -p "$out"
flags="-O3 -g -D_GNU_SOURCE -Isrc -Iinclude -Ibench/json -fstack-protector-strong -fcf-protection
    -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fPIE"
for file in src/base/alloc.c src/base/assert.c src/base/buffer.c src/base/error.c src/base/random.c \
    src/json/*.c bench/json/*.c; do
    # shellcheck disable=SC2086 # flags are words
    ${CC:-gcc} -std=c17 $flags -c "$file" -o "$out/$(basename "$file" .c).o"
done
# shellcheck disable=SC2086
${CXX:-g++} -std=c++17 $flags -c bench/json/peer_simdjson.cc -o "$out/peer_simdjson.o"
${CXX:-g++} -pie "$out"/*.o -lsimdjson -lcjson -lpthread -o "$out/json-bench"
[ "${1:-}" = build ] || exec "$out/json-bench"
