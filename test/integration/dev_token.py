#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe dev-token` as it ships: the key file it makes, the tokens it prints, and what it says to a wrong command line."""
import base64
import concurrent.futures
import hashlib
import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))
TROUPE = os.path.join(BUILD, "troupe")
LIMIT_S = 30
LXM = "blue.catbird.mls.getConvos"

# secp256k1
P = 2**256 - 2**32 - 977
N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
G = (0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
     0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8)
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("TROUPE_")}


def run(*arguments, status=0, umask=0o022):
    done = subprocess.run([TROUPE, "dev-token", *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                          check=False, env=environment(), stdin=subprocess.DEVNULL, umask=umask)
    assert done.returncode == status, f"{arguments}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


# ---- a second opinion on the tokens, from the words of the specifications -------------------------------------------


def unpack(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def add(a, b):
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % P == 0:
        return None
    if a == b:
        slope = 3 * a[0] * a[0] * pow(2 * a[1], -1, P)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, P)
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def times(number, point):
    result = None
    while number:
        if number & 1:
            result = add(result, point)
        point = add(point, point)
        number >>= 1
    return result


def point_of(did):
    """did:key:z… of secp256k1: base58btc of the multicodec prefix e7 01 and a compressed point."""
    assert did.startswith("did:key:zQ3s"), did
    number = 0
    for character in did[len("did:key:z"):]:
        number = number * 58 + BASE58.index(character)
    packed = number.to_bytes(35, "big")
    assert packed[:2] == b"\xe7\x01" and packed[2] in (2, 3), packed.hex()
    x = int.from_bytes(packed[3:], "big")
    y = pow(x**3 + 7, (P + 1) // 4, P)
    assert (y * y - x**3 - 7) % P == 0, "not on the curve"
    return x, y if y % 2 == packed[2] % 2 else P - y


def verified(token):
    """The claims of a token whose signature is right under its issuer's own key."""
    head, body, signature = token.split(".")
    assert json.loads(unpack(head)) == {"alg": "ES256K", "typ": "JWT"}, unpack(head)
    claims = json.loads(unpack(body))
    packed = unpack(signature)
    assert len(packed) == 64, len(packed)
    r, s = int.from_bytes(packed[:32], "big"), int.from_bytes(packed[32:], "big")
    assert 0 < r < N and 0 < s <= N // 2, "not in the lower half"
    digest = int.from_bytes(hashlib.sha256(f"{head}.{body}".encode()).digest(), "big")
    inverse = pow(s, -1, N)
    point = add(times(digest * inverse % N, G), times(r * inverse % N, point_of(claims["iss"])))
    assert point is not None and point[0] % N == r, "the signature does not fit"
    return claims


# ---- cases ----------------------------------------------------------------------------------------------------------


def key_file_is_made_for_its_owner_alone(folder):
    path = os.path.join(folder, "dev.key")
    done = run("--key", path, "--lxm", LXM, umask=0)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, oct(os.stat(path).st_mode)
    assert os.listdir(folder) == ["dev.key"], os.listdir(folder)
    with open(path, encoding="utf-8") as file:
        key = json.load(file)
    did = verified(done.stdout.strip())["iss"]
    assert (key["kty"], key["crv"], key["kid"]) == ("EC", "secp256k1", did), key.keys()
    assert did in done.stderr and path in done.stderr, done.stderr
    assert key["d"] not in done.stderr + done.stdout
    again = run("--key", path, "--lxm", LXM)
    assert again.stderr == "", again.stderr
    assert verified(again.stdout.strip())["iss"] == did, "the identity changed"


def token_says_what_it_is_for(folder):
    path = os.path.join(folder, "dev.key")
    before = int(time.time())
    claims = verified(run("--key", path, "--lxm", LXM).stdout.strip())
    after = int(time.time())
    assert claims["aud"] == "did:web:localhost" and claims["lxm"] == LXM, claims
    assert before <= claims["iat"] <= after and claims["exp"] == claims["iat"] + 60, claims
    assert re.fullmatch("[0-9a-f]{32}", claims["jti"]), claims
    assert set(claims) == {"iss", "aud", "lxm", "jti", "iat", "exp"}, claims
    other = verified(run(f"--key={path}", f"--lxm={LXM}", "--aud", "did:web:example.com#mls").stdout.strip())
    assert other["aud"] == "did:web:example.com#mls", other


def count_prints_so_many_each_its_own(folder):
    path = os.path.join(folder, "dev.key")
    lines = run("--key", path, "--lxm", LXM, "--count", "200").stdout.splitlines()
    assert len(lines) == 200 and len(set(lines)) == 200
    claims = [verified(line) for line in lines[::40]]
    assert len({claim["jti"] for claim in claims}) == len(claims) and len({claim["iss"] for claim in claims}) == 1


def two_at_once_agree_on_one_identity(folder):
    path = os.path.join(folder, "dev.key")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        said = list(pool.map(lambda _: run("--key", path, "--lxm", LXM).stdout.strip(), range(6)))
    assert len({verified(token)["iss"] for token in said}) == 1, "there are two identities"
    assert os.listdir(folder) == ["dev.key"], os.listdir(folder)


def wrong_key_files_are_refused_and_left_alone(folder):
    path = os.path.join(folder, "dev.key")
    run("--key", path, "--lxm", LXM)
    os.chmod(path, 0o640)
    done = run("--key", path, "--lxm", LXM, status=1)
    assert "chmod 600" in done.stderr and done.stdout == "", done.stderr
    # A file that is no key is not to be made private.
    done = run("--key", os.path.abspath(__file__), "--lxm", LXM, status=1)
    assert "chmod" not in done.stderr and "no key" in done.stderr, done.stderr
    done = run("--key", os.path.join(folder, "none/dev.key"), "--lxm", LXM, status=1)
    assert "The folder of this file does not exist; create it first." in done.stderr, done.stderr
    for name, text in {"empty": "", "words": "not a key", "public": '{"kty":"EC","crv":"secp256k1"}',
                       "secret": '{"kty":"oct","k":"' + "A" * 43 + '"}', "huge": "{" + " " * 5000 + "}"}.items():
        wrong = os.path.join(folder, name)
        with open(wrong, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(wrong, 0o600)
        done = run("--key", wrong, "--lxm", LXM, status=1)
        assert wrong in done.stderr and done.stdout == "", done.stderr
        with open(wrong, encoding="utf-8") as file:
            assert file.read() == text, "it was changed"
    run("--key", folder, "--lxm", LXM, status=1)
    run("--key", os.path.join(folder, "no", "where"), "--lxm", LXM, status=1)
    assert not os.path.exists(os.path.join(folder, "no"))


def wrong_arguments_say_what_to_do(folder):
    path = os.path.join(folder, "dev.key")
    rows = [
        ([], "--key FILE is missing"),
        (["--key", path], "--lxm NSID is missing"),
        (["--lxm", LXM], "--key FILE is missing"),
        (["--key"], "There is no value after"),
        (["--key", path, "--lxm", "send"], "--lxm is a method like"),
        (["--key", path, "--lxm", "com..send"], "--lxm is a method like"),
        (["--key", path, "--lxm", 'com.example.a"b'], "--lxm is a method like"),
        (["--key", path, "--lxm", LXM, "--aud", "localhost"], "--aud is a DID like"),
        (["--key", path, "--lxm", LXM, "--aud", "did:web:localhost#"], "--aud is a DID like"),
        (["--key", path, "--lxm", LXM, "--count", "0"], "--count is a number"),
        (["--key", path, "--lxm", LXM, "--count", "10001"], "--count is a number"),
        (["--key", path, "--lxm", LXM, "--count", "-1"], "--count is a number"),
        (["--key", path, "--lxm", LXM, "--count", "x"], "--count is a number"),
        (["--key", path, "--lxm", LXM, "--what"], "There is no option"),
        (["--key", path, "--lxm", LXM, "more"], "There is one argument too many"),
    ]
    for arguments, text in rows:
        done = run(*arguments, status=2)
        assert text in done.stderr and done.stdout == "", f"{arguments}: {done.stderr}"
    assert os.listdir(folder) == [], "a wrong command line made a file"
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([TROUPE, "dev-token", "--key", path, "--lxm", LXM, "--count", "100"], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False, env=environment())
    assert done.returncode == 1 and "The tokens could not be written" in done.stderr, done.stderr


def help_names_every_option(_folder):
    said = run("--help").stdout
    for word in ("--key FILE", "--lxm NSID", "--aud DID", "--count N", "did:web:localhost", "troupe serve --dev"):
        assert word in said, f"{word!r} is not in the help"
    assert said == run("-h").stdout


def server_in_development_takes_them(folder):
    """One that brings a token is known by it: what is wrong with a request is then something else."""
    # pylint: disable=consider-using-with  # it ends below
    process = subprocess.Popen(
        [TROUPE, "serve", "--dev", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data",
         os.path.join(folder, "data")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment())
    try:
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        public = re.search(r"public +http://(\S+)", said)
        if not public:
            return "troupe serve --dev does not start in this build"
        path = os.path.join(folder, "dev.key")
        for line in run("--key", path, "--lxm", LXM, "--count", "3").stdout.splitlines():
            verified(line)
        status, body = ask(public.group(1), None)
        if status == 404:
            return "this build serves no method that wants a token"
        assert status == 401 and "TokenMissing" in body, (status, body)
        token = run("--key", path, "--lxm", LXM).stdout.strip()
        status, body = ask(public.group(1), token)
        assert status == 200, (status, body)
        status, body = ask(public.group(1), run("--key", path, "--lxm", "com.example.other").stdout.strip())
        assert status == 401 and "MethodMismatch" in body, (status, body)
        status, body = ask(public.group(1), run("--key", path, "--lxm", LXM, "--aud", "did:web:a.b").stdout.strip())
        assert status == 401 and "AudienceMismatch" in body, (status, body)
        head, claims, signature = token.split(".")
        status, body = ask(public.group(1), f"{head}.{claims}.{signature[::-1]}")
        assert status == 401, (status, body)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    return None


def ask(address, token):
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    connection.request("GET", f"/xrpc/{LXM}", headers={"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def main():
    if not os.access(TROUPE, os.X_OK):
        print(f"there is no {TROUPE}: run make release")
        return 77
    cases = [key_file_is_made_for_its_owner_alone, token_says_what_it_is_for, count_prints_so_many_each_its_own,
             two_at_once_agree_on_one_identity, wrong_key_files_are_refused_and_left_alone,
             wrong_arguments_say_what_to_do, help_names_every_option, server_in_development_takes_them]
    wanted = sys.argv[1:]
    passed = failed = skipped = 0
    for case in cases:
        if wanted and case.__name__ not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                reason = case(folder)
            except Exception as error:  # pylint: disable=broad-exception-caught  # it is the verdict
                failed += 1
                print(f"not ok - {case.__name__}: {type(error).__name__}: {error}")
                continue
        if reason:
            skipped += 1
            print(f"ok - {case.__name__} # SKIP {reason}")
        else:
            passed += 1
            print(f"ok - {case.__name__}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
