# takes: 14
# An OCI runtime for an ordinary user: the life of a container, what its configuration asks for, and bundles that wish one ill.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/lib.sh"
make_bundle

# ---- Its life, step by step ------------------------------------------------------------------------------------------------

script 'echo started; exec sleep 1000' 'c["annotations"] = {"a": "b"}'
ok as alice sh -c "skiff-oci create -b $bundle --pid-file pid box >out"
equal "$(state box)" created
equal "$(cat /home/alice/out)" '' 'output before its start'
fails 125 as alice skiff-oci exec box true
has "$err" 'nothing can be started in it before it runs'
fails 125 as alice skiff-oci create -b $bundle box
has "$err" 'already exists'
fails 125 as alice skiff-oci delete box
has "$err" 'is created'
ok as alice skiff-oci start box
eventually 20 grep -q started /home/alice/out
equal "$(state box)" running
ok as alice skiff-oci state box
equal "$(json "$out" '[d["ociVersion"], d["bundle"], d["annotations"]["a"], d["pid"]]')" \
    "['1.2.0', '$bundle', 'b', $(cat /home/alice/pid)]"
fails 125 as alice skiff-oci start box
has "$err" 'is running'
fails 125 as alice skiff-oci delete box
ok as alice skiff-oci exec box sh -c 'hostname; id -u; ps | grep -c sleep'
equal "$(head -2 <<<"$out")" $'skiff\n0'
fails 7 as alice skiff-oci exec box sh -c 'exit 7'
fails 125 as alice skiff-oci exec box nothing
has "$err" 'nothing'
ok as alice skiff-oci exec -e A=1 --cwd /data box sh -c 'echo $A; pwd; grep -c . /proc/self/status'
has "$out" $'1\n/data'
# Variables that the configuration has as well are set once, to the later value; an empty HOME is none.
ok as alice skiff-oci exec -e A=1 -e A=2 -e PATH=/data:/bin -e HOME= box env
equal "$(grep -E '^(A|PATH|HOME)=' <<<"$out" | sort | xargs)" 'A=2 HOME=/root PATH=/data:/bin'
# A signal that comes while the process is started is for the process. It is held up by its log, which takes no more.
as alice mkfifo full
exec 5<>/home/alice/full
timeout 5 head -c 65536 /dev/zero >&5
start alice skiff-oci --log full exec -g 5 box sleep 1000 5<&-
held() { child=$(xargs </proc/"$started"/task/"$started"/children) && grep -q pipe_write "/proc/$child/wchan"; }
eventually 20 held
kill "$started"
timeout 5 head -c 65536 <&5 >/dev/null
wait "$started" || true
exec 5<&-
rm /home/alice/full
[ ! -e "/proc/$child" ] || fail 'a process that its `exec` was to end runs on'
# Much input at a terminal, whose program writes before it has read all.
limit=20 ok as alice sh -c 'seq 100000 | skiff-oci exec -t box sh -c "stty -echo; cat; echo end" | tail -n 2'
equal "$(tr -d '\r' <<<"$out")" $'100000\nend'
# A shell sets up its terminal, and loses what was typed before: it hears of the end of the input all the same.
limit=20 ok as alice sh -c 'skiff-oci exec -t box sh -c "sleep 1; exec sh -i" </dev/null'
# A process may come by a pipe; signal 0 asks whether there is one.
process='{"args": ["/bin/echo", "piped"], "cwd": "/"}'
ok as alice bash -c "skiff-oci exec -p <(echo '$process') box"
equal "$out" piped
ok as alice skiff-oci kill box 0
fails 125 as alice skiff-oci pause box
has "$err" 'control group'
ok as alice skiff-oci list
has "$out" "box  $(cat /home/alice/pid)"
ok as alice skiff-oci ps box
has "$out" sleep
# Nobody else sees it, or can reach it.
fails 125 as mallory skiff-oci state box
for command in state 'delete --force' 'kill -a'; do
    # shellcheck disable=SC2086
    fails 125 as mallory skiff-oci --root /tmp/skiff-oci.$(id -u alice) $command box
