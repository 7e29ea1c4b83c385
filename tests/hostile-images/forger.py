"""A registry of mallory's that knows manifest and configuration of somebody's image, but not its layers.

    forger.py ADDRESS DIR REPOSITORY LOG    serves what DIR/MANIFEST says, DIR/HEX of what it names, and lies about the rest

It answers every request for another blob with as many bytes as are asked for, by range too: those that it has (DIR/known is the
beginning of the layer), then zeros.
"""

import hashlib
import http.server
import json
import os
import re
import sys

address, folder, repository, log = sys.argv[1:]


def read(name):
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


manifest = read("manifest")
digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
sizes = {layer["digest"]: layer["size"] for layer in json.loads(manifest)["layers"]}
known = read("known") if os.path.exists(os.path.join(folder, "known")) else b""


class Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        with open(log, "a") as file:
            file.write(f"{self.command} {self.path} {self.headers.get('Range', '')}\n")

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if "/manifests/" in self.path:
            kind = json.loads(manifest).get("mediaType", "application/vnd.oci.image.manifest.v1+json")
            return self.give(manifest, kind)
        name = self.path.rsplit("/", 1)[-1]
        if name in sizes:
            body = known[: sizes[name]] + bytes(sizes[name] - len(known[: sizes[name]]))
            return self.give(body, "application/octet-stream")
        if name.startswith("sha256:"):
            return self.give(read(name[7:]), "application/octet-stream")
        return self.give(b"{}", "application/json")

    def give(self, body, kind):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = body[int(wanted[1]) : int(wanted[2]) + 1] if wanted else body
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(body)}")
        self.send_header("Content-Type", kind)
        self.send_header("Docker-Content-Digest", digest)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)


host, port = address.split(":")
http.server.ThreadingHTTPServer((host, int(port)), Registry).serve_forever()
