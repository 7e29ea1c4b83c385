"""Listens on ADDRESS PORT, says so by making the file LOG, and writes down there whatever comes: listen.py ADDRESS PORT LOG."""

import socket
import sys

address, port, log = sys.argv[1:]
listener = socket.create_server((address, int(port)), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
with open(log, "wb", buffering=0) as heard:
    while True:
        connection, _ = listener.accept()
        connection.settimeout(2)
        try:
            heard.write(connection.recv(4096))
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nmallory's\n")
        except OSError:
            pass
        connection.close()
