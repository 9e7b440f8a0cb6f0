#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `troupe config`: where values come from, what is refused, that no secret is shown, and that the
# manual has the table that the program has.
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
# The tests' own variables are no settings.
for name in $(env | sed -n 's/^\(TROUPE_[A-Z_]*\)=.*/\1/p'); do
    unset "$name"
done

fail() {
    failed=$((failed + 1))
    echo "not ok - $1: $2"
}

# check NAME STATUS COMMAND...
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

has() {
    if grep -qF -- "$2" "$work/$1"; then
        passed=$((passed + 1))
    else
        fail "$name" "its $1 does not say: $2"
        cat "$work/$1"
    fi
}

cat >"$work/good.conf" <<'EOF'
; a comment
[server]
listen = 127.0.0.1:1111
[sql]
url = postgresql://troupe:hush-hush@db/troupe
[log]
level = warn
EOF
cat >"$work/bad.conf" <<'EOF'
[server]
lissten = 127.0.0.1:1111

[http]
in_flight_max = many
EOF

cp "$work/good.conf" "$work/named.conf"
printf '[auth]\nservice_did = did:web:chat.example.org\n' >>"$work/named.conf"
check "check of a good file" 0 "$troupe" config check "$work/named.conf" && has out "named.conf: ok"
check "check of a bad file" 1 "$troupe" config check "$work/bad.conf" &&
    has err "bad.conf:2: server.lissten is not a setting; did you mean server.listen?" &&
    has err "bad.conf:5: http.in_flight_max is 'many'; it must be a whole number."
check "check of no file" 1 "$troupe" config check "$work/none.conf" && has err "none.conf: The file does not exist."
check "check without a file" 2 "$troupe" config check
check "check does not ask the environment" 0 env TROUPE_LOG_LEVEL=loud "$troupe" config check "$work/named.conf"
check "check takes no name from the environment" 1 env TROUPE_AUTH_SERVICE_DID=did:web:x.example "$troupe" config check "$work/good.conf"

# refused SECTION LINE TEXT: the check of a file with that line says what a start would say
refused() {
    printf '[%s]\n%s\n' "$1" "$2" >"$work/one.conf"
    check "check of $1: $2" 1 "$troupe" config check "$work/one.conf" && has err "one.conf:2: $3"
}
refused server "listen = 8080" "server.listen is '8080'; it must be an address like 127.0.0.1:8080"
refused admin "listen = localhost" "admin.listen is 'localhost'; it must be an address"
refused admin "listen = 0.0.0.0:8081" "admin.listen is 0.0.0.0:8081, which other machines can reach; set admin.token_file"
refused server "trusted_proxies = 10.0.0.0/8, foo" "server.trusted_proxies is 'foo'; it must be networks like 10.0.0.0/8, or addresses."
refused server "tls_key = /k.pem" "server.tls_certificate is not set; name the PEM file"
refused server "tls_certificate = /c.pem" "server.tls_key is not set; name the PEM file"
refused sql "url = mysql://x:hush@y" "sql.url must be sqlite:PATH"
refused auth "providers = google" "auth.providers is 'google'; it must be NAME+ISSUER+KEYS+CLIENT_ID"
refused auth "providers = a+https://a+b+c" "auth.providers is 'a+https://a+b+c'; it must be NAME+ISSUER+KEYS+CLIENT_ID"
refused auth "service_did = foo" "auth.service_did is 'foo'; it must be a DID"
refused auth "service_did = did:web:chat.example.org#x" "auth.service_did is 'did:web:chat.example.org#x'; it must be a DID"
refused auth "plc_directory = foo" "auth.plc_directory is 'foo'; it must be a URL"
refused trace "url = https:///v1" "trace.url is 'https:///v1'; it must be a URL"
for url in htps://push.example.org/wake?key=hush https:///wake https://me:hush@push.example.org/wake \
    https://push.example.org:99999/hush; do
    refused delivery "push_url = $url" "delivery.push_url must be a URL"
    grep -q hush "$work/err" && fail "$name" "it shows the secret"
done
refused log "levels = sql=warm" "log.levels is 'sql=warm'; it must be MODULE=LEVEL"
one="+https://a.example+https://a.example/keys+x"
printf '[auth]\nproviders = 1%s\n' "$one" >"$work/nine.conf"
for number in 2 3 4 5 6 7 8 9; do
    echo "  $number$one" >>"$work/nine.conf"
