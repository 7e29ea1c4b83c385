"""What somebody on the wire sees: all frames of a device, until SIGTERM. Then prints how many carried the text in the clear, and how many there were.

    capture.py DEVICE TEXT
"""

import signal, socket, sys

with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as s:
    s.bind((sys.argv[1], 0))
    seen = frames = 0

    def stop(*_):
        # `timeout` passes on what it gets itself.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(seen, "of", frames)
        sys.exit()

    signal.signal(signal.SIGTERM, stop)
    print("capturing", flush=True)
    while True:
        frame = s.recv(65536)
        frames += 1
        seen += sys.argv[2].encode() in frame
