"""A server that greets whoever comes, by TCP and by UDP, on port 7000. Writes its address to a file when it is there."""

import socket, sys, threading

server = socket.create_server(("", 7000))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 7000))


def answer():
    while True:
        _, peer = udp.recvfrom(100)
        udp.sendto(b"udp", peer)


threading.Thread(target=answer, daemon=True).start()
with open(sys.argv[1], "w") as file:
    file.write(socket.gethostbyname(socket.gethostname()))
while True:
    server.accept()[0].close()
