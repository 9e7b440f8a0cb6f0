#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every command explains itself with an example, says what is wrong with a wrong command line (exit
# status 2), and says so when there is no server (exit status 1).
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
for name in $(env | sed -n 's/^\(TROUPE_[A-Z_]*\)=.*/\1/p'); do
    unset "$name"
done

fail() {
    failed=$((failed + 1))
    echo "not ok - $1: $2"
    cat "$work/out" "$work/err"
}

# check NAME STATUS TEXT COMMAND...: TEXT is somewhere in its output
check() {
    name=$1
    wanted=$2
    text=$3
    shift 3
    timeout 60 "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    if [ $status -ne "$wanted" ]; then
        fail "$name" "exit status $status, wanted $wanted"
    elif ! cat "$work/out" "$work/err" | grep -qF -- "$text"; then
        fail "$name" "does not say: $text"
    else
        passed=$((passed + 1))
    fi
}

commands=$("$troupe" --help | sed -n 's/^  \([a-z][a-z-]*\)  *[a-z].*/\1/p' | grep -v -e '^help$' -e '^troupe$' | sort -u)
for command in serve status actors config flags drain backup restore verify migrate import tour; do
    echo "$commands" | grep -qx "$command" || {
        failed=$((failed + 1))
        echo "not ok - help does not list $command"
    }
done
for command in $commands; do
    check "$command --help" 0 "Example" "$troupe" "$command" --help
    check "$command --help" 0 "troupe $command" "$troupe" "$command" --help
    check "help $command" 0 "usage: troupe $command" "$troupe" help "$command"
    check "$command --dance" 2 "troupe $command --help" "$troupe" "$command" --dance
done

# Options that mean nothing to a command are not in its help; those that do are.
for command in status actors drain flags convo check backup restore verify migrate import packs; do
    for option in --listen --log-format; do
        if "$troupe" "$command" --help | grep -q -e "^ *$option "; then
            fail "$command --help" "it lists $option"
        else
            passed=$((passed + 1))
        fi
    done
    check "$command --help" 0 "--set" "$troupe" "$command" --help
    check "$command --help" 0 "--data DIR" "$troupe" "$command" --help
done
check "serve --help" 0 "--log-format" "$troupe" serve --help
check "convo --help" 0 "planned:" "$troupe" convo --help
check "convo --help" 0 "numbered:" "$troupe" convo --help

nobody="--admin 127.0.0.1:1 --data $work"
check "status of nobody" 1 "No server answers on 127.0.0.1:1" "$troupe" status $nobody
check "flags of nobody" 1 "No server answers on 127.0.0.1:1" "$troupe" flags $nobody
check "drain without a token" 1 "needs the admin token" "$troupe" drain $nobody
check "flags without a token" 1 "needs the admin token" "$troupe" flags rollback x $nobody
check "status of data without a server" 1 "No server runs with the data in $work." "$troupe" status --data "$work"
check "drain of data without a server" 1 "No server runs with the data in $work, so there is none to stop." "$troupe" drain --data "$work"
check "how to start a server" 1 "troupe serve --dev --data $work" "$troupe" status --data "$work"
check "flags: a wrong part" 2 "There is no percentage like 10%" "$troupe" flags set x 200% $nobody
check "flags: no name" 2 "There is no NAME of a flag" "$troupe" flags set
check "flags: a path for a name" 2 "There is no NAME of a flag" "$troupe" flags rollback ../../drain
check "flags: an unknown word" 2 "takes list, set or rollback, not 'dance'." "$troupe" flags dance
check "a misspelled command" 2 "There is no command 'stauts'; did you mean 'status'?" "$troupe" stauts
check "an unknown command" 2 "There is no command 'dance'." "$troupe" dance
check "status: a word too many" 2 "'dance'" "$troupe" status dance
check "backup: no file" 2 "Name the file to write" "$troupe" backup
check "backup: a file too many" 2 "'two'" "$troupe" backup one two
check "backup of nothing" 1 "There is no database at $work/troupe.db" "$troupe" backup "$work/copy" --data "$work"
check "restore: no file" 2 "Name the backup to restore" "$troupe" restore
check "restore of nothing" 1 "$work/copy cannot be read" "$troupe" restore "$work/copy" --data "$work/none"
check "restore of something else" 1 "is not a backup" "$troupe" restore "$0" --data "$work/none"
check "verify of nothing" 1 "There is no database at $work/troupe.db" "$troupe" verify --data "$work"
check "migrate: nothing to do" 2 "status, up or down --to N" "$troupe" migrate
check "migrate: an unknown word" 2 "not 'dance'" "$troupe" migrate dance
check "migrate: down to where" 2 "Name the version to go down to" "$troupe" migrate down
check "migrate: a wrong version" 2 "not '1x'" "$troupe" migrate up 1x
check "migrate: the old form of down" 2 'as in `troupe migrate down --to 3`, not as '"'1'." "$troupe" migrate down 1
check "migrate: down to a wrong version" 2 "--to takes the number of a version, not '1x'." "$troupe" migrate down --to 1x
check "migrate: up with the option of down" 2 'belong to `troupe migrate down`' "$troupe" migrate up --to 3
check "migrate: a status of a version" 2 'status` takes no version' "$troupe" migrate status 3
check "packs: nobody there" 1 "No server answers" "$troupe" packs list --server http://127.0.0.1:1
check "packs: of data without a server" 1 "No server runs with the data in $work." "$troupe" packs list --data "$work"
check "packs: nothing to do" 2 "push, get, verify, list or rotate" "$troupe" packs
check "packs: no file" 2 "Name the file" "$troupe" packs push
check "packs: no name" 2 "Name the pack with --name NAME" "$troupe" packs push "$0" --version 1
check "packs: no version" 2 "Name the version with --version V" "$troupe" packs push "$0" --name x
check "packs: a wrong name" 2 "does not begin with a dot, unlike 'Core X'" "$troupe" packs push "$0" --name "Core X"
check "packs: a wrong encoding" 2 "--encoding takes zstd or gzip, not 'br'." \
    "$troupe" packs push "$0" --name x --version 1 --encoding br
