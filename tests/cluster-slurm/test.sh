# takes: 12
# A Slurm of one's own: with the helper (alice) and without (bob), nodes that come, go and die, and what goes wrong.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null
nobody_left() { ! pgrep -u alice,bob; }
nodes() { # USER NAME -> "ctl:running:- n1:running:idle ..."
    fits as "$1" skiff cluster status "$2" --json
    json "$out" '" ".join(":".join((n["name"], n["state"], n["slurm"])) for n in d["nodes"])'
}
pid_of() { # USER NAME NODE
    ok as "$1" skiff cluster status "$2" --json
    json "$out" '[n["pid"] for n in d["nodes"] if n["name"] == "'"$3"'"][0]'
}
devices() { ip -o link | wc -l; }
before=$(devices)
network=$(ip -o link)

for user in alice bob; do
    home=/home/$user/.local/share/skiff/cluster
    ok as $user skiff cluster up lab --slurm --nodes 2
    equal "$(nodes $user lab)" 'ctl:running:- n1:running:idle n2:running:idle' "$user"
    run() { ok as $user skiff cluster exec lab -- "$@"; }
    # Jobs: as root inside, the user outside, with his home; nodes are machines with names that resolve.
    run srun -N2 sh -c 'echo $(hostname) $(id -u) >>of-$(hostname); getent hosts n2 | cut -d" " -f1; [ -w ~ ]'
    equal "$(sort -u <<<"$out")" 10.77.1.2 "$user"
    equal "$(cat /home/$user/of-n1 /home/$user/of-n2)" $'n1 0\nn2 0' "$user"
    equal "$(stat -c %U /home/$user/of-n1)" $user "$user"
    # A job starts containers again.
    run srun -w n2 sh -c 'skiff run -- sh -c "hostname; id -u; echo inner >/etc/of-inner; cat /etc/of-inner"; [ ! -e /etc/of-inner ] && echo gone'
    equal "$out" $'n2\n0\ninner\ngone' "$user: $err"
    printf '#!/bin/sh\nsrun -l hostname\n' >/home/$user/job
    run sbatch -Q -N2 -o job.out job
    eventually 10 grep -q '1: n2' /home/$user/job.out
    # What one of them changes, the others do not see; the host neither.
    ok as $user skiff cluster exec --node n1 lab -- sh -c 'echo mine >/etc/of-node; hostname; ls /etc/of-node'
    equal "$out" $'n1\n/etc/of-node' "$user"
    fails 2 as $user skiff cluster exec --node n2 lab -- ls /etc/of-node
    [ ! -e /etc/of-node ] || fail 'a node has changed the host'
    # The change is on the disk, unless it was to be in memory.
    [ -e /tmp/skiff-scratch.*/n1/upper/etc/of-node ] || fail "not on the disk: $(ls -d /tmp/skiff-scratch.*/*)"
    equal "$(ip -o link)" "$network" "$user: devices of the host's network"
    fails 3 as $user skiff cluster exec lab -- sh -c 'exit 3'
    fails 127 as $user skiff cluster exec lab -- no-such-command

    # More nodes, in the place of those that went.
    ok as $user skiff cluster add lab --nodes 2
    equal "$out" 'n3 n4' "$user"
    run srun -N4 -l hostname
    equal "$(sort -u <<<"$out" | wc -l)" 4 "$user"
    ok as $user skiff cluster remove lab --node n2
    ok as $user skiff cluster remove lab --nodes 1
    equal "$out" n4 "$user"
    equal "$(nodes $user lab)" 'ctl:running:- n1:running:idle n3:running:idle' "$user"
    ok as $user skiff cluster add lab --nodes 1
    equal "$out" n2 "$user"
    fails 125 as $user skiff cluster remove lab --nodes 4
    fails 125 as $user skiff cluster remove lab --node n7
    fails 125 as $user skiff cluster add lab --nodes 255
    has "$err" 'it can have 253 more'

    # A node is lost while jobs run: theirs are ended, others go on, and it can be had anew.
    start $user skiff cluster exec lab -- srun -N1 -w n3 sh -c 'echo there >on-n3; until [ -e go ]; do sleep 0.05; done; echo went on'  >/home/$user/went
    other=$started
    start $user skiff cluster exec lab -- srun -N1 -w n1 sh -c 'echo there >on-n1; sleep 100' 2>/home/$user/said
    job=$started
    eventually 10 test -s /home/$user/on-n1 -a -s /home/$user/on-n3
    kill -9 "$(pid_of $user lab n1)"
    # With which exit code is srun's to say.
    try wait "$job"
    has "$(cat /home/$user/said)" 'Node failure on n1' "$user"
    slurm_says_down() { [[ $(nodes $user lab) == *'n1:lost:down'* ]]; }
    eventually 10 slurm_says_down
    as $user touch go
    wait "$other" || fail "$user: a job of another node has not gone on"
    has "$(cat /home/$user/went)" 'went on' "$user"
    ok as $user skiff cluster remove lab --node n1
    ok as $user skiff cluster add lab --nodes 1
    equal "$out" n1 "$user"
    run srun -N3 -l hostname

    # Nothing of it stays, whoever is killed.
    fails 125 as $user skiff cluster up lab --slurm --nodes 1
    has "$err" 'hint: `skiff cluster down lab`'
    ok as $user skiff cluster down lab
    nobody_left || fail "$user: processes are left: $(pgrep -lu $user)"
    equal "$(ls -A $home)" '' "$user: what is left"
    for victim in supervisor hub controller; do
        # Without the helper the processes are the same.
        [ $user = alice ] || [ $victim = hub ] || continue
        ok as $user skiff cluster up lab --slurm --nodes 1
        init=$(pid_of $user lab ctl)
        hub=$(sed -n 's/^PPid:\t//p' "/proc/$init/status")
        case $victim in
        supervisor) kill -9 "$(sed -n 's/^PPid:\t//p' "/proc/$hub/status")" ;;
        hub) kill -9 "$hub" ;;
        controller) kill -9 "$init" ;;
        esac
        eventually 5 nobody_left
        fails 125 as $user skiff cluster exec lab -- true
        has "$err" 'is no longer running' "$user: $victim"
        ok as $user skiff sweep
        has "$out" 'removed cluster' "$user: $victim"
    done
    equal "$(ls -A $home)" '' "$user: what is left"
