"""What a browser would do: a WebSocket (RFC 6455) as noVNC and Jupyter's front end speak it, and three uses of it.

    browser.py cell WHERE TOKEN CODE     runs a cell on a new kernel of the Jupyter server; prints what the cell printed
    browser.py again WHERE TOKEN CODE    the same on a kernel that is there already
    browser.py screen WHERE TOKEN        says how large the desktop is, and how many colours are on it

WHERE is a port of 127.0.0.1, or the path of a Unix socket.
"""

import base64
import http.client
import json
import os
import socket
import struct
import sys
import uuid


def connect(where):
    if not where.startswith("/"):
        return socket.create_connection(("127.0.0.1", int(where)), timeout=30)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(where)
    return connection


def host(where):
    return f"127.0.0.1:{8888 if where.startswith('/') else where}"


class WebSocket:
    def __init__(self, where, path, protocol=None):
        self.socket = connect(where)
        self.buffer = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", f"Host: {host(where)}", "Upgrade: websocket", "Connection: Upgrade",
                 f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", f"Origin: http://{host(where)}"]
        lines += [f"Sec-WebSocket-Protocol: {protocol}"] if protocol else []
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        status = head.split(b"\r\n")[0].decode()
        if " 101 " not in status + " ":
            sys.exit(f"refused: {status}")

    def fill(self):
        data = self.socket.recv(65536)
        if not data:
            sys.exit("refused: closed")
        self.buffer += data

    def take(self, count):
        while len(self.buffer) < count:
            self.fill()
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def send(self, data, text=False):
        mask = os.urandom(4)
        size = len(data)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self.socket.sendall(bytes([0x81 if text else 0x82]) + length + mask + masked)

    def receive(self):
        """One message; a ping in between is answered by nobody, which servers forgive for a while."""
        message = b""
        while True:
            first, size = self.take(2)
            if size == 126:
                size = struct.unpack(">H", self.take(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.take(8))[0]
            data = self.take(size)
            if first & 15 == 8:
                sys.exit(f"refused: {data[2:].decode()}")
            if first & 15 < 3:
                message += data
                if first & 128:
                    return message


def kernels(where, token, data=None):
    server = http.client.HTTPConnection(host(where), timeout=60)
    server.sock = connect(where)
    server.sock.settimeout(60)
    server.request("POST" if data else "GET", "/api/kernels", data, {"Authorization": f"token {token}"})
    answer = server.getresponse()
    if answer.status >= 400:
        sys.exit(f"refused: {answer.status}")
    return json.load(answer)


def cell(where, token, code):
    run(where, token, kernels(where, token, b"{}")["id"], code)


def again(where, token, code):
    run(where, token, kernels(where, token)[0]["id"], code)


def run(where, token, kernel, code):
    channel = WebSocket(where, f"/api/kernels/{kernel}/channels?token={token}")
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": uuid.uuid4().hex, "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    channel.send(json.dumps(message).encode(), text=True)
    printed = ""
    while True:
        answer = json.loads(channel.receive())
        if answer["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        kind, content = answer["msg_type"], answer["content"]
        if kind == "stream":
            printed += content["text"]
        elif kind == "error":
            sys.exit("\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            print(printed, end="")
            return


class Stream:
    """The bytes within a WebSocket's messages."""

    def __init__(self, channel):
        self.channel, self.buffer = channel, b""

    def take(self, count):
        while len(self.buffer) < count:
            self.buffer += self.channel.receive()
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data


def screen(where, token):
    channel = WebSocket(where, f"/websockify?token={token}", "binary")
    rfb = Stream(channel)
    rfb.take(12)
    channel.send(b"RFB 003.008\n")
    kinds = rfb.take(rfb.take(1)[0])
    assert 1 in kinds, kinds
    channel.send(b"\x01")
    assert rfb.take(4) == bytes(4)
    channel.send(b"\x01")
    width, height = struct.unpack(">HH", rfb.take(4))
    rfb.take(16)
    rfb.take(struct.unpack(">I", rfb.take(4))[0])
    # 32 bits a pixel, raw rectangles.
    channel.send(struct.pack(">B3xBBBBHHHBBB3x", 0, 32, 24, 0, 1, 255, 255, 255, 16, 8, 0))
    channel.send(struct.pack(">BxHi", 2, 1, 0))
    channel.send(struct.pack(">BBHHHH", 3, 0, 0, 0, width, height))
    colours = set()
    while True:
        if (kind := rfb.take(1)[0]) != 0:
            sys.exit(f"message {kind}")
        rectangles = struct.unpack(">xH", rfb.take(3))[0]
        for _ in range(rectangles):
            _, _, w, h, encoding = struct.unpack(">HHHHi", rfb.take(12))
            assert encoding == 0, encoding
            data = rfb.take(w * h * 4)
            colours |= {data[at:at + 3] for at in range(0, len(data), 4)}
        print(f"{width}x{height}, {len(colours)} colours")
        return


what, where, token, *rest = sys.argv[1:]
{"cell": cell, "again": again, "screen": screen}[what](where, token, *rest)
