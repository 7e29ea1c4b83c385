# Root inside: packages, users, owners, replaced and deleted files of the host, programs and libraries of one's own. Outside
# the host and other users are as before, byte for byte, and no file is the machine's root's.
# takes: 13
. "$(dirname "$0")/../lib.sh"

ok as bob skiff env create dev
inside bob dev 'echo bob >/etc/marker; rm /usr/bin/tac'
ok as bob skiff env stop dev
bobs() { find /home/bob -printf '%p %y %m %U:%G %s %T@ %C@\n' | sort; find /home/bob -type f -exec sha256sum {} + | sort; }
# A directory that packages keep to themselves. The placeholders are made anew as soon as /usr/bin has changed.
trap 'rm -rf /usr/share/daemon-of-ours' EXIT
mkdir /usr/share/daemon-of-ours
mkdir -m 700 /usr/share/daemon-of-ours/rules
echo secret >/usr/share/daemon-of-ours/rules/ours.rules
touch /usr/bin
manifest >before
bobs >bob.before

# A Debian package that makes a user and a group and has files of several owners and modes.
mkdir -p package/DEBIAN package/usr/bin package/var/lib/daemon-of-ours package/etc/daemon-of-ours
cat >package/DEBIAN/control <<'END'
Package: daemon-of-ours
Version: 1.0
Architecture: all
Maintainer: nobody <nobody@localhost>
Depends: passwd
Description: makes users, as packages of daemons do
END
cat >package/DEBIAN/postinst <<'END'
#!/bin/sh
set -e
adduser --system --group --quiet --home /var/lib/daemon-of-ours --no-create-home daemon-of-ours 2>/dev/null ||
    useradd --system --user-group --home-dir /var/lib/daemon-of-ours daemon-of-ours
chown daemon-of-ours:daemon-of-ours /var/lib/daemon-of-ours
chgrp daemon-of-ours /usr/bin/daemon-of-ours
chmod 2755 /usr/bin/daemon-of-ours
END
printf '#!/bin/sh\necho runs as $(id -un)\n' >package/usr/bin/daemon-of-ours
echo 'secret = 1' >package/etc/daemon-of-ours/conf
chmod 755 package/DEBIAN/postinst package/usr/bin/daemon-of-ours
chmod 640 package/etc/daemon-of-ours/conf
dpkg-deb --root-owner-group --build package /shared/daemon.deb >/dev/null

ok as alice skiff env create dev
inside alice dev 'dpkg -i /shared/daemon.deb >&2
    stat -c "%U:%G %a" /var/lib/daemon-of-ours /usr/bin/daemon-of-ours /etc/daemon-of-ours/conf
    su daemon-of-ours -s /bin/sh -c /usr/bin/daemon-of-ours'
equal "$out" 'daemon-of-ours:daemon-of-ours 755
root:daemon-of-ours 2755
root:root 640
runs as daemon-of-ours'
inside alice dev 'dpkg --verify daemon-of-ours; dpkg -r daemon-of-ours >&2; [ ! -e /usr/bin/daemon-of-ours ]; dpkg -i /shared/daemon.deb >&2'

# A Python package for the whole system.
mkdir -p python/ours
echo 'def main(): print("python package of ours")' >python/ours/__init__.py
cat >python/pyproject.toml <<'END'
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "ours"
version = "1.0"
[project.scripts]
ours = "ours:main"
[tool.setuptools]
packages = ["ours"]
END
chown -R alice: python
mv python /home/alice/python
inside alice dev 'pip install --quiet --break-system-packages --no-build-isolation --no-index ~/python >&2
    ours; dirname "$(command -v ours)"'
equal "$out" $'python package of ours\n/usr/local/bin'

# A program in /usr and a library in /usr/local/lib, built and installed inside.
mkdir /home/alice/source
cat >/home/alice/source/ours.c <<'END'
const char *ours(void) { return "library of ours"; }
END
cat >/home/alice/source/main.c <<'END'
#include <stdio.h>
const char *ours(void);
int main(void) { puts(ours()); return 0; }
END
printf '%s\n' 'all: libours.so tool' 'libours.so: ours.c' $'\tgcc -shared -fPIC -o $@ $<' 'tool: main.c libours.so' \
    $'\tgcc -o $@ main.c -L. -lours' 'install: all' $'\tinstall -m 755 libours.so /usr/local/lib/' \
    $'\tinstall -m 755 tool /usr/bin/tool-of-ours' $'\tldconfig' >/home/alice/source/Makefile
chown -R alice: /home/alice/source
inside alice dev 'cd ~/source; make install >&2; tool-of-ours; ldconfig -p | grep -c libours'
equal "$out" $'library of ours\n1'
ok as alice skiff env exec --me dev -- tool-of-ours
equal "$out" 'library of ours' 'the program as oneself'

# Other users, other owners.
inside alice dev 'su nobody -s /bin/sh -c id; useradd -m -d /var/lib/newcomer newcomer; su newcomer -c "id -un; touch ~/file"
    stat -c %U /var/lib/newcomer/file
    chown games:mail /usr/bin/env; chmod 4711 /usr/bin/env; stat -c "%U:%G %a" /usr/bin/env; passwd -d newcomer >/dev/null
    echo "newcomer:word" | chpasswd; grep -c ^newcomer: /etc/shadow'
has "$out" 'uid=65534(nobody) gid=65534(nogroup)'
equal "$(tail -n +2 <<<"$out")" $'newcomer\nnewcomer\ngames:mail 4711\n1'

