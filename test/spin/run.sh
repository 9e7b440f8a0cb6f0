#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test/spin/run.sh: check every model, and that every broken variant of it is caught.
#
#   test/spin/run.sh [PATTERN]    only cases whose name matches PATTERN
#   TROUPE_LONG=1                 the large parameters too: minutes, and up to 6 GB
#
# One line a case, then "N passed, N failed, N skipped". Without spin or gcc nothing is checked and that is said.
set -u
here=$(cd "$(dirname "$0")" && pwd)

# name | model | defines | what it shows, or for a broken variant: what must be found | text of the violated assertion
#
# "ends" cases look for executions that never end, with -DNP: a model has no progress labels, so any cycle counts.
cases='
mailbox|mailbox|-DWITH_TELL|no lost message or wake-up, one worker a turn, count back to 0, order per sender|
mailbox-cap1|mailbox|-DWITH_TELL -DCAP=1|the same with capacity 1|
mailbox-split|mailbox|-DWITH_TELL -DCAP=1 -DSPLIT|the same with load and swap of a send as two steps|
mailbox-stop|mailbox|-DWITH_TELL -DWITH_STOP -DCAP=1|closing gives every message its fate and resumes the parked|
mailbox-kill|mailbox|-DWITH_KILL -DCAP=1 -DROUNDS=2|a parked actor runs control, and may be killed|
mailbox-ends|mailbox|-DWITH_TELL|every execution ends|
mailbox-idle-broken|mailbox|-DBROKEN_IDLE -DWITH_TELL|an accepted message that nobody handles|accepted==
mailbox-recheck-broken|mailbox|-DBROKEN_RECHECK -DWITH_TELL|a sender that stays parked for ever|parked[1]
mailbox-sched-broken|mailbox|-DBROKEN_SCHED -DWITH_TELL -DCAP=1|two workers in the turn of one actor|!(inturn[a])
mailbox-head-broken|mailbox|-DBROKEN_HEAD -DWITH_TELL|a count that does not return to 0: a cell was lost|==counted
mailbox-low-broken|mailbox|-DBROKEN_LOW -DWITH_TELL -DCAP=1|a sender that stays parked for ever|parked[1]
mailbox-stale-broken|mailbox|-DBROKEN_STALE -DWITH_TELL|an idle box whose word says that somebody waits|(W==0)
mailbox-batch-broken|mailbox|-DBROKEN_BATCH -DWITH_TELL -DCAP=1|a sender that stays parked for ever|parked[1]
mailbox-unpark-broken|mailbox|-DBROKEN_UNPARK -DCAP=1 -DROUNDS=2|a resumed sender that never runs again|rounds[1]
mailbox-close-broken|mailbox|-DBROKEN_CLOSE -DWITH_STOP -DCAP=1|a sender parked for ever on a closed box|parked[1]
mailbox-kill-broken|mailbox|-DBROKEN_KILL -DWITH_KILL -DCAP=1|a wake-up pushed to an actor that is gone|V[1]&16
registry|registry||one actor a key, nothing lost, order kept, no closed box from get, the idle passivated|
registry-stop|registry|-DWITH_STOP|the same when an actor stops itself under its senders|
registry-weak|registry|-DWITH_WEAK|the same when somebody sends through a weak sender|
registry-ends|registry||every execution ends|
registry-get-broken|registry|-DBROKEN_GET|two actors of one key running|running==0
registry-strong-broken|registry|-DBROKEN_STRONG|a closed box in the hands of a client|violated ok
registry-start-broken|registry|-DBROKEN_START|two actors of one key running|running==0
registry-defer-broken|registry|-DBROKEN_DEFER|a successor that never starts|accepted==handled
registry-lost-broken|registry|-DBROKEN_LOST -DWITH_STOP|an accepted message that nobody handles|accepted==handled
registry-behind-broken|registry|-DBROKEN_BEHIND -DWITH_STOP|messages of one client in the wrong order|last[
waitcycle|waitcycle|-DOPS=2|holds: every cycle is found, no report is false|
waitcycle-deadline|waitcycle|-DTIMEOUTS=1|the same when a hold runs into its deadline|
waitcycle-forward|waitcycle|-DFORWARD|the same when an ask is passed on|
waitcycle-park|waitcycle|-DPARK|the same with actors parked on full boxes|
waitcycle-ends|waitcycle||every execution ends|
waitcycle-order-broken|waitcycle|-DBROKEN_ORDER|actors that wait for each other for ever|stuck[0]
waitcycle-clear-broken|waitcycle|-DBROKEN_CLEAR|a report of a cycle that was none|really
waitcycle-verify-broken|waitcycle|-DBROKEN_VERIFY|a report of a cycle that was none|really
waitcycle-late-broken|waitcycle|-DBROKEN_LATE -DTIMEOUTS=1 -DOPS=2|actors that wait for each other for ever|stuck[0]
waitcycle-ask-broken|waitcycle|-DBROKEN_ASK|a report of a cycle that was none|really
waitcycle-move-broken|waitcycle|-DBROKEN_MOVE -DFORWARD|actors that wait for each other for ever|stuck[0]
waitcycle-stay-broken|waitcycle|-DBROKEN_STAY -DFORWARD|actors that wait for each other for ever|stuck[0]
waitcycle-early-broken|waitcycle|-DBROKEN_EARLY -DPARK|a report of a cycle that was none|really
waitcycle-busy-broken|waitcycle|-DBROKEN_BUSY -DPARK -DOPS=2|actors that wait for each other for ever|stuck[0]
waitcycle-flush-broken|waitcycle|-DBROKEN_FLUSH -DPARK|a report of a cycle that was none|really
shutdown|shutdown||freed once and never used after, every message has its fate, no senders is the end|
shutdown-op|shutdown|-DWITH_OP -DNO_CLONE|a stop through a weak sender reaches the actor that was meant, or nobody|
shutdown-ends|shutdown|-DNO_WEAK|every execution ends|
shutdown-upgrade-broken|shutdown|-DBROKEN_UPGRADE|a slot used after it was freed|in_use
shutdown-again-broken|shutdown|-DBROKEN_AGAIN|a weak sender that reaches a stranger|life==1
shutdown-both-broken|shutdown|-DBROKEN_BOTH|a slot freed twice|pins>=n
shutdown-sched-broken|shutdown|-DBROKEN_SCHED|an actor without senders that never ends|freed==2
shutdown-asks-broken|shutdown|-DBROKEN_ASKS|an answer to a slot that is free|in_use
shutdown-op-broken|shutdown|-DBROKEN_OP -DWITH_OP|a stranger told to stop|life==1
shutdown-self-broken|shutdown|-DBROKEN_SELF|a slot freed while its owner still works in it|inturn
'
long_cases='
mailbox-split2|mailbox|-DWITH_TELL -DSPLIT|capacity 2, load and swap of a send as two steps|
mailbox-rounds|mailbox|-DWITH_TELL -DCAP=1 -DROUNDS=2|senders that park twice|
mailbox-ping|mailbox|-DWITH_PING -DWITH_STOP -DCAP=1 -DROUNDS=2|control to a parked sender, and a stop|
mailbox-quantum|mailbox|-DWITH_TELL -DWITH_STOP -DQUANTUM=1|turns of one message|
registry-both|registry|-DWITH_STOP -DWITH_WEAK|actors that stop themselves, and a weak sender|
waitcycle-again|waitcycle|-DTIMEOUTS=1 -DOPS=2|two holds each, one runs into its deadline|
waitcycle-mixed|waitcycle|-DPARK -DFORWARD|holds, parks and an ask passed on|
waitcycle-park-ends|waitcycle|-DPARK|every execution ends|
shutdown-op-all|shutdown|-DWITH_OP|the same as shutdown-op, with all senders|
shutdown-all-ends|shutdown||every execution ends|
'

# Generate, compile and run one verifier in a directory of its own; prints the line of the case.
run_case() {
    local name=$1 model=$2 defines=$3 shows=$4 violated=$5
    local compile="$optimize -DSAFETY" options="" states seconds
    mkdir "$name" && cd "$name" || exit 1
    case $name in
    *-ends) compile="$optimize -DNP" options=-l ;;
    *-broken) compile="-O0 -DSAFETY" ;;     # stops at the first error
    esac
    cp "$here/$model.pml" .
    # shellcheck disable=SC2086 # lists of options
    if ! { spin $defines -a "$model.pml" && gcc -w $compile -DMEMLIM="$memory_mb" -o pan pan.c; } >out 2>&1; then
        echo "not ok - $name: could not be built: $(head -1 out)"
        return
    fi
    # shellcheck disable=SC2086
    timeout "$limit_s" ./pan -m10000 $options >out 2>&1
    states=$(awk '/states, stored/ { print $1 }' out)
    seconds=$(awk '/elapsed time/ { print $4 }' out)
    if [ -n "$violated" ]; then
        if grep -q "errors: 1" out && grep "^pan:1:" out | grep -qF "$violated"; then
            echo "ok $name: found $shows"
        else
            echo "not ok - $name: not caught: $(grep -m1 -e '^pan:1:' -e 'errors:' out)"
        fi
    elif ! grep -q "errors: 0" out; then
        echo "not ok - $name: $(grep -m1 '^pan:1:' out || echo "no result within $limit_s s")"
    elif grep -q -e "search depth too small" -e "MEMLIM" -e "not completed" -e "out of memory" out; then
        echo "not ok - $name: the search was not exhaustive: $(grep -m1 -e depth -e MEMLIM -e completed -e memory out)"
    else
        echo "ok $name: $shows ($states states, $seconds s)"
    fi
}

