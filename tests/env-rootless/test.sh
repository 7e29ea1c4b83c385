# Without the helper: the same commands, with a user namespace and fuse-overlayfs; what cannot be had is said.
. "$(dirname "$0")/../lib.sh"
export SKIFF_HELPER=none
nobody_left() { ! pgrep -u alice; }
[ -e /dev/fuse ] || skip 'no /dev/fuse on this machine'
manifest >before

ok as alice skiff run -- sh -euc 'id -u; echo x >/usr/bin/new; rm /usr/bin/tac; chmod 755 /usr/bin/new; ls /usr/bin/new; [ ! -e /usr/bin/tac ]'
equal "$out" $'0\n/usr/bin/new'
fails 7 as alice skiff run -- sh -c 'exit 7'
fails 127 as alice skiff run -- no-such-command
ok as alice skiff run -v /shared:/mnt/here:ro -- sh -c '! touch /mnt/here/x 2>/dev/null'
ok as alice skiff run --dry-run
has "$out" 'route        rootless'
eventually 3 nobody_left

ok as alice skiff env create dev
inside alice dev 'echo kept >/etc/marker; rm /usr/bin/tac; mkdir -p /opt/new; touch ~/in-home; echo changed >>/etc/profile'
equal "$(stat -c %U /home/alice/in-home)" alice
ok as alice skiff env stop dev
inside alice dev 'cat /etc/marker; tail -1 /etc/profile; [ ! -e /usr/bin/tac ]; ls -d /opt/new'
equal "$out" $'kept\nchanged\n/opt/new'
ok as alice skiff env list --json
equal "$(json "$out" '[(e["name"], e["running"]) for e in d]')" "[('dev', True)]"
ok as alice skiff env diff dev
for line in 'A /etc/marker' 'A /opt/new' 'C /etc/profile' 'D /usr/bin/tac'; do has "$out" "$line"; done

# Isolation is what the kernel gives: she reads what she may read anyway, and nothing more.
echo secret >/etc/skiff-test && chmod 600 /etc/skiff-test
trap 'rm -f /etc/skiff-test' EXIT
try as alice skiff env exec dev -- cat /etc/skiff-test /etc/shadow
lacks "$out" secret
has "$out" 'root:*:19000:' 'the stand-in'
ok as alice skiff env exec dev -- sh -c 'ps ax | wc -l'
[ "$out" -le 6 ] || fail "processes inside: $out"

# What does not work is said.
fails 125 as alice skiff env exec --me dev -- true
has "$err" 'helper'
has "$err" 'hint: '

# Owners are kept, and other users are there.
inside alice dev 'touch /opt/owned; chown daemon:mail /opt/owned; stat -c %U:%G /opt/owned /etc/passwd; su nobody -s /bin/sh -c "id -un"'
equal "$out" $'daemon:mail\nroot:root\nnobody'
ok as alice skiff doctor
has "$out" 'environments are rootless'

# Killed at any point, nothing stays mounted or running.
start alice skiff env exec dev -- sleep 50
eventually 5 pgrep -x sleep
ok as alice skiff ps --json
kill -9 "$(json "$out" 'd[0]["pid"]')"
try wait "$started"
eventually 3 nobody_left
inside alice dev 'cat /etc/marker'
equal "$out" kept
# One that only waits for its next session is removed at once.
ok as alice skiff env rm dev
equal "$(find /home/alice/.local/share/skiff/env -mindepth 1)" '' 'what is left of it'
eventually 3 nobody_left
rm -f /etc/skiff-test
manifest | grep -v /etc/skiff-test >after
diff <(grep -v ' d ' before) <(grep -v ' d ' after) || fail 'the host has changed, see above'
