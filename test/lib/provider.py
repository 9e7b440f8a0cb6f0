# SPDX-License-Identifier: Apache-2.0
"""An OpenID provider on loopback, for scripts whose people sign in: its keys come by HTTP, its ID tokens are signed by
openssl. Not a test itself."""
import base64
import http.server
import json
import os
import shutil
import subprocess
import threading
import time

ISSUER = "https://accounts.example"
CLIENT = "an-app"


def plain(data):
    """base64url as in a JWT."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*arguments, data=None):
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, timeout=60, check=True).stdout


class Provider:
    """`settings` makes a server trust it; sign_in gives the headers of somebody with a session there."""

    @staticmethod
    def why_not():
        return None if shutil.which("openssl") else "openssl is not installed"

    def __init__(self, folder):
        self.key = os.path.join(folder, "provider.pem")
        openssl("genrsa", "-out", self.key, "2048")
        modulus = openssl("rsa", "-in", self.key, "-noout", "-modulus").decode().strip().split("=")[1]
        keys = json.dumps({"keys": [{"kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256", "e": "AQAB",
                                     "n": plain(bytes.fromhex(modulus))}]}).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # pylint: disable=invalid-name
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(keys)))
                self.end_headers()
                self.wfile.write(keys)

            def log_message(self, format, *args):  # pylint: disable=redefined-builtin
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self.server.server_port}/keys"
        self.settings = ["--set", f"auth.providers=google+{ISSUER}+{url}+{CLIENT}", "--set", "auth.allow_private=on",
                         "--set", "auth.admins=boss@example.org"]

    def id_token(self, name):
        now = int(time.time())
        head = {"alg": "RS256", "typ": "JWT", "kid": "one"}
        claims = {"iss": ISSUER, "aud": CLIENT, "sub": name, "iat": now, "exp": now + 600, "jti": os.urandom(8).hex(),
                  "email": f"{name}@example.org", "email_verified": True}
        signed = ".".join(plain(json.dumps(part).encode()) for part in (head, claims))
        return signed + "." + plain(openssl("dgst", "-sha256", "-sign", self.key, data=signed.encode()))

    def sign_in(self, server, name):
        """The id that the server gives this person, and the headers of a session; boss is an administrator."""
        status, _, text = server.ask("/v1/auth/google", "POST", headers={"Content-Type": "application/json"},
                                     body=json.dumps({"idToken": self.id_token(name)}))
        assert status == 200, (status, text)
        answer = json.loads(text)
        return answer["user"]["id"], {"Authorization": "Bearer " + answer["accessToken"]}

    def end(self):
        self.server.shutdown()
        self.server.server_close()
