# takes: 15
# Attacks on the setuid helper: alice speaks its protocol herself, from everywhere and under all conditions. See attack.py.
. "$(dirname "$0")/../lib.sh"
helper=/usr/libexec/skiff/skiff-helper
mine=/etc/skiff-test
secret='no-one-must-read-this'
restless=
begin_changing() { # makes the stand-ins out of date, again and again
    touch $mine/changing
    while [ -e $mine/changing ]; do
        touch $mine/restless; rm $mine/restless; touch -d @$RANDOM $mine; touch /etc/skiff-marker; rm -f /etc/skiff-marker; sleep 0.01
    done 3>&- &
    restless=$!
}
end_changing() { # returns when its last command has ended: killed, it would leave one running
    rm -f $mine/changing
    [ -z "$restless" ] || wait "$restless" || true
    restless=
}
cleanup() {
    end_changing
    rm -rf $mine /etc/skiff/networks.d /etc/skiff-marker /usr/local/bin/skiff-test-* /tmp/skiff-attack.py /tmp/skiff-preload*
    mount --make-private /run 2>/dev/null || true
}
trap cleanup EXIT
cp "$here/attack.py" /tmp/skiff-attack.py && chmod 755 /tmp/skiff-attack.py
attack() { # NAME ARGUMENT...
    ok as alice /usr/bin/python3 /tmp/skiff-attack.py $helper "$@"
    equal "$out" '' "what the attack '$1' gained$(said)"
    # Without memory Rust's own beginning gives up, before there is anything of ours.
    [ "$1" = limits ] || lacks "$err" panicked "$1"
    # Others are served as before.
    ok as bob skiff run -- grep -c '^root:\*' /etc/shadow
    equal "$out" 1 "stand-ins after '$1'"
}

# A host as systemd leaves it: what is mounted in one namespace shows in all that share it.
umount -l /run/skiff/base 2>/dev/null || true
mount --make-shared /run 2>/dev/null || mount --bind --make-shared /run /run

as alice skiff env create dev
start alice skiff env exec dev -- sleep 1000
as bob skiff env create dev
start bob skiff env exec dev -- sleep 1000
eventually 5 pgrep -u bob -x sleep
ok as bob skiff ps --json
bobs=$(json "$out" 'd[0]["pid"]')
ok as alice skiff ps --json
alices=$(json "$out" 'd[0]["pid"]')

# This one waits for most of its time: meanwhile the others.
mkdir -p /etc/skiff && echo 'helpers_each = 20' >/etc/skiff/helper.conf
bobs_command=$started
start mallory /usr/bin/python3 /tmp/skiff-attack.py $helper many 20 >many 2>&1
many=$started
attack messages
attack words
attack targets "$bobs_command" "$bobs"
attack moving
mkdir -p /etc/skiff/networks.d
printf 'kind = "bridge"\nsubnet = "10.66.0.0/24"\n' >/etc/skiff/networks.d/attack.toml
attack networks "$bobs"
attack own_limits
as bob skiff env create --net attack far
start bob skiff env exec far -- sleep 1000
eventually 5 sh -c 'grep -l "$(id -u bob)" /run/skiff/net/attack/10.*'
attack connections "$bobs" "$(cd /run/skiff/net/attack && grep -l "\"uid\":$(id -u bob)" 10.* | tail -1)"
ok as bob skiff env stop far
skiff sweep >/dev/null
attack descriptors
mkdir -p /mnt/skiff-test && mount -t tmpfs tmpfs /mnt/skiff-test && mkdir /mnt/skiff-test/a /mnt/skiff-test/b /mnt/skiff-test/c
mount -t overlay -o lowerdir=/mnt/skiff-test/a:/mnt/skiff-test/b overlay /mnt/skiff-test/c
attack hosts_overlay /mnt/skiff-test/c
umount /mnt/skiff-test/c /mnt/skiff-test && rmdir /mnt/skiff-test
attack fake_system
attack through "$alices"
attack watched
attack joined
attack joined_unfiltered
attack waiting
attack left_open
attack stopped
attack full_socket
attack confined
attack from_inside 60

