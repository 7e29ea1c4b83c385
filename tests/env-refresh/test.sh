# takes: 22
# What the administrator changes on the host shows in a running environment with the next session, or after `skiff env refresh`, and nothing in it ends.
# A replaced file that somebody inside has open stays the old one, for all in there, until it is closed (and refreshed again).
. "$(dirname "$0")/../lib.sh"
mine=/etc/skiff-test
deep=/usr/share/skiff-test
packages=$(mktemp -d)
list=/var/lib/apt/lists/test_debian-security_dists_x_main_binary-amd64_Packages
rpm=/var/lib/rpm/Packages
apt=/var/lib/apt/extended_states
clean() {
    dpkg -P skiff-new skiff-up skiff-both skiff-gone skiff-late >/dev/null 2>&1
    rm -rf $mine $deep $list $rpm $apt
    rmdir --ignore-fail-on-non-empty ${rpm%/*}
    [ ! -e $packages/extended_states ] || cp -p $packages/extended_states $apt
    rm -rf $packages
}
trap clean EXIT
rm -rf $mine $deep && mkdir -m 755 $mine
replace() { # NAME TEXT: as package managers do
    echo "$2" >$mine/.new
    chmod 644 $mine/.new
    mv $mine/.new $mine/"$1"
}
replace version 1
replace goes 1
replace ours 1
replace open 1
mkdir -m 755 $mine/sub
mkdir -p $deep/a/b/c

ok as alice skiff env create dev
ok as alice skiff env refresh dev
start alice skiff env exec dev -- sh -c 'echo mine >/etc/skiff-test/ours; touch ~/ready; cd /etc/skiff-test; exec tail -f open'
eventually 5 test -e /home/alice/ready
inside alice dev 'cat /etc/skiff-test/version; ls /etc/skiff-test'
equal "$out" $'1\ngoes\nopen\nours\nsub\nversion'

replace version 2
rm $mine/goes
replace came 2
replace ours 2
replace sub/deep 2
ok as alice skiff env refresh dev
has "$out" $'/etc/skiff-test\n/etc/skiff-test/sub' 'the directories in which something has changed'
inside alice dev 'cd /etc/skiff-test; cat version came sub/deep ours; ls'
equal "$out" $'2\n2\n2\nmine\ncame\nopen\nours\nsub\nversion'
ok as alice skiff env exec --me dev -- cat $mine/version
equal "$out" 2 'as oneself'
kill -0 "$started" || fail 'the session did not live through the refresh'

# Unasked: the next session sees it, wherever it is.
inside alice dev '! ls /etc/skiff-test/unasked'
replace unasked 1
replace version unasked
rm $mine/came
ok as alice skiff env exec dev -- sh -c 'cd /etc/skiff-test; cat unasked version; ls'
equal "$out" $'1\nunasked\nopen\nours\nsub\nunasked\nversion' 'what has changed, without being asked for'
ok as alice skiff env exec --me dev -- cat $mine/version
equal "$out" unasked 'as oneself, unasked'

# Where the kernel has told the supervisor of no change, a session does not even look: what is written down wrongly stays as it is.
state=/home/alice/.local/share/skiff/env/dev/host-state
unlooked() {
    as alice skiff env exec dev -- true || return
    sleep 0.7
    as alice sed -i '3s/^[0-9]* /7 /' $state
    as alice skiff env exec dev -- true
    sed -n 3p $state | grep -q '^7 '
}
[ -e $state ] || fail "no state at $state"
eventually 30 unlooked
replace unlooked 1
inside alice dev 'cat /etc/skiff-test/unlooked'
equal "$out" 1 'a change after which a session looks'
! sed -n 3p $state | grep '^7 ' || fail 'what was written down wrongly is still there'
rm $mine/unlooked

# In a directory too deep for the look that each session takes: the supervisor looks at all from time to time.
sleep 0.3
ok as alice skiff env refresh dev
inside alice dev "! ls $deep/a/b/c/new"
as alice skiff env exec dev -- true
touch $deep/a/b/c/new
# One session, which begins while the supervisor rests from the look for the one before.
limit=30 ok as alice skiff env exec dev -- sh -c "until ls $deep/a/b/c/new 2>/dev/null; do sleep 0.2; done"
touch $deep/a/b/newer
ok as alice skiff env refresh --json dev
equal "$(json "$out" 'd["directories"]')" "['$deep/a/b']" 'the deep directory that has changed'
ok as alice skiff env refresh dev
equal "$out" '' 'nothing has changed'
has "$err" 'environment dev is up to date with the host'

# Again and again, with sessions at work.
for i in 3 4 5 6; do
    replace version $i
    ok as alice skiff env refresh dev
    ok as alice skiff env exec dev -- cat $mine/version
    equal "$out" $i "version after refresh number $i"
done
replace open 2
ok as alice skiff env refresh dev
ok as alice skiff env exec dev -- cat $mine/open
equal "$out" 1 'a file that is open inside'
kill "$started"
eventually 3 sh -c "! pgrep -u alice tail"
ok as alice skiff env refresh dev
ok as alice skiff env exec dev -- cat $mine/open
equal "$out" 2 'the same after it was closed'

# Not running: the next start sees all.
ok as alice skiff env stop dev
replace version 7
ok as alice skiff env refresh dev
equal "$out" '' 'one that is not running'
ok as alice skiff env exec dev -- cat $mine/version
equal "$out" 7
fails 125 as alice skiff env refresh nosuch

# Packages. The administrator's dpkg and alice's change a database each, and hers is brought up to date by each session.
chmod 755 $packages
package() { # NAME VERSION [FIELD]: a package with one file
    local dir=$packages/$1
    mkdir -p $dir/DEBIAN $dir/usr/share/$1
    printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: a <a@b.c>\n%sDescription: x\n' $1 $2 "${3:+$3$'\n'}" >$dir/DEBIAN/control
    echo $2 >$dir/usr/share/$1/version
    dpkg-deb --root-owner-group -Znone -b $dir $packages/$1_$2.deb >/dev/null
    echo $packages/$1_$2.deb
}
admin() { DEBIAN_FRONTEND=noninteractive dpkg --force-unsafe-io --no-triggers "$@" >/dev/null 2>&1; }
installed() { # NAME...: what dpkg inside says of them
    ok as alice skiff env exec dev -- dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' "$@"
}
is_sound() {
    inside alice dev 'dpkg --audit; apt-get -qq check; dpkg --verify skiff-up skiff-new'
    equal "$out$err" '' 'what dpkg and apt say of the database'
}
admin -i $(package skiff-up 1) $(package skiff-both 1) $(package skiff-gone 1)
cp $(package skiff-mine 1 'Depends: skiff-gone') $(package skiff-both 3) /home/alice
# For a merge no program of the environment is started, which would have the network and the variables of whoever calls from outside.
inside alice dev 'cp -p /etc/ld.so.cache /etc/own; mv /etc/own /etc/ld.so.cache
    printf "#!/bin/sh\ntouch /var/ran\n" >/usr/sbin/own; chmod 755 /usr/sbin/own; mv /usr/sbin/own /usr/sbin/ldconfig'
inside alice dev 'dpkg -i /home/alice/skiff-mine_1.deb /home/alice/skiff-both_3.deb >/dev/null; apt-mark auto skiff-up >/dev/null'
admin -i $(package skiff-up 2) $(package skiff-new 1) $(package skiff-both 2)
installed skiff-up skiff-new skiff-both skiff-mine
equal "$out" $'skiff-both 3 installed\nskiff-mine 1 installed\nskiff-new 1 installed\nskiff-up 2 installed'
has "$err" 'package skiff-both: yours (3) stays, and the host has 2 now' 'a conflict'
is_sound
inside alice dev 'cat /usr/share/skiff-up/version /usr/share/skiff-new/version /usr/share/skiff-both/version'
equal "$out$err" $'2\n1\n3'
ok as alice skiff env exec dev -- test ! -e /var/ran
# It is said once.
installed skiff-up
equal "$err" ''
# A named pipe in the place of the file that is not whole yet holds up nobody.
inside alice dev 'mkfifo /var/lib/dpkg/status.skiff-new'
admin -i $(package skiff-up 3)
limit=8 installed skiff-up
equal "$out" 'skiff-up 3 installed'
equal "$err" ''
# What is removed is removed. One of hers needed it.
admin --force-depends -P skiff-gone skiff-new
ok as alice skiff env refresh dev
has "$out" 'package skiff-gone 1 removed'
has "$out" 'package skiff-new 1 removed'
has "$err" 'package skiff-mine needs skiff-gone, which the host has removed'
ok as alice skiff env exec dev -- sh -c '! dpkg -s skiff-gone skiff-new >/dev/null 2>&1; ls /usr/share/skiff-new 2>/dev/null || echo gone'
equal "$out" gone
fails 100 as alice skiff env exec dev -- apt-get -qq check
inside alice dev 'dpkg -P skiff-mine >/dev/null'
is_sound() { inside alice dev 'dpkg --audit; apt-get -qq check; dpkg --verify skiff-up' && equal "$out$err" '' 'what dpkg and apt say'; }
is_sound

# What of hers hides something newer, and both directions of what is different.
ok as alice skiff env status --json dev
equal "$(json "$out" '[[p["name"], p["yours"], p["host"], p["conflict"], p["held"]] for p in d["packages"]]')" "[['skiff-both', '3', '2', True, False]]"
has "$(json "$out" 'd["files"]')" "'/etc/skiff-test/ours'"
inside alice dev 'echo skiff-both hold | dpkg --set-selections'
admin -i $(package skiff-both 4)
printf 'Package: skiff-both\nVersion: 4\n' >$list
ok as alice skiff env status dev
has "$(tr -s ' ' <<<"$out")" 'skiff-both 3 4 security update, both have changed it, held'
has "$out" '/etc/skiff-test/ours  (the host has changed it since)'
inside alice dev 'echo mine >/etc/skiff-test/version'
ok as alice skiff env diff dev
has "$out" $'C /etc/skiff-test/ours  (the host has changed it since)\n'
has "$out" $'C /etc/skiff-test/version\n'
ok as alice skiff env diff --json dev
equal "$(json "$out" '[c.get("base_changed") for c in d if c["path"].startswith("etc/skiff-test/")]')" '[True, None]'
inside alice dev 'echo skiff-both install | dpkg --set-selections'

# An RPM database of her own in a format that is not merged hides the host's.
mkdir -p ${rpm%/*}
echo host >$rpm
inside alice dev "echo mine >$rpm"
ok as alice skiff env status dev
has "$err" "$rpm is the environment's own: what"

# While somebody inside holds dpkg's lock nothing is written; the next session does it.
start alice skiff env exec dev -- python3 -c 'import fcntl, time
lock = open("/var/lib/dpkg/lock-frontend", "r+")
fcntl.lockf(lock, fcntl.LOCK_EX)
open("/home/alice/locked", "w")
time.sleep(60)'
eventually 5 test -e /home/alice/locked
admin -i $(package skiff-late 1)
[ ! -e $apt ] || cp -p $apt $packages
apt-mark auto skiff-late >/dev/null
ok as alice skiff env refresh dev
has "$err" 'a package manager is at work in it'
fails 1 as alice skiff env exec dev -- dpkg -s skiff-late
kill "$started"
eventually 5 as alice skiff env exec dev -- dpkg -s skiff-late
ok as alice skiff env exec dev -- apt-mark showauto skiff-up skiff-late
equal "$out" $'skiff-late\nskiff-up' 'what apt knows to be needed by others only'

# Killed at any moment, it leaves the one database or the other, and the next session does the rest.
for i in 1 3; do
    admin -i $(package skiff-up 1.$i)
    start alice setsid skiff env refresh dev
    sleep 0.0$((i * 2))
    # With what it has started.
    kill -9 -- "-$started" 2>/dev/null || true
    inside alice dev 'dpkg-query -W -f "\${Version} \${db:Status-Status}" skiff-up'
    equal "$out" "1.$i installed" "after a merge that was killed"
done
is_sound

# At the start of one that did not run.
ok as alice skiff env stop dev
ok as alice skiff env clone dev copy
admin -i $(package skiff-up 7)
installed skiff-up
equal "$out" 'skiff-up 7 installed' 'at the start'
ok as alice skiff env status --json copy
equal "$(json "$out" '[p["name"] for p in d["packages"]]')" "['skiff-both']" 'a copy knows what was merged'