done
equal "$(state box)" running
# Root does it as alice.
ok skiff-oci --root /tmp/skiff-oci.$(id -u alice) state box
has "$out" '"status": "running"'
# But by no path that another user can change, and not with a directory of root's own.
as mallory ln -s /tmp /home/mallory/way
fails 125 skiff-oci --root /home/mallory/way/skiff-oci.$(id -u alice) delete --force box
equal "$(state box)" running
as mallory rm /home/mallory/way
mkdir /tmp/skiff-oci.roots
fails 125 skiff-oci --root /tmp/skiff-oci.roots list
has "$err" "the host's root"
rmdir /tmp/skiff-oci.roots
ok as alice skiff-oci kill box KILL
eventually 20 sh -c "[ ! -e /proc/$(cat /home/alice/pid) ] || grep -q 'State:.Z' /proc/$(cat /home/alice/pid)/status"
equal "$(state box)" stopped
fails 125 as alice skiff-oci kill box TERM
ok as alice skiff-oci delete box
fails 125 as alice skiff-oci state box
fails 125 as alice skiff-oci delete box
ok as alice skiff-oci delete --force box
for id in '' . .. a/b "$(printf '%256s' | tr ' ' a)"; do
    fails 125 as alice skiff-oci create -b $bundle "$id"
done

# What is killed at any moment leaves something that can be deleted.
script 'exec sleep 1000'
for _ in $(seq 20); do
    start alice skiff-oci create -b $bundle box
    sleep "0.0$((RANDOM % 7 + 1))"
    kill -9 "$started" 2>&- || true
    { wait "$started"; } 2>&- || true
    ok as alice skiff-oci delete --force box
done
equal "$(as alice skiff-oci list -q)" ''
if pgrep -u alice sleep; then fail 'a process is left'; fi

# What a `run` that was killed has left goes by itself; what runs, is waited for, or was made by `create`, stays.
script 'echo begun; exec sleep 1000'
for id in lost awaited; do
    start alice skiff-oci run -b $bundle $id >/home/alice/$id
    eval "$id=$started"
    eventually 20 grep -q begun /home/alice/$id
done
as alice skiff-oci create -b $bundle made >/dev/null
kill -9 "$lost"
{ wait "$lost"; } 2>&- || true
ok as alice skiff-oci delete --orphaned
equal "$(state lost)" running
for id in lost made; do ok as alice skiff-oci kill $id KILL; done
for id in lost made; do eventually 20 sh -c "skiff-oci --root /tmp/skiff-oci.$(id -u alice) state $id | grep -q stopped"; done
ok as alice skiff-oci delete --orphaned
equal "$(as alice skiff-oci list -q | xargs)" 'awaited made'
as alice skiff-oci kill awaited KILL
wait "$awaited" || true
ok as alice skiff-oci delete made
fails 125 as alice skiff-oci delete --orphaned made
equal "$(as alice skiff-oci list -q)" ''