done
check "check of nine providers" 1 "$troupe" config check "$work/nine.conf" && has err "auth.providers has 9 providers; the most is 8."
check "check without a service" 1 "$troupe" config check "$work/good.conf" &&
    has err "good.conf: NOT ENOUGH TO START: auth.service_did is not set."
if [ -s "$work/out" ]; then
    fail "$name" "says that the file is correct as well"
fi
cat >"$work/whole.conf" <<'EOT'
[server]
listen = [::1]:8080
trusted_proxies = 10.0.0.0/8,
  192.168.0.0/16
[auth]
service_did = did:web:chat.example.org
providers = google+https://accounts.google.com+https://www.googleapis.com/oauth2/v3/certs+CLIENT_ID
[log]
levels = sql=debug, http=warn
[trace]
url = http://127.0.0.1:4318/v1/traces
EOT
check "check of a whole file" 0 "$troupe" config check "$work/whole.conf" && has out "whole.conf: ok (form only"
if grep -q service_did "$work/out" "$work/err"; then
    fail "$name" "misses a service that is there"
fi
check "a list over two lines has one comma between them" 0 "$troupe" config show --config "$work/whole.conf" &&
    has out "trusted_proxies = 10.0.0.0/8,192.168.0.0/16"

check "show, with origins" 0 env TROUPE_LOG_FORMAT=json "$troupe" config show --origin --config "$work/good.conf" \
    --listen 127.0.0.1:2222 --set http.in_flight_max=7
has out "listen = 127.0.0.1:2222"
has out "; flag --listen"
has out "in_flight_max = 7"
has out "; flag --set"
has out "format = json"
has out "; environment TROUPE_LOG_FORMAT"
has out "level = warn"
has out "; file $work/good.conf:7"
has out "; default"
has out "postgresql://troupe:********@db/troupe"
check "show as JSON" 0 "$troupe" config show --json --config "$work/good.conf"
if ! python3 -c 'import json,sys; c=json.load(open(sys.argv[1])); assert c["log.level"]["value"]=="warn" and c["log.level"]["origin"]=="file"' "$work/out"; then
    fail "$name" "not the JSON that was expected"
else
    passed=$((passed + 1))
fi
for format in "" --origin --json; do
    "$troupe" config show $format --config "$work/good.conf" >"$work/out" 2>&1
    if grep -q hush "$work/out"; then
        fail "show $format" "shows a secret"
    else
        passed=$((passed + 1))
    fi
done
check "show with a bad environment" 1 env TROUPE_HTTP_IN_FLIGHT=3 "$troupe" config show &&
    has err "TROUPE_HTTP_IN_FLIGHT: http.in_flight is not a setting; did you mean http.in_flight_max?"
check "show with a bad flag" 1 "$troupe" config --set log.level=loud && has err "--set: log.level is 'loud'"
check "set without a value" 2 "$troupe" config --set log.level && has err "KEY=VALUE"

# What is listed can be used.
check "list" 0 "$troupe" config list && cp "$work/out" "$work/listed.conf"
check "a listed file misses the service alone" 1 "$troupe" config check "$work/listed.conf"
if [ "$(wc -l <"$work/err")" != 1 ]; then
    fail "$name" "has other errors"
fi
has err "NOT ENOUGH TO START"
sed -n 's/^# \([a-z_]* = .*\)/\1/p; s/^\(\[.*\)/\1/p' "$work/listed.conf" >"$work/defaults.conf"
check "and so do the defaults in it" 1 "$troupe" config check "$work/defaults.conf"
if [ "$(wc -l <"$work/err")" != 1 ]; then
    fail "$name" "have other errors"
fi
has err "NOT ENOUGH TO START"

# The manual.
check "list --markdown" 0 "$troupe" config list --markdown
sed -n '/^<!-- settings -->$/,/^<!-- end -->$/p' docs/operations.md | grep '^|' >"$work/manual"
if diff -u "$work/manual" "$work/out"; then
    passed=$((passed + 1))
else
    fail "docs/operations.md" "its table of settings is not that of the program: troupe config list --markdown"
fi

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