done
equal "$(devices)" "$before" 'devices'

# Whoever makes one goes before it is made: nothing of it stays. (Nobody is told by a signal that cannot be caught.)
home=/home/alice/.local/share/skiff/cluster
killed_at() { # FILE CMD...: runs CMD, and kills it in the very moment in which FILE is there
    /usr/bin/python3 -c 'import os, subprocess, sys, time
begun, end = subprocess.Popen(sys.argv[2:]), time.monotonic() + 20
while not os.path.exists(sys.argv[1]) and time.monotonic() < end: pass
begun.kill()
sys.exit(begun.wait() != -9)' "$@" 3>&-
}
login alice
for mark in slurm/slurm.conf slurm/slurm.conf slurm/slurm.conf control.sock logs/n2; do
    ok killed_at $home/lab/$mark "${login[@]}" skiff cluster up lab --slurm --nodes 2
    eventually 10 nobody_left
    equal "$(ls -A $home)" '' "left when killed after $mark"
done
# Two at once, of two users and of one.
ok as alice skiff cluster up one --slurm --nodes 1 --cpus 3
ok as alice skiff cluster up two --slurm --nodes 1
ok as bob skiff cluster up one --slurm --nodes 1
ok as alice skiff cluster exec one -- srun -n3 hostname
equal "$out" $'n1\nn1\nn1'
fits as alice skiff cluster status --json
equal "$(json "$out" '[(c["name"], c["state"], c["nodes"]) for c in d]')" "[('one', 'up', 1), ('two', 'up', 1)]"
for user in alice bob; do as $user skiff cluster down one; done
ok as alice skiff cluster exec two -- srun hostname
for command in 'add -N2' 'remove -N1' down; do
    ok as alice skiff cluster $command two --dry-run
    has "$out" two