# What another call has deleted before `run` comes to it: the program's exit code stays. The lock is held until `run` waits for it.
states=/tmp/skiff-oci.$(id -u alice)
script 'echo begun; until [ -e /data/end ]; do sleep 0.05; done; exit 7'
rm -f $bundle/rootfs/data/end
start alice skiff-oci run -b $bundle box >/home/alice/out
eventually 20 grep -q begun /home/alice/out
exec 5<"$states/box"
flock 5
touch $bundle/rootfs/data/end
waits() { readlink /proc/"$started"/fd/* | grep -qx "$states/box"; }
eventually 20 waits
rm -r "$states/box"
exec 5<&-
code=0
wait "$started" || code=$?
equal "$code" 7 'exit code of what another call has deleted'
rm $bundle/rootfs/data/end

# Further capabilities are handed on where the container's first process has those that can be inherited.
script 'exec sleep 1000' '
for kind in "bounding", "permitted", "inheritable": process["capabilities"].setdefault(kind, []).append("CAP_CHOWN")'
ok as alice skiff-oci run -d -b $bundle box
ok as alice skiff-oci exec --cap CAP_CHOWN --cap CAP_SYSLOG box grep -E 'CapAmb|CapEff' /proc/self/status
equal "$(awk '{ print $2 }' <<<"$out" | xargs)" '0000000420000421 0000000000000001'
fails 125 as alice skiff-oci update --memory 64M box
has "$err" 'container box: it has no control group of its own: its limits are'
has "$err" 'hint: set linux.cgroupsPath'
ok as alice skiff-oci delete --force box

# Paused and resumed in a control group that alice has been given. (The machine's are shown in a mount namespace that goes.)
script 'while :; do i=$((i + 1)); echo $i >/tmp/n; sleep 0.05; done' 'linux["cgroupsPath"] = "above/it/box"
c["mounts"].append({"destination": "/tmp", "type": "bind", "source": "/home/alice/paused", "options": ["bind"]})'
cat >/shared/paused <<'SCRIPT'
set -euE
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
cd paused
refused() { if "$@" 2>&1; then echo "not refused: $*" >&2; exit 1; fi; }
is() { [ "$(skiff-oci state box | sed -n 's/.*"status": "\(.*\)",/\1/p')" = "$1" ]; }
skiff-oci run -d -b ../bundle box
until [ -s n ]; do sleep 0.05; done
is running
skiff-oci pause box
is paused
# Its limits are changed, as far as the machine's groups of version 2 have them.
group=$(dirname "$(find "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)" -path '*/above/it/box/cgroup.procs')")
if [ -e "$group/pids.max" ]; then
    echo '{"pids": {"limit": 77}}' | skiff-oci update --resources=- box
    [ "$(cat "$group/pids.max")" = 77 ]
else
    refused skiff-oci update --pids-limit 77 box | grep -F 'pids.max 77: No such file'
fi
before=$(cat n)
sleep 0.5
[ "$(cat n)" = "$before" ]
refused skiff-oci exec box true
refused skiff-oci pause box
skiff-oci resume box
until [ "$(cat n)" != "$before" ]; do sleep 0.05; done
is running
refused skiff-oci resume box
skiff-oci pause box
# Another one in a group that was made for the first: it goes with the last of them.
sed 's|above/it/box|above/second|' ../bundle/config.json >../bundle/second.json
mv ../bundle/second.json ../bundle/config.json
skiff-oci run -d -b ../bundle second
skiff-oci delete --force box
groups="/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)"
[ "$(find "$groups" -mindepth 1 -type d -printf '%P ')" = 'above above/second ' ]
skiff-oci delete --force second
[ -z "$(find "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)" -mindepth 1 -type d)" ]
SCRIPT
as alice mkdir paused
cat >/shared/grouped <<'SCRIPT'
set -eu
own=$(sed -n 's/^0:://p' /proc/self/cgroup)
mount -t cgroup2 cgroup2 /sys/fs/cgroup
group=/sys/fs/cgroup/skiff-oci-test.$$
mkdir -p $group
chown -R alice: $group
echo $$ >$group/cgroup.procs
code=0
setpriv --reuid alice --regid alice --init-groups env -i -C /home/alice HOME=/home/alice PATH=/usr/bin:/bin timeout 60 bash /shared/paused || code=$?
echo $$ >"/sys/fs/cgroup$own/cgroup.procs"
rmdir $group || { code=1; find $group -depth -type d -exec rmdir {} +; }
exit $code
SCRIPT
ok unshare --mount bash /shared/grouped

# ---- What the configuration asks for ---------------------------------------------------------------------------------------

script 'id -u; id -g; hostname; pwd; echo $A $HOME; cat /proc/self/oom_score_adj; umask 2>&1; ulimit -n
grep -E "^(CapEff|CapBnd|NoNewPrivs|Seccomp):" /proc/self/status | tr "\n\t" "  "' '
process.update(cwd="/new/dir", env=["PATH=/bin", "A=b"], oomScoreAdj=500, rlimits=[{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 78}])
process["user"]["umask"] = 0o27
c["hostname"] = "ship"
c["root"]["readonly"] = False
linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
    {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]}'
