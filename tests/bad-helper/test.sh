# A helper that is not as it must be: said so, and mended so; never is its place taken by something weaker unsaid.
. "$(dirname "$0")/../lib.sh"
helper=/usr/libexec/skiff/skiff-helper
cp -a $helper helper.kept
restore() { rm -f $helper; cp -a helper.kept $helper; }
trap restore EXIT
ok as alice skiff env create dev
refused() { # WHAT MESSAGE
    local command
    for command in 'run -- true' 'env exec dev -- true' 'env exec --me dev -- true' 'env diff dev'; do
        fails 125 as alice skiff $command
        has "$err" "$2" "$1: $command"
        has "$err" 'hint: ' "$1: $command"
    done
    eventually 3 sh -c '! pgrep -u alice'
    try as alice skiff doctor
    [ "$code" != 0 ] || fail "$1: doctor finds nothing$(said)"
    has "$out" "$helper" "$1: doctor"
}

chmod 755 $helper
refused 'not setuid' 'the helper does not run as root'
restore
chown alice $helper && chmod 4755 $helper
refused "alice's" 'the helper does not run as root'
restore
chmod 4757 $helper
refused 'writable by others' 'writable'
restore
chmod 4775 $helper && chgrp skiff $helper
refused 'writable by a group' 'writable'
restore
chmod 4700 $helper
refused 'not executable' 'Permission denied'
restore
printf '#!/bin/sh\nexit 3\n' >other && install -m 4755 other $helper
refused 'another program' 'ended without an answer'
restore
: >$helper
refused 'an empty file' "$helper"
restore
ok as alice skiff run -- true

# One that she names herself gets no further than she does.
ok as alice cp $helper /home/alice/helper
ok as alice chmod 4755 /home/alice/helper
fails 125 as alice env SKIFF_HELPER=/home/alice/helper skiff run -- true
fails 125 as alice env SKIFF_HELPER=/no/such/helper skiff run -- true
has "$err" /no/such/helper
has "$err" 'hint: '
fails 125 as alice env SKIFF_HELPER=relative skiff run -- true

# It answers nobody but the maker of the namespace that is asked about, and takes no words but its own.
for words in '' 0 1 99 -1 x '3 x' '3 000 / x y'; do
    try as alice $helper $words
    [ "$code" != 0 ] || fail "helper $words: exit code 0$(said)"
    lacks "$err" panicked "helper $words"
done
start bob sleep 60
try as alice /usr/bin/python3 - "$helper" "$started" <<'END'
import os, socket, struct, subprocess, sys
helper, others = sys.argv[1], int(sys.argv[2])
for pid in (others, 1, os.getpid(), 0, 2**32 - 1, 2**31):
    for kind in range(0, 8):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        child = subprocess.Popen([helper, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        ours.send(bytes([kind]) + struct.pack("<I", pid) + b"\0" * (kind * 3))
        ours.settimeout(5)
        answer, fds, _, _ = socket.recv_fds(ours, 4096, 4)
        if fds:
            print("it gave descriptors for", pid, kind, answer)
        child.wait(5)
END
equal "$code$out" 0 "what strange requests bring$(said)"
lacks "$err" panicked
kill "$started"

# Gone: without privilege then, and it can be asked for by name.
rm $helper
ok as alice skiff run --dry-run
has "$out" 'route        rootless'
restore
