#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On a disk whose syncs take long many units share one COMMIT, and all that were acknowledged are stored.
set -u
cd "$(dirname "$0")/../.."
build=${TROUPE_BUILD:-build/release}
if [ ! -f "$build/liblayer_sql.a" ] && [ ! -x "$build/sql-bench" ]; then
    echo "there is no $build/liblayer_sql.a: run make release"
    exit 77
fi
if ! output=$(SLOW_SYNC_US=2000 bench/sql/run -a 200 -s 1 -r 1 2>&1); then
    echo "$output"
    exit 1
fi
echo "$output"
# The second part is the slow one; the line of its round ends with units per commit.
per_commit=$(echo "$output" | sed -n '/slower/,$s/^ *1 .* \([0-9]*\)\.[0-9]*$/\1/p')
stored=$(echo "$output" | grep -c '^stored \([0-9]*\) of \1 acknowledged$')
[ "$stored" = 2 ] || { echo "what was acknowledged is not what is stored" && exit 1; }
[ "${per_commit:-0}" -ge 10 ] || { echo "only ${per_commit:-0} units a commit" && exit 1; }