run
equal "$code" 0 "exit code ($err)"
equal "$out" $'0\n0\nship\n/new/dir\nb /root\n500\n0027\n77\nCapEff: 0000000020000420 CapBnd: 0000000020000420 NoNewPrivs: 1 Seccomp: 2 '
script 'touch /a || touch /data/a || touch /tmp/a && echo written; echo x >/proc/sys/kernel/hostname || echo kept
cat /proc/keys | wc -c; ls /sys/firmware | wc -l; [ -c /dev/null ] && [ -c /dev/fuse ] && readlink /dev/stdout
echo x >/dev/null; cat /mnt/one; echo more >>/mnt/one; cat /copied/one; touch /copied/two && echo copied' '
c["mounts"] += [
    {"destination": "/mnt/one", "type": "bind", "source": "/home/alice/one", "options": ["bind", "ro", "nosuid"]},
    {"destination": "/copied", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup", "size=1m"]}]
linux["devices"] = [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}]'
as alice sh -c "echo one >one; mkdir -p $bundle/rootfs/copied $bundle/rootfs/mnt; echo up >$bundle/rootfs/copied/one; touch $bundle/rootfs/mnt/one"
run
equal "$out" $'kept\n0\n0\n/proc/self/fd/1\none\nup\ncopied' "$err"
equal "$(cat /home/alice/one)" one
[ ! -e $bundle/rootfs/copied/two ] || fail 'written through to the root'
# A file system that is read-only has its mounts and devices all the same.
script 'touch /dev/x 2>&1 | grep -o "Read-only.*"; echo x >/dev/null; ls /dev/pts' '
for mount in c["mounts"]:
    if mount["destination"] == "/dev": mount["options"].append("ro")'
run
equal "$out" $'Read-only file system\nptmx' "$err"
# A password file that nobody can read is not waited for.
mv $bundle/rootfs/etc/passwd /home/alice/passwd
as alice mkfifo $bundle/rootfs/etc/passwd
script 'echo $HOME'
limit=20 run
equal "$out" / "$err"
mv /home/alice/passwd $bundle/rootfs/etc/passwd
# Ids of the user's own subordinate ones.
script 'id -u; id -g; id -G; stat -c %u:%g /data' '
first = [int(line.split(":")[1]) for line in open("/etc/subuid") if line.startswith("alice:")][0]
linux["uidMappings"] += [{"containerID": 1, "hostID": first, "size": 1000}]
linux["gidMappings"] += [{"containerID": 1, "hostID": first, "size": 1000}]
process["user"] = {"uid": 7, "gid": 8, "additionalGids": [9]}'
run
equal "$out" $'7\n8\n8 9\n0:0' "$err"
# Without a user namespace in the configuration there is one all the same.
script 'id -u; stat -c %u /data' 'linux["namespaces"] = [n for n in linux["namespaces"] if n["type"] != "user"]
del linux["uidMappings"], linux["gidMappings"]'
run
equal "$out" $'0\n0' "$err"
# Exit codes, signals, descriptors.
script 'kill -9 $$; exit 3'
run
equal "$code" 3 'process 1 is not killed from inside'
script 'cat <&3' ''
ok as alice sh -c "skiff-oci run -b $bundle --preserve-fds 1 box 3<one"
equal "$out" one
script 'test -e /proc/self/fd/3 && echo open; ls /proc/self/fd | wc -l'
ok as alice sh -c "skiff-oci run -b $bundle box 3<one"
equal "$out" 4 'descriptors: the standard ones and that of ls'
script 'trap "echo ended; exit 5" TERM; echo ready; while :; do sleep 0.05; done'
start alice sh -c "exec skiff-oci run -b $bundle box >out"
eventually 20 grep -q ready /home/alice/out
kill "$started"
code=0
wait "$started" || code=$?
equal "$code $(tail -1 /home/alice/out)" '5 ended'
equal "$(as alice skiff-oci list -q)" ''

# Containers that share namespaces by their paths.
script 'exec sleep 1000'
ok as alice sh -c "skiff-oci create -b $bundle --pid-file pid first >&- 2>&- && skiff-oci start first"
pid=$(cat /home/alice/pid)
script 'hostname; ps | grep -c "sleep 1000"' "
for n in linux['namespaces']:
    if n['type'] in ('user', 'uts', 'ipc', 'pid'): n['path'] = '/proc/$pid/ns/' + n['type']
del linux['uidMappings'], linux['gidMappings'], c['hostname']"
run
equal "$(head -1 <<<"$out")" skiff "$err"
[ "$(tail -1 <<<"$out")" -ge 2 ] || fail "not the other's processes: $out"
ok as alice skiff-oci delete --force first

# ---- Hooks -----------------------------------------------------------------------------------------------------------------

cat >/home/alice/hook <<'SCRIPT'
#!/bin/sh
read -r state
case $state in *'"id":"box"'*) ;; *) exit 9 ;; esac
echo "$1 $(id -u) $(hostname)" >>/home/alice/hooks
SCRIPT
chmod 755 /home/alice/hook
hooks='def hook(name): return [{"path": "/home/alice/hook", "args": ["hook", name], "env": ["PATH=/bin:/usr/bin"]}]
c["hooks"] = {name: hook(name) for name in ("prestart", "createRuntime", "createContainer", "poststart", "poststop")}
'
script 'exit 0' "$hooks"
run
equal "$code" 0 "exit code ($err)"
equal "$(cat /home/alice/hooks)" "prestart $(id -u alice) $(hostname)
createRuntime $(id -u alice) $(hostname)
createContainer 0 skiff
poststart $(id -u alice) $(hostname)
poststop $(id -u alice) $(hostname)"
# None for root: it would run outside of the user's job.
rm /home/alice/hooks
ok as alice sh -c "skiff-oci create -b $bundle box >&- 2>&-"
rm /home/alice/hooks
ok skiff-oci --debug --root /tmp/skiff-oci.$(id -u alice) delete --force box
has "$err" 'hooks.poststop: not run'
[ ! -e /home/alice/hooks ] || fail "a hook has run: $(cat /home/alice/hooks)"
script 'echo ran' 'c["hooks"] = {"startContainer": [{"path": "/bin/sh", "args": ["sh", "-c", "echo in the container >/data/hook"]}]}
c["root"]["readonly"] = False'
run
equal "$out $(cat $bundle/rootfs/data/hook)" 'ran in the container' "$err"
for kind in prestart createRuntime createContainer startContainer; do
    script 'echo ran' "c['hooks'] = {'$kind': [{'path': '/bin/sh', 'args': ['sh', '-c', 'echo no >&2; exit 3']}]}"
    run
    equal "$code $out" '125 '
    has "$err" "hooks.$kind: /bin/sh: exit code 3"
