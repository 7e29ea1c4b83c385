# What an environment must not show or allow, to root inside as well: other processes, secrets of the host and of other users,
# privilege of any sort.
. "$(dirname "$0")/../lib.sh"
mine=/etc/skiff-test
host_key=/etc/ssh/ssh_host_skiff_test_key munge_key=/etc/munge/skiff-test.key
trap 'rm -rf $mine $host_key $munge_key; usermod -p "*" alice' EXIT

secret='no-one-must-read-this'
rm -rf $mine && mkdir -m 755 $mine
put() { # NAME MODE OWNER
    echo "$secret" >$mine/"$1"
    chown "$3" $mine/"$1"
    chmod "$2" $mine/"$1"
}
put root 600 root:root
put group 640 root:shadow
put member 640 root:skiff
put daemon 600 daemon:daemon
put open 644 root:root
put exec-only 711 root:root
mkdir -m 700 $mine/closed && put closed/open 644 root:root
mkdir -m 750 $mine/closed-to-others && put closed-to-others/open 644 root:skiff
install -m 600 $mine/root $host_key
install -m 400 -o munge -g munge $mine/root $munge_key
usermod -p '$6$salt$no-one-must-read-this' alice
as bob sh -c "echo $secret >~/secret; chmod 644 ~/secret"

as alice skiff env create dev
start bob sleep 7654
as bob skiff env create dev
# What it is started for is nobody's business who comes later.
start alice skiff env exec dev -- sh -c 'sleep 1; : 4321'
start bob skiff env exec dev -- sleep 6543

unreadable() { # IDENTITY PATH
    # Read and then changed, it would be a copy of the secret all the same.
    try as alice skiff env exec "$1" dev -- sh -c "cat '$2'; cp '$2' /tmp/copy; cat /tmp/copy; touch '$2'; cat '$2'; tar -cf - '$2' | strings"
    lacks "$out$err" "$secret" "$2 as $1"
}

for identity in --root --me; do
    ok as alice skiff env exec $identity dev -- cat $mine/open
    equal "$out" "$secret" 'what everybody may read'
    for name in root group member daemon exec-only closed/open closed-to-others/open; do
        unreadable $identity $mine/$name
        unreadable $identity /run/skiff/host$mine/$name
    done
    for path in $host_key $munge_key /etc/shadow /etc/shadow- /home/bob/secret /run/skiff/host/home/bob/secret /run/skiff/host/etc/shadow; do
        unreadable $identity $path
    done
    ok as alice skiff env exec $identity dev -- sh -c '
        for f in /etc/munge/munge.key /etc/ssh/ssh_host_ed25519_key /etc/ssh/ssh_host_rsa_key /etc/gshadow /var/log/btmp; do
            cat $f 2>/dev/null | tr -d "\0" | sed "s|^|$f: |"
        done
        ls -A /root/. /home/bob/. 2>/dev/null || :'
    # (Root's `.ssh` is a link to alice's own.)
    leaked=$(grep -v -e '^/etc/gshadow: [a-z0-9_-]*:[*!]*:' -e '^/root/.:$' -e '^\.ssh$' <<<"$out" || true)
    equal "$leaked" '' "what can be read of the host's secrets $identity"
    # Secrets that come into being while it runs.
    put later 600 root:root
    unreadable $identity $mine/later
    put closing 644 root:root
    ok as alice skiff env exec $identity dev -- cat $mine/closing
    chmod 600 $mine/closing
    unreadable $identity $mine/closing
    echo public >$mine/replaced
    chmod 644 $mine/replaced
    ok as alice skiff env exec $identity dev -- cat $mine/replaced
    put new 600 root:root
    mv $mine/new $mine/replaced
    unreadable $identity $mine/replaced
done

# Only its own processes.
ok as alice skiff env exec dev -- ps axo args
lacks "$out" 7654
lacks "$out" 6543
lacks "$(head -2 <<<"$out")" 4321 'what process 1 shows'
has "$out" skiff-init
lacks "$out" slurmctld
[ "$(wc -l <<<"$out")" -le 4 ] || fail "processes inside: $out"
ok as alice skiff env exec --me dev -- sh -c 'ls -d /proc/[0-9]* | wc -l'
[ "$out" -le 4 ] || fail "processes inside as oneself: $out"
fails 1 as alice skiff env exec dev -- kill -0 "$started"

# No privilege, by whatever file is made inside.
ok as alice skiff env exec dev -- sh -c 'cp /usr/bin/id /usr/bin/rootid; chmod 6755 /usr/bin/rootid; chown daemon /usr/bin/rootid; chmod 6755 /usr/bin/rootid'
ok as alice skiff env exec --me dev -- /usr/bin/rootid -u
equal "$out" "$(id -u alice)" 'who a set-uid program made inside runs as'
find /home/alice/.local -name rootid -perm /6000 >rootid
fails 126 as bob sh -c "$(cat rootid)"
# Root inside has over its own mounts what its user has (SYS_ADMIN); over devices, networks, others' processes nothing.
ok as alice skiff env exec dev -- grep -e NoNewPrivs -e CapBnd /proc/self/status
equal "$out" $'CapBnd:\t00000000a02425fb\nNoNewPrivs:\t0'
# A program that has NET_RAW as a file, as ping, is executed. It gets raw sockets where the network is the environment's own, and only there.
raw='import socket, sys
for family, protocol in (socket.AF_INET, 1), (socket.AF_PACKET, 3):
    try: socket.socket(family, socket.SOCK_RAW, protocol); print("raw")
    except PermissionError: print("refused")'
