"""Lets whoever ends a job of hers wait for two seconds: hold.py DIRECTORY, in which it listens as a supervisor does."""
import os, socket, sys, time

os.mkdir(sys.argv[1], 0o700)
os.chdir(sys.argv[1])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind("control.sock")
server.listen(8)
print("ready", flush=True)
while True:
    asked, _ = server.accept()
    print("asked", flush=True)
    time.sleep(2)
    asked.close()
