"""Connections to an agent that keep it busy: silent ones, ones that trickle, and false credentials, one after the other or all at once."""
import socket, sys, time
kind, address, seconds = sys.argv[1], (sys.argv[2], 7790), float(sys.argv[3])
FALSE = b'MUNGE:AwQDAAD:\n'
end = time.monotonic() + seconds
held, made = [], 0

def connect():
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(address)
    return one

while time.monotonic() < end:
    if kind == 'junk':
        with socket.create_connection(address, 5) as one:
            one.sendall(FALSE)
        made += 1
        continue
    # 300 of them at all times, each new when it has been closed.
    while len(held) < 300:
        held.append(connect())
        made += 1
        if kind == 'false':
            try:
                held[-1].sendall(FALSE)
            except OSError:
                pass
    if made == 300:
        print('ready', flush=True)
    for one in list(held):
        try:
            if kind == 'trickle':
                one.send(b'M')
            if one.recv(100) == b'':
                raise ConnectionError
        except BlockingIOError:
            continue
        except OSError:
            held.remove(one)
            one.close()
    time.sleep(0.05)
