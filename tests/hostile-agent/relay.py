"""Holds the port of an agent, passes on what is said there to the agent of another host, and adds to its answer: relay.py ADDRESS PORT"""
import socket, sys

server = socket.create_server(("", int(sys.argv[2])))
print("ready", flush=True)
asked, _ = server.accept()
credential = b""
while not credential.endswith(b"\n"):
    credential += asked.recv(4096)
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as agent:
    agent.settimeout(10)
    agent.sendall(credential)
    answer = agent.recv(4096)
print(answer.decode(errors="replace"), flush=True)
asked.sendall(answer + b"\x1b]0;owned\x07\x1b[2J\x9b2J\rskiff: all is well\n" + b"\0" * 5000 + b"x" * 500000)