check "packs: a wrong key to trust" 2 "--trust takes an Ed25519 key" "$troupe" packs get x --trust y --server http://127.0.0.1:1
check "packs: a wrong setting" 2 "no.such is not a setting" "$troupe" packs get x --set no.such=1 --server http://127.0.0.1:1
check "packs: a setting without its value" 2 "--set takes KEY=VALUE" "$troupe" packs list --set no.such
check "packs: no token" 1 "needs the admin token" "$troupe" packs push "$0" --name x --version 1 $nobody
check "packs: a path for a name" 2 "A pack name has" "$troupe" packs get ../x
check "packs: an unknown word" 2 "takes push, get, verify, list or rotate, not 'dance'." "$troupe" packs dance
check "sync: nothing to do" 2 "Name the action" "$troupe" sync
check "sync: an unknown action" 2 "There is no action 'dance'." "$troupe" sync dance
check "sync: no text" 2 'sync send` takes ROOM TEXT' "$troupe" sync send '!r:x'
check "sync: no password" 2 "--password-file F" "$troupe" sync login --homeserver http://127.0.0.1:1 --user ada
check "sync: a password and a token" 2 "Use --password-file or --token-file, not both" \
    "$troupe" sync login --homeserver http://127.0.0.1:1 --user ada --password-file x --token-file y
check "sync: a token and a user" 2 "use --token-file without --user" \
    "$troupe" sync login --homeserver http://127.0.0.1:1 --user ada --token-file y
check "sync: a token and no homeserver" 2 "--homeserver URL and either" "$troupe" sync login --token-file y
check "sync: a token that is not for login" 2 "only login takes --token-file" "$troupe" sync tail --token-file y
check "sync: no token file" 1 "The token file /nowhere cannot be read" \
    "$troupe" sync login --homeserver http://127.0.0.1:1 --token-file /nowhere --data "$work/sync4"
check "sync: what to leave" 2 'sync leave` takes ROOM' "$troupe" sync leave
check "sync: a state of no type" 2 'sync state` takes ROOM TYPE' "$troupe" sync state '!r:x'
mkdir -m 700 "$work/sync" "$work/sync2" "$work/sync3"
check "sync: no emoji" 1 "The file of --emoji /nowhere cannot be read" "$troupe" sync verify @b:x --emoji /nowhere --data "$work/sync3"
check "sync: no directory" 1 "There is no directory $work/mistyped" "$troupe" sync status --data "$work/mistyped"
check "sync: no size" 2 "--save-max takes a number of bytes from 1 on, not '1G'." "$troupe" sync tail --save-max 1G
check "sync: whom to verify" 2 "USER [DEVICE], or verify --listen" "$troupe" sync verify
check "sync: a wrong policy" 2 "--share takes verified, halt or all, not 'some'." "$troupe" sync rooms --share some
check "sync: two keys" 2 "Use --key-file or --key-fd, not both" "$troupe" sync rooms --key-file x --key-fd 3
check "sync: nobody has logged in" 1 "Run \`troupe sync login" "$troupe" sync rooms --data "$work/sync"
check "sync: a status without a login" 0 "the homeserver is not known" "$troupe" sync status --data "$work/sync"
check "sync: a key that is none" 1 "64 hexadecimal digits" "$troupe" sync rooms --data "$work/sync2" --key-file /dev/null
echo secret >"$work/password"
check "sync: no homeserver" 1 "No homeserver answers at http://127.0.0.1:1." \
    "$troupe" sync login --data "$work/sync" --homeserver http://127.0.0.1:1 --user ada --password-file "$work/password"
check "an option without its value" 2 "no value after '--data'" "$troupe" status --data

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