ok as alice skiff env exec dev -- sh -c 'cp "$(readlink -f "$(command -v python3)")" /usr/bin/as-ping; setcap cap_net_raw=ep /usr/bin/as-ping; as-ping -c "$0"' "$raw"
equal "$out" $'refused\nrefused' "raw sockets in the host's network"
ok as alice skiff run --net none -- python3 -c "$raw"
equal "$out" $'raw\nraw' 'raw sockets in a network of its own'
ok as alice skiff run --contain --net none -- python3 -c "$raw"
equal "$out" $'refused\nrefused' 'raw sockets, contained'
# As oneself, too, whatever the bounding set: the kernel gives whoever has made a user namespace all power over its networks.
ok as alice skiff run --me --net none -- python3 -c "$raw"
equal "$out" $'raw\nraw' 'raw sockets as oneself'
# Contained, and untrusted, not even that.
ok as alice skiff run --contain -- grep -e NoNewPrivs -e CapBnd /proc/self/status
equal "$out" $'CapBnd:\t00000000a00405fb\nNoNewPrivs:\t1'
ok as alice skiff env exec --me dev -- grep -e NoNewPrivs -e CapBnd /proc/self/status
has "$out" $'NoNewPrivs:\t1'
equal "${out%%$'\n'*}" $'CapBnd:\t0000000000000000' 'capabilities that can be had as oneself'
for attempt in 'cat /dev/vda /dev/sda /dev/mem /dev/nvme0n1 /dev/kmsg' 'dmesg -C' 'mount -t sysfs none /mnt' 'mount /dev/vda /mnt' \
    'mount -o remount,rw /run/skiff/host' 'mount -o remount,bind,rw,dev,suid /run/skiff/host; echo 1 >/run/skiff/host/etc/motd' \
    'echo x >/proc/sysrq-trigger' 'echo x >/sys/kernel/mm/ksm/run' 'swapoff -a; swapon /tmp/copy' 'echo 1 >/run/skiff/host/etc/motd'; do
    try as alice skiff env exec dev -- sh -c "$attempt"
    [ "$code" != 0 ] || fail "root inside may: $attempt$(said)"
done
# What is mounted inside is for all inside and nobody outside, and shows nothing of the host's that was hidden.
ok as alice skiff env exec dev -- sh -c "umount /home; umount -l /run/skiff/host; mount -t tmpfs none /mnt; touch /mnt/there; ls -A /home /root; cat $mine/root; ls /home/bob; true"
lacks "$out" "$secret" 'below what was unmounted'
ok as alice skiff env exec --me dev -- test -e /mnt/there
[ ! -e /mnt/there ] || fail 'a mount of root inside is on the host'
ok as alice skiff env stop dev
# Not through a namespace inside the namespace either.
ok as alice skiff env exec --me dev -- sh -c "unshare -Urm sh -c 'umount -l /etc; mount --bind /run/skiff/host /mnt; cat $mine/root /mnt$mine/root' 2>&1; true"
lacks "$out" "$secret" 'in a further namespace'

# Another user reaches none of it from outside.
ok as bob skiff ps --json
pid=$(json "$out" 'd[0]["pid"]')
for attempt in "ls /proc/$pid/root/" "ls /proc/$pid/fd" "nsenter -t $pid -U true" "nsenter -t $pid -m true" "kill $pid" "ls /home/bob/.local/share/skiff" \
    "SKIFF_STATE=/home/bob/.local/share/skiff skiff env exec dev -- true" "SKIFF_STATE=/home/bob/.local/share/skiff skiff env stop dev"; do
    try as alice sh -c "$attempt"
    [ "$code" != 0 ] || fail "alice may, with bob's environment: $attempt$(said)"
done
kill "$started"

# A group that denies: whoever is in it stays in it, if the administrator says so.
group=$(getent group skiff | cut -d: -f3)
trap 'rm -rf $mine $host_key $munge_key /etc/skiff/helper.conf /shared/denied; usermod -p "*" alice' EXIT
ok as alice skiff env stop dev
put denied 604 root:skiff
install -m 604 -o root -g skiff $mine/denied /shared/denied
for file in $mine/denied /shared/denied; do
    fails 1 as alice cat $file
done
echo "kept_groups = 4 $group" >/etc/skiff/helper.conf
for identity in --root --me; do
    unreadable $identity $mine/denied
    unreadable $identity /shared/denied
    ok as alice skiff env exec $identity dev -- cat $mine/open
done
ok as alice skiff env exec dev -- sh -c "setpriv --clear-groups cat $mine/denied /shared/denied; setpriv --regid 7 --clear-groups cat $mine/denied /shared/denied
    setpriv --regid 7 --keep-groups cat $mine/denied /shared/denied; su nobody -s /bin/sh -c 'cat $mine/denied /shared/denied'; :"
lacks "$out" "$secret" 'what a member may not read, having left the group'
ok as alice skiff env exec dev -- sh -c 'echo x >/etc/x; chown daemon:daemon /etc/x; id -G'
has " $out " " $group "
echo "kept_groups = $(id -g alice)" >/etc/skiff/helper.conf
fails 125 as alice skiff run -- true
has "$err" 'is to be kept'
has "$err" 'hint: '
