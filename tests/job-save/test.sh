# All ranks of an MPI job over two nodes are saved at one moment and restored on two other nodes, where they come to the result of a job that
# nobody disturbed. Where one of them cannot be saved or restored, all go on, or none begins.
# bed: --nodes 4
# time: 400
# takes: 45
. "$(dirname "$0")/../lib.sh"
. "$here/lib.sh"

begin openmpi
# ---- All go on ------------------------------------------------------------------------------------------------------------------
fits_job n1,n2 skiff job save --dry-run --json ring $names
equal "$(json "$out" '[(m["instance"], m["node"], m["obstacles"]) for m in d["members"]]')" \
    "[('rank-0', 'n1', []), ('rank-1', 'n1', []), ('rank-2', 'n2', []), ('rank-3', 'n2', [])]"
equal "$(saved)" '' 'after a dry run'
fits_job n1,n2 skiff job save --leave-running --json ring $names
echo "saved: $out"
equal "$(json "$out" 'd["checkpoint"], len(d["members"]), d["left_running"]')" "('ring', 4, True)"
goes_on n1
equal "$(saved)" ring
ok as alice skiff checkpoint list
has "$out" '4 of a job'
ok as alice skiff checkpoint show --json ring
equal "$(json "$out" '[m["node"] for m in d["members"]]')" "['n1', 'n1', 'n2', 'n2']"
fails 125 as alice skiff checkpoint restore ring
has "$err" 'skiff job restore ring'
# One that is nowhere.
fails 125 job n1,n2 skiff job save other $names rank-9
has "$err" 'instance rank-9: it runs on none of the nodes'
equal "$(saved)" ring
goes_on n1

# ---- Receivers are killed while the processes stand still -------------------------------------------------------------------------
killed() { # OPTIONS of pkill
    local code saving try
    login alice
    # On a node that is slow to kill them, all may have been saved before.
    for try in 1 2 3 4 5; do
        code=0
        "${login[@]}" salloc -Q -w n1,n2 -N2 skiff job save --leave-running other $names 2>/shared/killed.err 3>&- &
        saving=$!
        on n2 timeout $((60 * slowness)) sh -c 'until ps -u alice -o stat=,comm= | grep -q "^t.*exchange"; do sleep 0.01; done
            pkill "$@" -KILL -u alice -f "skiff migrate-receive"' - "$@" || true
        wait $saving || code=$?
        [ $code = 0 ] || break
        ok as alice skiff checkpoint delete other
        goes_on n1
    done
    equal "$code" 125 "$(cat /shared/killed.err)"
    has "$(cat /shared/killed.err)" 'nothing is saved, and all instances go on'
    equal "$(saved)" ring
    ok as alice sh -c 'ls -A .local/share/skiff/checkpoint'
    lacks "$out" .new
}
killed -o
goes_on n1
# With what was to open the network after it, which the next save then does.
killed
ok job n1,n2 skiff job save --leave-running ring $names
goes_on n1

# ---- Restored on other nodes ---------------------------------------------------------------------------------------------------------
ok job n1,n2 skiff job save ring $names
eventually 10 sh -c "! on n1 pgrep -u alice exchange && ! on n2 pgrep -u alice exchange"
for node in n1 n2; do lacks "$(states $node)" running; done
at_save=$(taken n1)
# One cannot be: none begins.
ok at n4 alice skiff instance start host rank-3 sleep 1000
fails 125 job n3,n4 skiff job restore ring
has "$err" 'no instance is restored: instance rank-3 on n4'
equal "$(states n3)" ''
equal "$(states n4)" rank-3:running
ok at n4 alice skiff instance rm --force rank-3
fails 125 as alice salloc -Q -w n3 -N1 skiff job restore --on n3,no.such.node ring
has "$err" no.such.node
# A part that is not the one that was saved.
part=.local/share/skiff/checkpoint/ring/members/$(as alice ls .local/share/skiff/checkpoint/ring/members | tail -1)/checkpoint
cp -a $part /shared/part
dd if=/dev/zero of=$part bs=1 seek=200 count=8 conv=notrunc status=none
fails 125 job n3,n4 skiff job restore ring
has "$err" ': its record is damaged'
cp -a /shared/part $part
ok at n4 alice skiff instance start host rank-3 sleep 1000
fails 1 job n3,n4 skiff job restore --dry-run --json ring
described skiff job restore --dry-run --json ring
equal "$(json "$out" '[m["instance"] for m in d["members"] if m.get("obstacles")]')" "['rank-3']"
ok at n4 alice skiff instance rm --force rank-3
fits_job n3,n4 skiff job restore --dry-run --json ring
equal "$(json "$out" '[(m["instance"], m["node"]) for m in d["members"]]')" \
    "[('rank-0', 'n3'), ('rank-1', 'n3'), ('rank-2', 'n4'), ('rank-3', 'n4')]"
