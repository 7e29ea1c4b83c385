# takes: 60
# time: 300
# What the host's administrator installs, upgrades and removes by rpm or dnf is merged into the environment's own RPM database. No program of the
# environment that is started for that gains anything.
. "$(dirname "$0")/../lib.sh"
repository=/srv/skiff-rpm
database=/var/lib/rpm/rpmdb.sqlite
state=/home/alice/.local/share/skiff/env/dev
installed_repositories=/etc/yum.repos.d/skiff.repo
clean() {
    # The administrator's, as it was: there was none.
    rm -rf $repository /etc/rpm $installed_repositories /var/lib/rpm/{*,.rpm.lock} /usr/share/skiff-t* /var/lib/dnf/* /var/cache/dnf/*
    [ ! -d /etc/yum.repos.d ] || rmdir --ignore-fail-on-non-empty /etc/yum.repos.d
}
trap clean EXIT
clean 2>&-
mkdir -p /etc/rpm /etc/yum.repos.d $repository/{spec,build}
chmod 755 /etc/rpm /etc/yum.repos.d $repository
# Debian's rpm keeps its database in the home of whoever calls it.
echo '%_dbpath /var/lib/rpm' >/etc/rpm/macros
printf '[skiff]\nname=skiff\nbaseurl=file://%s\ngpgcheck=0\nmetadata_expire=0\n' $repository >$installed_repositories

package() { # NAME VERSION [LINE]: a package with one file
    printf 'Name: %s\nVersion: %s\nRelease: 1\nSummary: x\nLicense: x\nBuildArch: noarch\n%b\n%%description\nx\n%%install\nmkdir -p %%{buildroot}/usr/share/%s\necho %s >%%{buildroot}/usr/share/%s/%s\n%%files\n/usr/share/%s\n' \
        $1 $2 "${3:-}" $1 $2 $1 "${4:-version}" $1 >$repository/spec/$1.spec
    rpmbuild --quiet -bb --define "_topdir $repository/build" --define "_rpmdir $repository" --define '_buildhost host' --define '__os_install_post %{nil}' \
        --define '_build_name_fmt %%{NAME}-%%{VERSION}.rpm' $repository/spec/$1.spec
}
admin() { rpm "$@" 2>>$repository/admin.log || fail "rpm $* on the host: $(cat $repository/admin.log)"; }
file() { echo "$repository/$1.rpm"; }
said() { # NAME...: the versions that rpm inside knows of these
    ok as alice skiff env exec dev -- sh -c 'rpm -q --qf "%{NAME} %{VERSION}\n" "$@"; true' sh "$@"
}
knows() { # VERSION: as rpm inside knows it of skiff-tup
    said skiff-tup
    [ "$out" = "$1" ]
}
is_sound() {
    inside alice dev 'rpmdb --verifydb; rpm -V skiff-tup skiff-tnew'
    equal "$out" '' 'what rpm inside says of the database and the packages'
}
for version in 1 2 3; do package skiff-tup $version; package skiff-tboth $version; done
package skiff-tnew 1
package skiff-tgone 1
package skiff-tmine 1 'Requires: skiff-tgone'
package skiff-tlate 1
package skiff-tdnf 1
for version in 1 2 9; do package skiff-tkernel $version 'Provides: installonlypkg(kernel)' $version; done

admin -i $(file skiff-tup-1) $(file skiff-tboth-1) $(file skiff-tgone-1) $(file skiff-tkernel-1)
ok as alice skiff env create dev
ok as alice skiff env exec dev -- true
eventually 10 test -e $state/rpm-packages

# As long as the environment has no database of its own it shows the host's, and a refresh says what came.
admin -i $(file skiff-tlate-1)
ok as alice skiff env refresh dev
has "$out" 'package skiff-tlate.noarch 1-1 installed'
said skiff-tlate
equal "$out" 'skiff-tlate 1'
[ ! -e $state/upper$database ] || fail 'a refresh has made a database of its own'

# Hers by rpm, and the administrator's by rpm.
inside alice dev "rpm -i $(file skiff-tmine-1) $(file skiff-tkernel-9) 2>/dev/null; rpm -U $(file skiff-tboth-3) 2>/dev/null"
[ -e $state/upper$database ] || fail 'no database of her own'
admin -U $(file skiff-tup-2) $(file skiff-tnew-1) $(file skiff-tboth-2)
admin -i $(file skiff-tkernel-2)
said skiff-tup skiff-tnew skiff-tboth skiff-tmine skiff-tlate skiff-tkernel
equal "$(sort <<<"$out")" $'skiff-tboth 3\nskiff-tkernel 1\nskiff-tkernel 2\nskiff-tkernel 9\nskiff-tlate 1\nskiff-tmine 1\nskiff-tnew 1\nskiff-tup 2'
has "$err" 'package skiff-tboth.noarch: yours (3-1) stays, and the host has 2-1 now' 'a conflict'
is_sound
inside alice dev 'cat /usr/share/skiff-tup/version /usr/share/skiff-tnew/version /usr/share/skiff-tboth/version'
equal "$out$err" $'2\n1\n3' 'it is said once'
[ ! -e $state/upper/var/lib/rpm/.skiff-merge ] || fail 'a merge has left its directory'

# What is removed is removed. One of hers needed it.
admin -e --nodeps skiff-tgone skiff-tlate
ok as alice skiff env refresh dev
has "$out" 'package skiff-tgone.noarch 1-1 removed'
has "$out" 'package skiff-tlate.noarch 1-1 removed'
has "$err" 'package skiff-tmine.noarch needs skiff-tgone.noarch, which the host has removed'
said skiff-tgone skiff-tlate
equal "$out" $'package skiff-tgone is not installed\npackage skiff-tlate is not installed'
is_sound

# By dnf, both.
createrepo_c -q $repository
dnf=(dnf -q -y --releasever 1 --setopt cachedir=/var/tmp/dnf)
ok as alice skiff env exec dev -- "${dnf[@]}" install skiff-tdnf skiff-tgone
ok "${dnf[@]}" upgrade skiff-tup
ok "${dnf[@]}" install skiff-tlate
ok as alice skiff env refresh dev
has "$out" 'package skiff-tup.noarch 2-1 -> 3-1'
has "$out" 'package skiff-tlate.noarch 1-1 installed'
ok as alice skiff env exec dev -- dnf --releasever 1 -C --setopt cachedir=/var/tmp/dnf check
ok as alice skiff env exec dev -- "${dnf[@]}" remove skiff-tlate
said skiff-tup skiff-tdnf skiff-tlate
equal "$out" $'skiff-tup 3\nskiff-tdnf 1\npackage skiff-tlate is not installed' 'what dnf has removed inside stays removed'
rpm -q skiff-tlate >/dev/null || fail 'it is not installed on the host any more'
is_sound

# What of hers hides something newer: also where the environment does not run.
package skiff-tboth 4
admin -U $(file skiff-tboth-4)
ok as alice skiff env exec dev -- true
has "$err" 'package skiff-tboth.noarch: yours (3-1) stays, and the host has 4-1 now'
fits as alice skiff env status --json dev
equal "$(json "$out" '[[p["name"], p["yours"], p["host"], p["conflict"]] for p in d["packages"]]')" "[['skiff-tboth.noarch', '3-1', '4-1', True]]"
ok as alice skiff env stop dev
fits as alice skiff env status --json dev
equal "$(json "$out" '[p["name"] for p in d["packages"]] + [d["rpm_database"]]')" "['skiff-tboth.noarch', '$database']"
ok as alice skiff env clone dev copy
ok as alice skiff env status copy
has "$(tr -s ' ' <<<"$out")" 'skiff-tboth.noarch 3-1 4-1 both have changed it' 'a copy knows what was merged'
ok as alice skiff env rm copy

# At the start of one that did not run.
admin -U --oldpackage $(file skiff-tup-1)
said skiff-tup
equal "$out" 'skiff-tup 1' 'at the start'

# While somebody inside holds RPM's lock, or has the database open, nothing is written; the next session does it.
hold() { # FILE FIRST LENGTH
    rm -f /home/alice/locked
    start alice skiff env exec dev -- python3 -c "import fcntl, time
lock = open('$1', 'r+')
fcntl.lockf(lock, fcntl.LOCK_EX, $3, $2)
open('/home/alice/locked', 'w')
time.sleep(60)"
    eventually 5 test -e /home/alice/locked
}
for held in "/var/lib/rpm/.rpm.lock 0 0" "$database 0x40000002 1"; do
    hold $held
    admin -U --oldpackage $(file skiff-tup-2)
    ok as alice skiff env refresh dev
    has "$err" 'a package manager is at work in it'
    [ ! -e $state/upper/var/lib/rpm/.skiff-merge ] || fail 'it has left its directory'
    kill "$started"
    eventually 5 sh -c '! pgrep -u alice python3'
    said skiff-tup
    equal "$out" 'skiff-tup 2' 'after that'
    admin -U --oldpackage $(file skiff-tup-1)
    said skiff-tup
done
# The administrator's at work, too.
admin -U --oldpackage $(file skiff-tup-2)
/usr/bin/python3 -c "import fcntl, time
lock = open('/var/lib/rpm/.rpm.lock', 'r+')
fcntl.lockf(lock, fcntl.LOCK_EX)
open('$repository/locked', 'w')
time.sleep(60)" 3>&- &
holder=$!
eventually 5 test -e $repository/locked
said skiff-tup
equal "$out$err" 'skiff-tup 1' 'what is known of a host at whose packages somebody is at work'
kill $holder
wait $holder || true
said skiff-tup
equal "$out" 'skiff-tup 2' 'what was put off'

# Killed at any moment, it leaves the one database or the other, and the next session does the rest.
for wait in 05 10 20 30 40 60; do
    package skiff-tup 1.$wait
    admin -U --oldpackage $(file skiff-tup-1.$wait)
    start alice setsid skiff env refresh dev
    sleep 0.$wait
    # With what it has started.
    kill -9 -- "-$started" 2>/dev/null || true
    wait $started || true
    # What it has left inside ends a moment later; until then the database may be locked, and a session does not wait for that.
    eventually 10 knows "skiff-tup 1.$wait"
done
is_sound

# No room: it is said, and the database is whole.
inside alice dev 'mkdir /var/full; mount -t tmpfs -o size=64k none /var/full; mkdir /var/full/a; ln -s /var/full/a /var/lib/rpm/.skiff-merge; true'
admin -U --oldpackage $(file skiff-tup-2)
said skiff-tup
equal "$out" 'skiff-tup 2' 'a link in the place of the directory is removed'
inside alice dev 'test -d /var/full/a; umount /var/full'

# A program of hers that takes RPM's place has less than a session has: no network, no variable and no descriptor of the caller's; and it is not waited for without end.
cat >/home/alice/rpmdb <<'EOF'
#!/bin/sh
{
    echo "id $(id -u)"; env; ls -l /proc/self/fd; cat /proc/net/dev /proc/self/status
    python3 -c 'import socket
for address in ("127.0.0.1", 22), ("10.77.0.1", 22):
    try: socket.create_connection(address, 1); print("REACHED", address)
    except OSError as e: print("not reached", e)'
    touch /root/was-here 2>&1
    true </dev/tty && echo TERMINAL
} >/var/said 2>&1
exec /usr/lib/real/rpmdb "$@"
EOF
inside alice dev 'mkdir /usr/lib/real; mv /usr/bin/rpmdb /usr/lib/real/rpmdb; cp /home/alice/rpmdb /usr/bin/rpmdb; chmod 755 /usr/bin/rpmdb'
admin -U --oldpackage $(file skiff-tup-1)
exec 8<>$repository/secret
ok as alice env SECRET=secret skiff env exec dev -- cat /var/said
exec 8>&-
lacks "$err" 'may not show'
has "$out" 'id 0'
lacks "$out" SECRET 'variables'
lacks "$out" "$repository/secret" 'descriptors'
lacks "$out" REACHED 'network'
lacks "$out" TERMINAL 'terminal'
equal "$(sed -n '/face *|/,/^Name/p' <<<"$out" | grep -c ':')" 2 'devices: the loopback one, which is down'
has "$out" $'NoNewPrivs:\t1'
said skiff-tup
equal "$out" 'skiff-tup 1' 'since it has done what it was asked for'
# One that lies changes nothing, and is named.
inside alice dev 'printf "#!/bin/sh\necho nothing\n" >/usr/bin/rpmdb'
admin -U $(file skiff-tup-2)
ok as alice skiff env exec dev -- true
has "$err" 'header 1'
inside alice dev "rpm -q --qf '%{VERSION}' skiff-tup"
equal "$out" 1 'the database is as it was'
# One that prints without end, or leaves a process behind that holds its output.
inside alice dev 'printf "#!/bin/sh\nexec yes >&2\n" >/usr/bin/rpmdb'
start alice skiff env refresh dev
sleep 3
kill -9 $started
eventually 5 sh -c '! pgrep -u alice -x yes'
ok as alice skiff env stop dev
mv $state/upper/usr/lib/real/rpmdb $state/upper/usr/bin/rpmdb
said skiff-tup
equal "$out" 'skiff-tup 2'
is_sound
[ ! -e /root/was-here ] || fail 'it wrote outside'

# A database that leads elsewhere is not merged, and nothing outside is touched.
echo precious >/home/alice/precious
chown alice: /home/alice/precious
inside alice dev 'mv /var/lib/rpm/rpmdb.sqlite /var/own; ln -s /home/alice/precious /var/lib/rpm/rpmdb.sqlite'
admin -U $(file skiff-tup-3)
ok as alice skiff env exec dev -- true
equal "$(cat /home/alice/precious)" precious
inside alice dev 'mv /var/own /var/lib/rpm/rpmdb.sqlite'
said skiff-tup
equal "$out" 'skiff-tup 3'

# What the host's RPM leaves out as damaged is not taken for removed.
cp -p $database $repository/whole
/usr/bin/python3 - <<EOF
import sqlite3
d = sqlite3.connect('$database')
key, blob = next((key, blob) for key, blob in d.execute('select hnum, blob from Packages') if b'skiff-tnew' in blob)
d.execute('update Packages set blob = ? where hnum = ?', (blob.replace(b'/usr/share', b'/USR/share'), key))
d.commit()
EOF
# Whoever closes a database last by SQLite's own means removes two files that users need for reading it: RPM leaves them.
rpm -qa >/dev/null 2>&1 || true
ok as alice skiff env exec dev -- rpm -q skiff-tnew
has "$err" "may not show the host's latest changes" 'a damaged database of the host'
has "$err" 'skipping'
cp -p $repository/whole $database
is_sound