done
equal "$(as alice skiff-oci list -q)" ''

# ---- A terminal ------------------------------------------------------------------------------------------------------------

script 'tty; test -c /dev/console && echo console; stty size' 'process.update(terminal=True, consoleSize={"height": 33, "width": 99})'
cat >/home/alice/console.py <<'PYTHON'
import array, os, socket, subprocess, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("console")
listener.listen()
create = subprocess.run(["skiff-oci", "create", "-b", "bundle", "--console-socket", "console", "box"])
assert create.returncode == 0
_, fds, _, _ = socket.recv_fds(listener.accept()[0], 100, 1)
assert subprocess.run(["skiff-oci", "start", "box"]).returncode == 0
text = b""
while True:
    try:
        part = os.read(fds[0], 1000)
    except OSError:
        break
    if not part:
        break
    text += part
print(text.decode().replace("\r", ""), end="")
PYTHON
ok as alice /usr/bin/python3 console.py
equal "$out" $'/dev/pts/0\nconsole\n33 99'
ok as alice skiff-oci delete --force box
fails 125 as alice skiff-oci create -b $bundle box
has "$err" '--console-socket'

# ---- What cannot be obeyed is said -----------------------------------------------------------------------------------------

refused() { # PYTHON PART
    script 'echo ran' "$1"
    run
    equal "$code $out" '125 ' "$1"
    has "$err" "$2" "$1"
    equal "$(as alice skiff-oci list -q)" ''
}
refused 'linux["personality"] = {"domain": "LINUX32"}' linux.personality
refused 'linux["sysctl"] = {"kernel.panic": "1"}' kernel.panic
refused 'linux["devices"] = [{"path": "/dev/mem7", "type": "c", "major": 1, "minor": 1}]' /dev/mem7
refused 'linux["devices"] = [{"path": "/dev/null2", "type": "c", "major": 1, "minor": 3}]' /dev/null2
refused 'process["rlimits"] = [{"type": "RLIMIT_NOFILE", "soft": 1, "hard": 1 << 40}]' 'hard limit'
refused 'process["user"] = {"uid": 5, "gid": 0}' process.user
refused 'linux["uidMappings"] = [{"containerID": 0, "hostID": 0, "size": 1}]' linux.uidMappings
refused 'c["mounts"].append({"destination": "/x", "type": "ext4", "source": "/dev/vda"})' 'mount /x'
refused 'linux["seccomp"] = {"defaultAction": "SCMP_ACT_NOTIFY"}' SCMP_ACT_NOTIFY
refused 'linux["namespaces"] = [n for n in linux["namespaces"] if n["type"] != "mount"]' 'no mount namespace'
refused 'process["args"] = ["nothing"]' nothing
refused 'process["cwd"] = "/proc/self/fd/7"' process.cwd
refused 'c["ociVersion"] = "2.0"' ociVersion
refused 'c["root"]["path"] = "elsewhere"' elsewhere
fails 125 skiff-oci run -b $bundle box
has "$err" 'without privilege'
script 'exit 0' 'linux["resources"] = {"pids": {"limit": 7}, "unified": {"cgroup.kill": "1"}, "memory": {"hard": 1}}
linux["devices"] = [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "uid": 7}]
c["mounts"].append({"destination": "/tmp", "type": "bind", "source": "/home/alice/one-dir", "options": ["bind", "size=1m", "tmpcopyup"], "flavour": 1})
c["foo"] = 1'
as alice sh -c "mkdir one-dir; mkdir -p $bundle/rootfs/tmp; touch $bundle/rootfs/tmp/in-root"
ok as alice skiff-oci --log log --log-format json run -b $bundle box
equal "$(ls -A /home/alice/one-dir)" '' 'what a mount has copied out of the root'
for line in foo pids memory.hard cgroup.kill /dev/fuse size=1m,tmpcopyup flavour; do grep -q "\"level\":\"warning\",\"msg\":\"[^\"]*$line" /home/alice/log || fail "$line is not in the log: $(cat /home/alice/log)"; done
/usr/bin/python3 -c 'import json, sys; [json.loads(line) for line in sys.stdin]' </home/alice/log
echo '{"ociVersion": "1.0.2", "root": 7' >$bundle/config.json
fails 125 as alice skiff-oci --log log run -b $bundle box
has "$err" config.json

