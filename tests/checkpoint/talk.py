# Talks to itself by TCP, and says each word that has come back right.
import socket, threading, time
server = socket.create_server(('127.0.0.1', 7777))
def answer():
    peer, _ = server.accept()
    while word := peer.recv(8): peer.sendall(word)
threading.Thread(target=answer, daemon=True).start()
client = socket.create_connection(('127.0.0.1', 7777))
for n in range(10 ** 9):
    word = b'%08d' % n
    client.sendall(word)
    assert client.recv(8, socket.MSG_WAITALL) == word
    print(n, flush=True)
    time.sleep(0.01)