ok job n3,n4 skiff job restore --dry-run --on n3 ring
has "$err" 'checkpoint ring: instances of 2 nodes come to 1 node'
has_ended() { # NODE INSTANCE: well
    ok at $1 alice skiff instance list --json
    [ "$(json "$out" "[i.get('exit_code') for i in d if i['name'] == '$2']")" = '[0]' ]
}
comes_to() { # FLAVOUR: all have ended on n3 and n4, with the right result
    local rank node
    eventually 30 on n3 grep -q result /tmp/skiff-alice/instance/rank-0/output
    equal "$(written_by_ranks n3 | grep result)" "$(undisturbed $1 "$(taken n3)")" 'what the ranks came to'
    # Each step once.
    equal "$(written_by_ranks n3 | grep -x '[0-9]*' | uniq -d)" ''
    for rank in $names; do
        node=${where[$rank]}
        [ $node = n1 ] && node=n3 || node=n4
        eventually 60 has_ended $node $rank
    done
}
# By a batch script, to its end.
printf '#!/bin/bash\nexec skiff job restore --wait ring\n' >script
ok as alice sbatch --parsable -w n3,n4 -N2 -o job.out script
batch=$out
eventually 30 steps n3 $((at_save + 20))
as alice touch enough
equal "$(ended $batch)" 'COMPLETED 0:0' "$(cat job.out)"
comes_to openmpi

# ---- MPICH, by UCX: moved, outside of a job ---------------------------------------------------------------------------------------
for node in n3 n4; do on $node sh -c 'rm -rf /tmp/skiff-alice'; done
begin mpich
move=(as alice skiff job move --on n1,n2 --to n3,n4)
ok "${move[@]}" --dry-run --json ring $names
described skiff job move --dry-run --json --to n3,n4 ring $names
# If one cannot be there, nothing is stopped.
ok at n4 alice skiff instance start host rank-3 sleep 1000
fails 1 "${move[@]}" --dry-run ring $names
has "$out" 'in the way   n4: instance rank-3 is already running'
fails 1 "${move[@]}" --dry-run --json ring $names
described skiff job move --dry-run --json --to n3,n4 ring $names
fails 125 "${move[@]}" ring $names
has "$err" 'nothing is moved, and all instances go on: instance rank-3 on n4: instance rank-3 is already running'
goes_on n1
equal "$(states n3)" ''
ok at n4 alice skiff instance rm --force rank-3
# What shows only there: all are restored where they were. (This CRIU says its version, and no more.)
mkdir /shared/mute
touch /shared/mute/criu
cat >/shared/mute/ld.so <<'X2'
#!/usr/bin/python3
import socket, sys
with socket.socket(fileno=int(sys.argv[-1])) as peer:
    peer.recv(65536)
    peer.send(bytes([8, 10, 16, 1, 82, 4, 8, 99, 16, 0]))  # answer to `version`: well, 99.0
    peer.recv(1)
X2
chmod 755 /shared/mute/ld.so
on n4 mount --bind /shared/mute /usr/libexec/skiff/criu
fails 125 "${move[@]}" ring $names
has "$err" 'on n4'
has "$err" 'restored where they were'
goes_on n1
equal "$(states n3)" ''
on n4 umount /usr/libexec/skiff/criu
ok "${move[@]}" --json ring $names
described skiff job move --json --to n3,n4 ring $names
equal "$(json "$out" '[m["node"] for m in d["members"]]')" "['n3', 'n3', 'n4', 'n4']"
goes_on n3
as alice touch enough
comes_to mpich
ok as alice skiff checkpoint delete ring
equal "$(saved)" ''
idle