# Setuid programs make root inside of another user there; nobody else, and not one who runs as themselves.
inside alice dev 'cp /usr/bin/id /usr/bin/id-of-root; chmod 4755 /usr/bin/id-of-root; su newcomer -c id-of-root'
has "$out" '(newcomer) euid=0(root)'
ok as alice skiff env exec --me dev -- sh -c 'id-of-root; grep NoNewPrivs /proc/self/status'
lacks "$out" euid
has "$out" $'NoNewPrivs:\t1'

# Directories and files of the host that others may not read: empty inside, and packages can write there, in /usr as in /etc.
inside alice dev 'cd /usr/share/daemon-of-ours; ls -A rules; stat -c %a rules; echo new >rules/ours.rules; ln rules/ours.rules rules/backup
    echo newer >rules/new; mv rules/new rules/ours.rules; cat rules/*'
equal "$out" $'700\nnew\nnewer'
equal "$(cat /usr/share/daemon-of-ours/rules/ours.rules)" secret

# Mounts, and terminals of the group that they belong to.
inside alice dev 'mount -t tmpfs none /mnt; mkdir /mnt/proc /mnt/etc; mount -t proc proc /mnt/proc; mount --bind /etc /mnt/etc
    ls /mnt/etc/passwd; readlink /mnt/proc/self/exe >/dev/null; umount /mnt/etc /mnt/proc /mnt
    script -qec "tty; stat -c %G \$(tty); chown daemon:tty \$(tty) && stat -c %U:%G \$(tty)" /dev/null'
equal "${out//$'\r'/}" $'/mnt/etc/passwd\n/dev/pts/0\ntty\ndaemon:tty'

# The host's own files: deleted, replaced, renamed, as directories too.
inside alice dev 'rm /usr/bin/tac /etc/hostname; rm -rf /etc/apt; mkdir /etc/apt; ls -A /etc/apt
    cp /usr/bin/true /usr/bin/false; /usr/bin/false; mv /etc/skel /etc/skel.old; ls -d /etc/skel* ; ln -s nowhere /etc/skel
    mv /usr/share/doc /usr/share/doc.moved; ls -d /usr/share/doc /usr/share/doc.moved 2>/dev/null || :; mknod /tmp/pipe p; touch -d @86400 /etc/passwd
    stat -c %Y /etc/passwd; setfacl -m u:daemon:r /etc/group 2>/dev/null || :; cp -a /etc/pam.d /etc/pam.copy; diff -r /etc/pam.d /etc/pam.copy'
equal "$out" $'/etc/skel.old\n/usr/share/doc.moved\n86400'
ok as alice skiff env exec dev -- sh -c 'ls /usr/bin/tac; ls -A /etc/apt /etc/skel.old | wc -l; readlink /etc/skel'
has "$err" "cannot access '/usr/bin/tac'"
ok as alice skiff env stop dev
inside alice dev 'ls -A /etc/apt; readlink /etc/skel; ls -d /usr/share/doc.moved; tool-of-ours; stat -c %U:%G /usr/bin/env /usr/bin/daemon-of-ours'
equal "$out" $'nowhere\n/usr/share/doc.moved\nlibrary of ours\ngames:mail\nroot:daemon-of-ours' 'after it was stopped and started'

# What even root inside may not: what belongs to the host's root stays out of reach.
for attempt in 'mknod /tmp/device b 8 0' 'date -s @0' 'hostname taken' 'echo 1 >/proc/sys/kernel/panic' \
    'ip link set lo down' 'kill -9 -1; sleep 1; cat /proc/sysrq-trigger' 'chroot /proc/1/root/run/skiff/host touch /x'; do
    try as alice skiff env exec dev -- sh -c "$attempt"
    [ "$code" != 0 ] || fail "root inside may: $attempt$(said)"
done

ok as alice skiff env diff dev
has "$out" $'D /usr/bin/tac\n'
has "$out" $'A /usr/local/lib/libours.so\n'
has "$out" $'C /usr/bin/false\n'

# Outside nothing of it.
equal "$(hostname)" ctl
manifest >after
diff before after || fail 'the host has changed, see above'
bobs >bob.after
diff bob.before bob.after || fail "bob's files have changed, see above"
ok as bob skiff env exec dev -- sh -c 'cat /etc/marker; command -v tool-of-ours ours daemon-of-ours; if id newcomer; then exit 9; fi'
equal "$out" bob "what bob sees"
equal "$(find /home/alice/.local /home/bob/.local -uid 0 -o -gid 0)" '' "files of the machine's root"
[ "$(find /home/alice/.local -not -user alice | wc -l)" -ge 3 ] || fail 'no file has an id of the subordinate range'
stray=$(find /home/alice/.local -not -user alice '(' -uid -100000 -o -uid +599999999 ')')
equal "$stray" '' 'files whose owner is neither alice nor one of her subordinate ids'

# Root inside puts what never answers in the place of the terminals' names: a session begins all the same.
ok as alice skiff env create hangs
inside alice hangs 'mount -t tmpfs none /run/skiff/terminals; for i in $(seq 0 40); do mkfifo /run/skiff/terminals/$i; done'
for who in --root --me; do ok as alice timeout -k 2 10 script -qec "skiff env exec $who hangs -- true" /dev/null; done
ok as alice skiff env rm --force hangs

# And all of it goes again.
ok as alice skiff env rm --force dev
equal "$(find /home/alice/.local/share/skiff/env -mindepth 1)" '' 'what is left of it'
