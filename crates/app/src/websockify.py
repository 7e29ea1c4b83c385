"""websockify on a Unix socket, which releases before 0.12 cannot listen on: PATH, then websockify's own options."""

import os
import socket
import sys

from websockify import websocketproxy
from websockify.websockifyserver import WebSockifyServer


class Connection(socket.socket):
    def setsockopt(self, level, *option):
        # websockify sets TCP's options on every connection.
        if level != socket.SOL_TCP:
            super().setsockopt(level, *option)


class Listener(socket.socket):
    def accept(self):
        # websockify expects a host and a port; the peer of a Unix socket has none.
        return Connection(fileno=self._accept()[0]), ("127.0.0.1", 0)


path = sys.argv.pop(1)
connect_to = WebSockifyServer.socket


def new_socket(host, port=None, connect=False, *rest, **options):
    if connect:
        return connect_to(host, port, connect, *rest, **options)
    listener = Listener(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(100)
    return listener


WebSockifyServer.socket = staticmethod(new_socket)
# The address is not used.
sys.argv.append("127.0.0.1:1")
websocketproxy.websockify_init()
