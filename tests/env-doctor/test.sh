# `skiff doctor`: all well on this machine; and each thing that is taken away is found, with how to mend it, and the exit code
# says so.
. "$(dirname "$0")/../lib.sh"
for f in subuid subgid; do cp -a /etc/$f kept.$f; done
restore() {
    for f in subuid subgid; do cp -a kept.$f /etc/$f; done
    chmod 4755 /usr/libexec/skiff/skiff-helper
    [ ! -e criu.kept ] || mv criu.kept /usr/libexec/skiff/criu
    [ ! -e plugin.kept ] || mv plugin.kept /usr/lib/skiff/skiff_spank.so
    umount /run/munge /dev/fuse 2>/dev/null || true
    rm -rf /etc/skiff/conf.d
}
trap restore EXIT

ok as alice skiff doctor --json
equal "$(json "$out" '[c["name"] for c in d if c["status"] == "fail"]')" '[]' 'what fails'
for name in configuration 'user namespaces' AppArmor overlay helper 'id range' fuse-overlayfs 'id-mapped mounts' 'an environment' checkpoints \
    'state directory' 'Slurm plug-in' depot 'spool bind' munge; do
    equal "$(json "$out" "[c['status'] in ('pass', 'warn') for c in d if c['name'] == '$name']")" '[True]' "check of $name"
done
equal "$(json "$out" 'all(c["status"] == "pass" or c["mend"] for c in d)')" True 'a word on mending for all that did not pass'
ok as alice skiff doctor
has "$out" 'pass  helper             /usr/libexec/skiff/skiff-helper, setuid root'
lacks "$out" FAIL
for node in $SKIFF_TESTBED_NODES; do
    login alice
    ok on "$node" "${login[@]}" skiff doctor
    has "$out" 'pass  spool bind         /var/spool/slurmd: batch scripts can be seen inside' "$node"
done

found() { # EXIT-CODE STATUS NAME WORDS-ON-MENDING
    fails "$1" as alice skiff doctor --json
    equal "$(json "$out" "[c['status'] for c in d if c['name'] == '$3']")" "['$2']" "check of $3 in $out"
    has "$(json "$out" "[c.get('mend', '') for c in d if c['name'] == '$3']")" "$4" "how to mend $3"
    restore
}
chmod 755 /usr/libexec/skiff/skiff-helper
found 1 fail helper 'chmod 4755 /usr/libexec/skiff/skiff-helper'
chmod 4777 /usr/libexec/skiff/skiff-helper
found 1 fail helper 'chmod go-w'
mkdir /etc/skiff/conf.d && echo 'helper = "/nowhere"' >/etc/skiff/conf.d/a.toml
found 1 fail helper 'install it'
mkdir /etc/skiff/conf.d && echo 'nonsense = 1' >/etc/skiff/conf.d/a.toml
found 1 fail configuration 'skiff config'
mkdir /etc/skiff/conf.d && echo 'state = "/proc/nowhere"' >/etc/skiff/conf.d/a.toml
found 1 fail 'state directory' 'state'
sed -i /alice/d /etc/subuid /etc/subgid
found 1 fail 'id range' usermod
mv /usr/lib/skiff/skiff_spank.so plugin.kept
found 1 fail 'Slurm plug-in' 'make install'
if [ -e /usr/libexec/skiff/criu ]; then
    ok as alice skiff doctor
    has "$out" 'a process saved and made again' 'checkpoints'
    mv /usr/libexec/skiff/criu criu.kept
fi
found 0 warn checkpoints get-criu
mount -t tmpfs none /run/munge
found 0 warn munge munge
mkdir /etc/skiff/conf.d && echo 'helper = "none"' >/etc/skiff/conf.d/a.toml
found 0 warn helper 'make install'
mkdir /etc/skiff/conf.d && echo 'helper = "none"' >/etc/skiff/conf.d/a.toml
install -m 600 /dev/null closed
[ ! -e /dev/fuse ] || { mount --bind closed /dev/fuse && found 1 fail fuse-overlayfs fuse; }
ok as alice skiff doctor