done
ok as alice skiff cluster exec two -- srun hostname
lacks "$(cat /home/alice/.local/share/skiff/cluster/two/logs/ctl)" 'Zero Bytes'
ok as alice skiff cluster down two

# A root in a directory, in which only a shell and Slurm are.
root=/home/alice/root
as alice mkdir -p $root/{bin,usr/bin,usr/sbin,etc,proc,sys,dev,tmp,var/tmp,var/spool,var/log,var/lib,run,home}
as alice cp /bin/busybox $root/bin/busybox
for command in sh hostname cat; do as alice ln -s busybox $root/bin/$command; done
programs=$(command -v slurmctld slurmd slurmstepd munged srun sinfo scontrol)
plugins=/usr/lib/$(uname -m)-linux-gnu/slurm-wlm
as alice sh -c 'mkdir -p "$1$(dirname "$2")"; cp -r "$2" "$1$2"; shift 2; root=$1; shift; cp -L "$@" $root/usr/bin/' - $root $plugins $root $programs
as alice ln -s ../bin/slurmstepd $root/usr/sbin/slurmstepd
{ ldd $programs; find $plugins -name '*.so' -exec ldd {} +; } | grep -o '/lib[^ :]*' | grep -v "$plugins" | sort -u |
    as alice sh -c 'while read -r file; do mkdir -p "$1$(dirname "$file")"; cp -L "$file" "$1$file"; done' - $root
as alice sh -c "echo root:x:0:0::/root:/bin/sh >$root/etc/passwd; echo root:x:0: >$root/etc/group; echo mine >$root/etc/marker"
ok as alice skiff cluster up dir --slurm --nodes 2 --base dir:$root
ok as alice skiff cluster exec dir -- srun -N2 -l sh -c 'hostname; cat /etc/marker; echo other >/etc/marker'
equal "$(sort <<<"$out")" $'0: mine\n0: n1\n1: mine\n1: n2' "$err"
ok as alice skiff cluster down dir
equal "$(cat $root/etc/marker)" mine
# The same as an image.
start_registry
make_store
chown -R root:root $root
push tools/slurm:1 $root
ok as alice skiff cluster up img --slurm --nodes 1 --base image:$registry/tools/slurm:1
ok as alice skiff cluster exec img -- srun sh -c 'hostname; cat /etc/marker'
equal "$out" $'n1\nmine' "$err"
ok as alice skiff cluster down img

# A base without Slurm, and other things that cannot be.
skeleton "$images_tmp/root"
push tools/plain:1 "$images_tmp/root"
fails 125 as alice skiff cluster up lab --slurm --nodes 1 --base image:$registry/tools/plain:1
has "$err" 'the base has no munged, slurmctld, slurmd, srun'
has "$err" 'hint: on Debian: apt-get install munge slurmctld slurmd slurm-client'
# A home that is full.
mount -t tmpfs -o size=4k,mode=1777 none /home/alice/.local/share/skiff
as alice sh -c 'head -c 10000 /dev/zero >.local/share/skiff/full' 2>&- || true
fails 125 as alice skiff cluster up lab --slurm --nodes 1
has "$err" 'No space left on device'
umount /home/alice/.local/share/skiff
fails 125 as alice skiff cluster up lab --nodes 1
fails 125 as alice skiff cluster up lab --slurm --nodes 0
fails 125 as alice skiff cluster up lab --slurm --nodes 1 --base nowhere
fails 125 as alice skiff cluster up ../lab --slurm --nodes 1
for command in 'status lab' 'exec lab -- true' 'down lab' 'add -N1 lab' 'remove -N1 lab'; do
    fails 125 as alice skiff cluster $command
    has "$err" 'there is no such cluster'
done
fails 125 as alice skiff cluster exec --node n999 lab -- true
fits as alice skiff cluster up lab --slurm --nodes 1 --dry-run --json
equal "$(json "$out" '(d["net"], d["shims"])')" "('none', [])"
equal "$(ls -A /home/alice/.local/share/skiff/cluster)" '' 'what is left of those'
eventually 3 nobody_left