# ---- A root that leads out of itself ---------------------------------------------------------------------------------------

as alice sh -c "mkdir victim; rm -r $bundle/rootfs/mnt $bundle/rootfs/data $bundle/rootfs/new; ln -s /home/alice/victim $bundle/rootfs/data
    ln -s ../../../../../../home/alice/victim $bundle/rootfs/mnt; ln -s /home/alice/victim/console $bundle/rootfs/new"
script 'cat /data/one; ls /home/alice/victim' '
c["root"]["readonly"] = False
c["mounts"] += [{"destination": "/data/one", "type": "bind", "source": "/home/alice/one", "options": ["bind"]},
    {"destination": "/mnt/made", "type": "tmpfs", "source": "tmpfs"}, {"destination": "/new", "type": "tmpfs", "source": "tmpfs"}]
process["cwd"] = "/mnt/cwd"
linux["maskedPaths"].append("/data/../../../../../../etc/passwd")'
run
equal "$out" $'one\nconsole\ncwd\nmade\none' "$err"
equal "$(ls -A /home/alice/victim)" '' 'what was made outside'
[ -s /etc/passwd ] || fail 'masked outside'
for dir in dev proc sys; do
    as alice sh -c "rm -rf $bundle/rootfs/$dir; ln -s /home/alice/victim $bundle/rootfs/$dir"
    run
    equal "$(ls -A /home/alice/victim)" '' "what was made outside, by /$dir"
    as alice rm $bundle/rootfs/$dir
done
equal "$(as alice skiff-oci list -q)" ''
rm -rf /tmp/skiff-oci.*
