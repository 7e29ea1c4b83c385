# `skiff agent` where systemd runs the host, set up as docs/migration.md says: it starts at boot, what it starts for a user is in a session of
# PAM's with the limits of the site's for that user, and PAM has the last word. Debian's own systemd is process 1 of a container of its own.
. "$(dirname "$0")/../lib.sh"
[ -x /lib/systemd/systemd ] || skip 'systemd is not installed'
cgroups=/sys/fs/cgroup
own=skiff-systemd.$$
hierarchies=(.)
[ ! -d $cgroups/systemd ] || hierarchies=(systemd pids unified)
uid=$(id -u bob)
cp -a /etc/shadow shadow.kept
end_all() {
    cp -aT shadow.kept /etc/shadow
    rm -f /etc/pam.d/skiff /etc/security/limits.d/skiff-test.conf /etc/skiff/conf.d/agents.toml
    [ -z "${booted:-}" ] || kill -9 "$booted" 2>&- || true
    [ -z "${container:-}" ] || wait "$container" 2>&- || true
    for hierarchy in "${hierarchies[@]}"; do
        for i in $(seq 40); do
            find "$cgroups/$hierarchy/$own" -depth -type d -exec rmdir {} + 2>&- && break
            [ -d "$cgroups/$hierarchy/$own" ] || break
            sleep 0.05
        done
    done
}
trap 'cat boot.log 2>&-; end_all' EXIT
for hierarchy in "${hierarchies[@]}"; do mkdir "$cgroups/$hierarchy/$own"; done

# As docs/migration.md says.
mkdir -p /etc/skiff/conf.d
printf '[migrate]\nport = 7790\n' >/etc/skiff/conf.d/agents.toml
cp /usr/share/doc/skiff/pam-skiff /etc/pam.d/skiff
echo 'bob hard nofile 777' >/etc/security/limits.d/skiff-test.conf
cat >boot.sh <<'X'
set -eu
mount -t proc proc /proc
mount -t sysfs sysfs /sys
if [ "$1" = . ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/{systemd,pids,unified}
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
    mount -t cgroup -o pids cgroup /sys/fs/cgroup/pids
    mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
fi
# Nothing of this host's own starts, and nothing stays of it.
for dir in /run /tmp /etc/systemd/system/multi-user.target.wants /etc/systemd/system/timers.target.wants /etc/rc?.d; do mkdir -p $dir; mount -t tmpfs -o mode=755 tmpfs $dir; done
[ ! -d /var/log/journal ] || mount -t tmpfs tmpfs /var/log/journal
ln -s /lib/systemd/system/munge.service /etc/systemd/system/multi-user.target.wants
systemctl enable skiff-agent
mkdir -p /run/systemd/system/user-.slice.d
printf '[Slice]\nTasksMax=99\n' >/run/systemd/system/user-.slice.d/test.conf
hostname n9
ip link set lo up
ip link add br0 type bridge
ip addr add 10.99.0.9/24 dev br0
ip link set br0 up
exec env -i container=skiff-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --log-target=journal --show-status=false
X
(
    for hierarchy in "${hierarchies[@]}"; do echo $BASHPID >"$cgroups/$hierarchy/$own/cgroup.procs"; done
    exec unshare -C -p -f -m -u -i -n --propagation private --kill-child bash boot.sh "${hierarchies[0]}" >boot.log 2>&1 3>&-
) &
container=$!
eventually 5 pgrep -P $container
booted=$(pgrep -P $container)
enter() { nsenter -t "$booted" -m -p -u -n -i -C "$@"; }
eventually 20 enter bash -c '</dev/tcp/10.99.0.9/7790'
equal "$(enter systemctl is-active skiff-agent)" active
echo "the agent is there $SECONDS s after the boot began"

login bob
{ enter "${login[@]}" timeout 20 python3 -uc 'import socket, time; s = socket.create_server(("10.99.0.9", 7791)); print("ready"); c = s.accept(); print("called"); time.sleep(20)' || true; } >called 3>&- &
eventually 5 grep -q ready called
call() { enter "${login[@]}" timeout 10 skiff agent-call 10.99.0.9 7790 <<<'{"hosts":["10.99.0.9"],"port":7791,"secret":"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"}'; }
{ call || true; } 2>heard 3>&- &
eventually 10 grep -q called called
pid=$(enter pgrep -u bob -f '^[^ ]*skiff migrate-receive')
has "$(enter cat "/proc/$pid/cgroup")" "/user.slice/user-$uid.slice/"
equal "$(enter systemctl show -p TasksMax --value "user-$uid.slice")" 99 'how many tasks the user may have'
equal "$(enter cat "/sys/fs/cgroup/${hierarchies[1]:-.}/user.slice/user-$uid.slice/pids.max")" 99 'as the kernel says'
equal "$(enter sed -n 's/^Max open files *\([0-9]*\) *\([0-9]*\).*/\2/p' "/proc/$pid/limits")" 777 'its limit of PAM'
equal "$(enter ps -o user=,group= -p "$pid" | xargs)" 'bob bob' 'whose it is'
has "$(enter journalctl --no-pager -o cat)" 'pam_unix(skiff:session): session opened for user bob' 'its session'
# Its start is over: systemd ends one that is not.
equal "$(enter systemctl list-units --no-legend --plain 'run-u*.service' | xargs -n1 | sed -n '3,4p' | xargs)" 'active running'
enter kill "$pid"

# PAM has the last word: this one was not used for too long after its password had become too old.
usermod -p '$6$salt$hash' bob
chage -d 1 -M 1 -I 1 bob
try call
has "$err" '10.99.0.9 says: '
has "$(enter journalctl --no-pager -o cat)" 'pam_unix(skiff:account): account bob has expired'
equal "$(enter pgrep -u bob -f 'skiff migrate-receive' || true)" '' 'a receiver all the same'