if [ "${1:-}" = --case ]; then
    IFS='|' read -r name model defines shows violated <<<"$2"
    cd "$work" && run_case "$name" "$model" "$defines" "$shows" "$violated"
    exit
fi

for tool in spin gcc; do
    if ! command -v $tool >/dev/null; then
        echo "ok - models # SKIP $tool is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
done

# For searches of a few seconds -O2 takes longer to compile than it saves.
export work memory_mb=1500 limit_s=60 optimize=-O1
if [ -n "${TROUPE_LONG:-}" ]; then
    cases="$cases$long_cases" memory_mb=6000 limit_s=600 optimize=-O2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
jobs=$(nproc)
[ "$jobs" -le 4 ] || jobs=4     # each may take memory_mb
[ -z "${TROUPE_LONG:-}" ] || jobs=2
printf '%s\n' "$cases" | grep -v '^$' | grep -e "^[^|]*${1:-}" |
    xargs -d '\n' -n 1 -P "$jobs" "$0" --case | tee "$work/lines"
passed=$(grep -c '^ok ' "$work/lines")
failed=$(grep -c '^not ok ' "$work/lines")
wanted=$(printf '%s\n' "$cases" | grep -v '^$' | grep -c -e "^[^|]*${1:-}")
if [ $((passed + failed)) -ne "$wanted" ]; then
    echo "not ok - models: $((wanted - passed - failed)) of $wanted cases said nothing"
    failed=$((failed + wanted - passed - failed))
fi
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
