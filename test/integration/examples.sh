#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every example that was built ends by itself, with exit status 0, and says what it should.
set -u
cd "$(dirname "$0")/../.."
build=${TROUPE_BUILD:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
skipped=0

# run NAME TEXT...: its output has lines that contain each text
run() {
    name=$1
    shift
    if [ ! -x "$build/examples/$name" ]; then
        skipped=$((skipped + 1))
        echo "ok - examples/$name # SKIP it was not built"
        return
    fi
    timeout 60 "$build/examples/$name" >"$work/out" 2>&1 </dev/null
    status=$?
    if [ $status -ne 0 ] || [ ! -s "$work/out" ]; then
        failed=$((failed + 1))
        echo "not ok - examples/$name: exit status $status"
        cat "$work/out"
        return
    fi
    for text in "$@"; do
        if ! grep -qF -- "$text" "$work/out"; then
            failed=$((failed + 1))
            echo "not ok - examples/$name: it does not say: $text"
            cat "$work/out"
            return
        fi
    done
    passed=$((passed + 1))
    echo "ok - examples/$name"
}

known="unit_test ping_pong supervised_counter process_actor snapshot_reader embed_poll embed_uv simulate"
run unit_test "three asks, answered 0 1 2; the state is 3"
run ping_pong "ann touched the ball 1000000 times, bob 1000000 times"
run supervised_counter "forgetful: 1 + 2, a crash, + 4 = 4" "careful: 1 + 2, a crash, + 4 = 7" \
    "2 crashes, 2 restarts, 2 messages became dead letters"
run process_actor "\"that is (the question\": TR_ECRASHED" "\"whether tis nobler\": 3 words; text 1 of process" \
    "ended, with 0 surprises"
run snapshot_reader "1000 versions published, 0 torn reads" "1000 freed in all"
run embed_poll "main: read 'c' from its own pipe" "meter: report 5, total 30" "slept in between"
run embed_uv "libuv: tick 5" "actor: ends with 15: done: no senders left"
run simulate "one message:      the balance was wrong with 0 of 200 seeds" "replay it with"

# The seed it names fails again when it is replayed.
seed=$(sed -n 's/.*replay it with .* \([0-9]*\)`$/\1/p' "$work/out")
if "$build/examples/simulate" "${seed:-none}" | tail -n 1 | grep -q "^seed $seed: .* instead of 20, trace "; then
    passed=$((passed + 1))
    echo "ok - examples/simulate $seed"
else
    failed=$((failed + 1))
    echo "not ok - examples/simulate: seed '$seed' does not replay"
fi

# Any other one at least ends well.
for source in examples/*.c; do
    name=$(basename "$source" .c)
    case " $known " in
    *" $name "*) ;;
    *) run "$name" ;;
    esac
done

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
