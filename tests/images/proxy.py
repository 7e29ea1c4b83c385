"""A proxy before a registry that lets answers and uploads go wrong, as networks and servers let them.

    proxy.py ADDRESS UPSTREAM LOG       forwards from one HOST:PORT to another; a line for each answer goes to LOG:
                                        METHOD PATH STATUS BYTES-SENT FAULT

`GET /sent?REGEXP` answers how many bytes it has passed on of such paths, either way, since it was last told what goes wrong, answers that
are under way included. What goes wrong is told it by `PUT /faults` with a list of rules; the first that fits a request and has some of its times left
is used:

    {"path": REGEXP, "do": WHAT, "times": N, "after": BYTES, "seconds": S}

reset     the connection is reset behind so many bytes of the answer's body
short     the body ends there, its connection closed in good order
stall     nothing more comes for so many seconds
flip      the byte there is another one
slow      the body comes, or goes, at so many bytes a second ("after" in this one case)
cut       the connection is reset behind so many bytes of what is uploaded
lie       the answer is about as many zeros instead
token     the token is spoilt on the way, so that the registry wants another
NUMBER    this status is answered instead; "seconds" is its Retry-After
"""

import http.client
import http.server
import json
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse

PIECE = 65536
rules, sent, lock = [], {}, threading.Lock()
address, upstream, log = sys.argv[1], sys.argv[2], open(sys.argv[3], "a", buffering=1)


def rule_for(path):
    with lock:
        for rule in rules:
            if rule.get("times", 1) > 0 and re.search(rule["path"], path):
                rule["times"] = rule.get("times", 1) - 1
                return rule
    return {"do": "-"}


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.forward()

    def do_PATCH(self):
        self.forward()

    def do_PUT(self):
        global rules
        if self.path != "/faults":
            return self.forward()
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            rules = wanted
            sent.clear()
        self.send_response(204)
        self.end_headers()

    def do_HEAD(self):
        self.forward()

    def do_GET(self):
        path, _, part = self.path.partition("?")
        if path == "/sent":
            self.tell(urllib.parse.unquote(part))
        else:
            self.forward()

    def tell(self, part):
        with lock:
            text = str(sum(count for path, count in sent.items() if re.search(part, path))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def forward(self):
        rule = rule_for(self.path)
        what, self.status, self.sent = str(rule["do"]), 0, 0
        try:
            if what.isdigit():
                self.refuse(int(what), rule.get("seconds"))
            else:
                self.answer(what, rule)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        finally:
            log.write(f"{self.command} {self.path} {self.status} {self.sent} {what}\n")

    def refuse(self, status, seconds):
        self.status = status
        # A server that has not read all resets the connection, and its answer may be lost.
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        if seconds is not None:
            self.send_header("Retry-After", str(seconds))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, what, rule):
        left_out = ["host", "connection", "expect"] + (["authorization"] if what == "token" else [])
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        connection = http.client.HTTPConnection(upstream, timeout=30)
        if self.command in ("POST", "PUT", "PATCH"):
            if not self.upload(connection, {"Host": address, **headers}, what, rule):
                return
        else:
            connection.request(self.command, self.path, headers={"Host": address, **headers})
        answer = connection.getresponse()
        self.status = answer.status
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "date", "server", "transfer-encoding"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            # Then its end is the connection's.
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.body(answer, what, rule)
        connection.close()

    def upload(self, connection, headers, what, rule):
        """Whether all has been passed on."""
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        at, left, gone = rule.get("after", 0), int(self.headers.get("Content-Length", 0)), 0
        while left:
            piece = self.rfile.read(min(PIECE, left))
            if not piece:
                raise ConnectionError
            if what == "cut" and gone + len(piece) > at:
                connection.close()
                self.break_off("reset", rule)
                return False
            connection.send(piece)
            left, gone = left - len(piece), gone + len(piece)
            self.count(len(piece))
            if what == "slow":
                time.sleep(len(piece) / at)
        return True

    def body(self, answer, what, rule):
        at = rule.get("after", 0)
        while piece := answer.read(PIECE):
            end = self.sent + len(piece)
            if what in ("reset", "short", "stall") and end > at:
                self.send(piece[: at - self.sent])
                return self.break_off(what, rule)
            if what == "flip" and self.sent <= at < end:
                here = at - self.sent
                piece = piece[:here] + bytes([piece[here] ^ 0x40]) + piece[here + 1 :]
            if what == "lie":
                piece = bytes(len(piece))
            self.send(piece)
            if what == "slow":
                time.sleep(len(piece) / at)

    def send(self, piece):
        self.wfile.write(piece)
        self.sent += len(piece)
        self.count(len(piece))

    def count(self, bytes_passed):
        with lock:
            sent[self.path] = sent.get(self.path, 0) + bytes_passed

    def break_off(self, what, rule):
        self.close_connection = True
        if what == "stall":
            time.sleep(rule.get("seconds", 1000))
        if what == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.connection.shutdown(socket.SHUT_WR)
        self.connection.close()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def shutdown_request(self, request):
        # One that was broken off is closed already.
        try:
            super().shutdown_request(request)
        except OSError:
            pass

    def handle_error(self, *_):
        pass


host, port = address.split(":")
Server((host, int(port)), Proxy).serve_forever()
