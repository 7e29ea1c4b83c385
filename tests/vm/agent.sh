# `skiff agent` where Debian's systemd runs a whole machine, set up as docs/migration.md says: its session is one of logind's, its limits are the
# user's slice's, and accounts that are closed get nothing. (tests/agent-systemd does this in a container, without logind.)
. "$(dirname "$0")/../lib.sh"
equal "$(cat /proc/1/comm)" systemd 'process 1'
cp -a /etc/shadow shadow.kept
cp -a /etc/passwd passwd.kept
open_again() { cp -aT shadow.kept /etc/shadow; cp -aT passwd.kept /etc/passwd; rm -f /etc/nologin; }
called=
cleanup() {
    [ -z "$called" ] || kill "$called" 2>&- || true
    open_again
    systemctl disable --now skiff-agent 2>&- || true
    rm -f /etc/pam.d/skiff /etc/security/limits.d/skiff-test.conf /etc/skiff/conf.d/agent.toml /run/systemd/system/user-.slice.d/test.conf
    ip link del br9 2>&- || true
}
trap cleanup EXIT
systemctl start munge
mkdir -p /etc/skiff/conf.d /run/systemd/system/user-.slice.d
printf '[migrate]\nport = 7790\n' >/etc/skiff/conf.d/agent.toml
cp /usr/local/share/doc/skiff/pam-skiff /etc/pam.d/skiff
printf '[Slice]\nTasksMax=99\n' >/run/systemd/system/user-.slice.d/test.conf
echo 'bob hard nofile 777' >/etc/security/limits.d/skiff-test.conf
systemctl daemon-reload
ip link add br9 type bridge
ip addr add 10.99.0.9/24 dev br9
ip link set br9 up
systemctl enable --now skiff-agent
eventually 20 bash -c '</dev/tcp/10.99.0.9/7790'
equal "$(systemctl is-active skiff-agent)" active

start bob python3 -uc 'import socket, time
s = socket.create_server(("10.99.0.9", 7791))
print("ready")
while True: c = s.accept(); print("called"); kept = c' >called.log
called=$started
eventually 10 grep -q ready called.log
receivers() { pgrep -u bob -f '^[^ ]*skiff migrate-receive' || true; }
call() { as bob timeout 200 skiff agent-call 10.99.0.9 7790 <<<'{"hosts":["10.99.0.9"],"port":7791,"secret":"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"}'; }
refused() { # WORDS CHANGE...
    local words=$1
    shift
    "$@"
    try call
    open_again
    has "$err" "$words" "$*"
    equal "$(receivers)" '' "a receiver all the same, after: $*"
}
refused 'account bob: its shell is /usr/sbin/nologin' usermod -s /usr/sbin/nologin bob
refused 'account bob: it is locked' usermod -p '!$6$salt$hash' bob
refused 'account bob: it has expired' usermod -e 1970-01-02 bob
refused 'account bob: its password must be changed' chage -d 0 bob
refused 'nobody can log in while /etc/nologin exists' touch /etc/nologin
# What only PAM knows: the password was too old for too long.
inactive() { usermod -p '$6$salt$hash' bob; chage -d 1 -M 1 -I 1 bob; }
refused 'status=224' inactive
has "$(journalctl --no-pager -o cat)" 'pam_unix(skiff:account): account bob has expired'
equal "$(grep -c called called.log || true)" 0 'calls back'

{ call || true; } >heard 2>&1 3>&- &
eventually 20 grep -q called called.log
pid=$(receivers)
# It would wait for its caller for some seconds only.
kill -STOP "$pid"
has "$(loginctl --no-legend list-sessions)" bob 'the sessions of logind'
cgroup=$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
uid=$(id -u bob)
has "$cgroup" "/user.slice/user-$uid.slice/session-"
equal "$(systemctl show -p TasksMax --value "user-$uid.slice")" 99 'how many tasks the user may have'
equal "$(cat "/sys/fs/cgroup/user.slice/user-$uid.slice/pids.max")" 99 'as the kernel says'
equal "$(sed -n 's/^Max open files *\([0-9]*\) *\([0-9]*\).*/\2/p' "/proc/$pid/limits")" 777 'its limit of PAM'
equal "$(ps -o user=,group= -p "$pid" | xargs)" 'bob bob' 'whose it is'
has "$(journalctl --no-pager -o cat -u 'run-*')" 'pam_unix(skiff:session): session opened for user bob' 'its session'
kill -KILL "$pid"
eventually 20 sh -c "! kill -0 $pid 2>&-"
echo passed
