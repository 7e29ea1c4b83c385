#!/usr/bin/python3
"""In Jupyter's place, for `skiff app notebook`: waits for the file `go`, then answers every request with "hers" on --sock or --port."""

import http.server
import os
import socketserver
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hers\n")

    def log_message(self, *_):
        pass


class OnSocket(socketserver.UnixStreamServer):
    def get_request(self):
        return super().get_request()[0], ("127.0.0.1", 0)


options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
open("started", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
if "sock" in options:
    OnSocket(options["sock"], Handler).serve_forever()
http.server.HTTPServer(("127.0.0.1", int(options["port"])), Handler).serve_forever()
