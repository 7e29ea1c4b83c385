"""A token service for a registry: anybody may pull, carol with her password too, and she may push.

    tokens.py make DIR                  makes a key and a certificate: DIR/key.pem, DIR/certificate.pem
    tokens.py serve ADDRESS DIR LOG     gives out tokens at http://ADDRESS/token; a line in LOG for each: USER SCOPE
"""

import base64
import http.server
import json
import subprocess
import sys
import time
import urllib.parse

PASSWORD = "pass word"


def url64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def make(directory):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=tokens", "-days", "2",
         "-keyout", f"{directory}/key.pem", "-out", f"{directory}/certificate.pem"],
        check=True, capture_output=True,
    )


def token(directory, user, scopes):
    with open(f"{directory}/certificate.pem") as file:
        lines = file.read().strip().split("\n")
    access = []
    for scope in scopes:
        kind, name, actions = scope.split(":")
        access.append({"type": kind, "name": name, "actions": [a for a in actions.split(",") if a == "pull" or (a == "push" and user)]})
    now = int(time.time())
    head = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(lines[1:-1])]}
    body = {"iss": "tokens", "sub": user, "aud": "registry", "exp": now + 300, "nbf": now - 10, "iat": now, "jti": str(time.time_ns()), "access": access}
    text = b".".join(url64(json.dumps(part).encode()) for part in (head, body))
    sign = ["openssl", "dgst", "-sha256", "-sign", f"{directory}/key.pem"]
    signature = subprocess.run(sign, input=text, check=True, capture_output=True).stdout
    return (text + b"." + url64(signature)).decode()


class Tokens(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        user, shown = "", self.headers.get("Authorization")
        if shown is not None:
            user, _, password = base64.b64decode(shown.split(" ")[1]).decode().partition(":")
            if (user, password) != ("carol", PASSWORD):
                return self.answer(401, {"errors": [{"code": "UNAUTHORIZED", "message": "wrong password"}]})
        scopes = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("scope", [])
        log.write(f"{user or 'anonymous'} {' '.join(scopes)}\n")
        # What lies below private/ is carol's.
        scopes = [scope for scope in scopes if user or ":private/" not in scope]
        return self.answer(200, {"token": token(directory, user, scopes), "expires_in": 300})

    def answer(self, status, content):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    directory, log = sys.argv[3], open(sys.argv[4], "a", buffering=1)
    host, port = sys.argv[2].split(":")
    http.server.ThreadingHTTPServer((host, int(port)), Tokens).serve_forever()
