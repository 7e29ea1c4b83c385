# A job gets the environment as it was when it was submitted: every kind of file, once through the depot, once per node.
# takes: 27
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
depot=/home/alice/.local/share/skiff/depot
cache=/var/cache/skiff/$(id -u alice)
size() { du -s --apparent-size -B1 "$depot" | cut -f1; }
layers() { on "$1" sh -c "ls -i $cache/layers"; }
cd /home/alice

# All that a file system knows.
inside alice dev '
    mkdir -p /opt/t/dir/sub /opt/t/empty; cd /opt/t
    echo text >plain; echo second >$(printf "not\377utf8"); echo n >"new
line"; : >empty-file; ln -s ../nowhere broken; ln -s plain link; ln plain hard1; ln plain dir/hard2
    truncate -s 8M hole; echo end >>hole; dd if=/dev/zero of=hole bs=1 count=1 seek=4M conv=notrunc status=none
    chmod 4755 plain; chmod 2770 dir; chmod 1777 empty; chmod 0 empty-file; touch -d 2001-02-03T04:05:06.789 link-time; touch -h -d 2002-02-02 link
    install -o nobody -g nogroup -m 640 plain nobodys; mkfifo fifo
    python3 -c "import os; os.setxattr(\"hole\", \"user.key\", bytes(range(256)))"
    long=$(printf %0200d 0); mkdir -p $long/$long/$long/$long; echo deep >$long/$long/$long/$long/$long
    # Of the base: changed, deleted, emptied and filled anew, turned into another kind, renamed, its mode alone changed.
    echo changed >/etc/issue; rm /usr/bin/tac; rm -rf /usr/share/doc/*; mkdir /usr/share/doc/own; echo o >/usr/share/doc/own/o
    rm -rf /usr/games; echo file >/usr/games; rm /etc/motd; mkdir /etc/motd; mv /usr/bin/head /usr/bin/kopf; chmod 700 /usr/src'
cat >look.py <<'E'
import os, stat, sys
me = os.getuid()
def look(path):
    s = os.lstat(path)
    # In a job, root of the environment is the user; other owners stand for themselves.
    owner = "root" if s.st_uid in (0, me) else "other"
    size = s.st_size if stat.S_ISREG(s.st_mode) or stat.S_ISLNK(s.st_mode) else "-"
    # Whole pages of holes are kept, to the block.
    holes = "sparse" if stat.S_ISREG(s.st_mode) and s.st_blocks * 512 < s.st_size // 2 else "-"
    links = s.st_nlink if stat.S_ISREG(s.st_mode) else "-"
    time = s.st_mtime_ns if not path.startswith(b"/etc/m") else "-"
    print(path, oct(s.st_mode), owner, size, holes, links, time, end=" ")
    if stat.S_ISLNK(s.st_mode):
        print(os.readlink(path))
    elif stat.S_ISREG(s.st_mode) and s.st_mode & 0o400 and owner == "root":
        print(hash(open(path, "rb").read()), sorted(os.listxattr(path)), *(os.getxattr(path, x) for x in os.listxattr(path) if x.startswith("user")))
    else:
        print()
for top in (b"/opt/t", b"/usr/share/doc", b"/usr/games", b"/etc/motd"):
    look(top)
    for parent, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(dirs + files):
            look(os.path.join(parent, name))
for path in (b"/etc/issue", b"/usr/bin/tac", b"/usr/bin/head", b"/usr/bin/kopf", b"/usr/src"):
    look(path) if os.path.lexists(path) else print(path, "missing")
E
ok as alice skiff env exec dev -- env PYTHONHASHSEED=0 python3 look.py
want=$out
has "$want" 'not\xffutf8'
has "$want" "/usr/bin/tac' missing"
ok as alice env PYTHONHASHSEED=0 srun -n1 -w n1 --environment=dev python3 look.py
diff <(echo "$want") <(echo "$out") || fail 'the node sees something else'

# What is queued is not changed by what comes after.
ok as alice sbatch --parsable -H --environment=dev -o before --wrap 'cat /etc/issue; ls /usr/bin/tac'
held=$out
inside alice dev 'echo later >/etc/issue; echo "new" >/usr/bin/tac'
ok as alice srun -n1 --environment=dev cat /etc/issue /usr/bin/tac
equal "$out" $'later\nnew'
scontrol release "$held"
equal "$(ended "$held")" 'FAILED 2:0'
equal "$(cat before)" $'changed\nls: cannot access \'/usr/bin/tac\': No such file or directory'

# Only changes are sent, and fetched, the second time; nothing if there are none.
inside alice dev 'head -c 50000000 /dev/urandom >/opt/big 2>&1 || /usr/bin/kopf -c 50000000 /dev/urandom >/opt/big'
ok as alice srun -N2 --environment=dev test -s /opt/big
before=$(size) there=$(layers n1)
ok as alice srun -N2 --environment=dev true
equal "$(layers n1)" "$there"
[ $(($(size) - before)) -lt 20000 ] || fail "sent again: $(($(size) - before)) bytes"
inside alice dev 'echo small >/opt/small; rm /opt/t/plain'
fits as alice skiff env snapshot --json dev
equal "$(json "$out" 'd["how"]')" incremental
[ "$(json "$out" 'd["bytes"]')" -lt 100000 ] || fail "sent: $out"
ok as alice srun -N2 --environment=dev sh -c 'cat /opt/small; test ! -e /opt/t/plain; stat -c %h /opt/t/hard1'
equal "$(sort <<<"$out" | xargs)" '2 2 small small'
[ $(($(size) - before)) -lt 200000 ] || fail "sent: $(($(size) - before)) bytes"
equal "$(comm -23 <(echo "$there" | sort) <(layers n1 | sort))" '' 'layers that were there already'
# Of another user's cache nothing is to be seen, and the layers are safe from the job.
fails 2 on n1 setpriv --reuid bob --regid bob --init-groups ls $cache/layers
ok as alice srun -N2 --environment=dev sh -c 'echo broken >/opt/small'
ok as alice srun -N2 --environment=dev cat /opt/small
equal "$out" $'small\nsmall'

# Several at once, of one environment while it changes and of another one.
ok as alice skiff env create other
for i in 1 2 3 4 5 6; do
    start alice sh -c "skiff env exec dev -- sh -c 'echo $i >/opt/at-once.$i'; exec sbatch -Q -o once.$i --environment=dev --wrap 'cat /opt/at-once.$i /opt/small'"
    pids+=($started)
done
start alice sbatch -Q -o once.7 --environment=other --wrap 'ls /opt/small 2>/dev/null || echo 7; echo small'
wait "${pids[@]}" $started
eventually 20 sh -c '[ -z "$(squeue -h)" ]'
for i in 1 2 3 4 5 6 7; do equal "$(cat once.$i)" "$i"$'\n'small; done

# A large file is a matter of seconds, once.
inside alice dev 'dd if=/dev/urandom of=/opt/large bs=1M count=200 status=none'
begin=$EPOCHREALTIME
ok as alice srun -N2 --environment=dev stat -c %s /opt/large
echo "200 MB: first job $((${EPOCHREALTIME/./} - ${begin/./})) us" >&3
[ $((${EPOCHREALTIME/./} - ${begin/./})) -lt 15000000 ] || fail 'too slow'
begin=$EPOCHREALTIME
ok as alice srun -N2 --environment=dev stat -c %s /opt/large
echo "200 MB: second job $((${EPOCHREALTIME/./} - ${begin/./})) us" >&3
[ $((${EPOCHREALTIME/./} - ${begin/./})) -lt 2000000 ] || fail 'the second is too slow'
as alice skiff env stop dev
idle