# The stand-ins are made anew all the time meanwhile.
rm -rf $mine && mkdir -m 755 $mine
begin_changing
attack limits
attack out_of_time
(ulimit -f 100 && ulimit -f unlimited) 2>&- || echo 'not tried, as root may not lift them here: hard limits'
deep=/etc/skiff-test/$(printf 'd/%.0s' $(seq 14))closed
mkdir -p "$deep" && chmod 700 "$deep"
end_changing
for count in $(seq 21 3 48); do
    touch /etc/skiff-marker && rm /etc/skiff-marker
    attack few_descriptors $count
    ok as bob skiff run -- ls "$deep"
done
rm -rf /etc/skiff-test/d
begin_changing
printf 'void __attribute__((constructor)) f(void) { extern int creat(const char *, int); creat("/tmp/skiff-preloaded", 0644); }' >preload.c
if command -v cc >/dev/null; then cc -shared -fPIC -o preload.so preload.c 2>/dev/null; else cp /bin/true preload.so; fi
install -m 644 preload.so /tmp/skiff-preload.so
attack surroundings /tmp/skiff-preload.so
[ ! -e /tmp/skiff-preloaded ] || fail 'the helper has loaded the library of a variable'
umount -l /run/skiff/base && rm -rf /run/skiff/base
attack surroundings /tmp/skiff-preload.so
equal "$(stat -c %a /run/skiff) $(stat -c %a /run/skiff/base)" '755 755' 'modes of what the helper makes'
equal "$(stat -c '%U:%G' /run/skiff /run/skiff/callers | sort -u)" root:root 'whose what the helper makes is'
start alice /usr/bin/python3 /tmp/skiff-attack.py $helper interrupted 4
while kill -0 "$started" 2>/dev/null; do ok as bob skiff run -- true; done
end_changing

wait $many || fail "many: exit code $?"
equal "$(cat many)" '' "what the attack 'many' gained"

# Nobody has limits of their own for each subordinate id: root inside can give any of theirs to a setuid program.
IFS=: read -r _ first _ < <(grep ^mallory: /etc/subuid)
fails 125 setpriv --reuid $((first + 5)) --regid $((first + 5)) --clear-groups env -i HOME=/tmp PATH=/usr/bin:/bin skiff run -- true
has "$err" 'a subordinate id'

# By chfn mallory puts what is no text into her line of /etc/passwd. That keeps nobody out.
password=$(getent shadow mallory | cut -d: -f2)
echo mallory:pw | chpasswd 2>/dev/null
as mallory sh -c 'echo pw | chfn -r "$0"' $'\377' 2>/dev/null
ok as alice skiff run -- id -u
ok as alice skiff run --net attack -- true
usermod -p "$password" mallory
chfn -r '' mallory

# What is given.
put() { # NAME MODE OWNER
    echo "$secret" >$mine/"$1"
    chown "$3" $mine/"$1"
    chmod "$2" $mine/"$1"
}
put root 600 root:root
put member 640 root:skiff
put daemon 400 daemon:daemon
printf "%s:x\n" "$secret" >$mine/shadow && chmod 600 $mine/shadow
mkdir -m 700 $mine/closed && put closed/open 644 root:root
mkdir -m 711 $mine/unlisted && mkdir -m 700 $mine/unlisted/"$secret"
paths=$(find $mine -type f)
attack mounts "$secret" $paths /etc/shadow /etc/gshadow
mknod -m 600 $mine/zero c 1 5
mknod -m 660 $mine/disk b 254 0
attack devices $mine/zero $mine/disk
install -m 4755 /bin/sleep /usr/local/bin/skiff-test-root
install -m 755 /bin/sleep /usr/local/bin/skiff-test-cap
setcap cap_net_raw,cap_sys_admin+ep /usr/local/bin/skiff-test-cap
attack privileged_files /usr/local/bin/skiff-test-root /usr/local/bin/skiff-test-cap
lacks "$(cat /proc/self/mountinfo)" skiff-attack 'mounts of the host'
