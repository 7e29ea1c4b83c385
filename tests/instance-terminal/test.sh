# A terminal that `instance exec` brings to an instance with terminals of its own: it has a name inside, programs that need one work, keys mean what
# they do outside, nothing that is shown is lost, whoever is killed leaves nothing, and what stays inside reaches the user's terminal no more. So does the
# terminal of `run --contain`.
# takes: 20
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
ok as alice skiff instance start --checkpoint host sim sleep 100000
PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/terminal_test.py" || fail 'at the terminal'
ok as alice skiff instance rm --force sim

# One that has nothing of the host's, with the helper and without, as root and as oneself: a terminal of its own, and its user's in no other.
start_registry
make_store
root=$images_tmp/root
skeleton "$root"
for command in tty stty; do ln -sf busybox "$root/bin/$command"; done
push tools/tty:1 "$root"
named() { # USER WORDS...
    local user=$1
    shift
    ok as "$user" script -qec "skiff instance exec $* -- sh -c 'tty; test -O \$(tty) && echo own'" /dev/null
    # `script` types a key of its own at the end of its input.
    equal "$(sed 's/\^@//g; s/\r//' <<<"$out")" $'/dev/pts/0\nown' "$user: $*"
}
for user in alice bob; do
    [ $user = alice ] || export SKIFF_HELPER=none
    ok as $user skiff instance start --contain $registry/tools/tty:1 box sleep 100000
    named $user box
    named $user --root box
    [ $user = bob ] || named $user --me box
    ok as $user skiff instance rm --force box
    # The same of a command that has a container to itself; nothing of it stays.
    for words in '' --root --me; do
        [ "$user $words" != 'bob --me' ] || continue
        ok as $user script -qec "skiff run --contain $words $registry/tools/tty:1 sh -c 'tty; test -O \$(tty) && echo own'" /dev/null
        equal "$(sed 's/\^@//g; s/\r//' <<<"$out")" $'/dev/pts/0\nown' "$user: run --contain $words"
        fails 7 as $user script -qec "skiff run --contain $words $registry/tools/tty:1 sh -c 'exit 7'" /dev/null
        fails 143 as $user script -qec "skiff run --contain $words $registry/tools/tty:1 sh -c 'kill \$\$; sleep 60'" /dev/null
    done
    ok as $user script -qec "skiff run --contain --untrusted $registry/tools/tty:1 sh -c 'test -t 0 && echo own'" /dev/null
    has "$out" own 'one that nobody enters has the terminal of its user'
    ok as $user script -qec "echo text | skiff run --contain $registry/tools/tty:1 cat | tr t T" /dev/null
    has "$out" TexT
    fails 127 as $user script -qec "skiff run --contain $registry/tools/tty:1 nothing" /dev/null
    has "$out" 'nothing: No such file or directory'
    ok as $user skiff instance start --checkpoint --writable $registry/tools/tty:1 box sleep 100000
    named $user --root box
    ok as $user skiff instance rm --force box
done
unset SKIFF_HELPER
stop_registry
# Where the user's terminal has a name, it is theirs as before.
ok as alice skiff instance start host plain sleep 100000
ok as alice script -qec "sh -c 'tty; skiff instance exec plain -- tty'" /dev/null
equal "$(sed 's/\^@//g' <<<"$out" | uniq | wc -l)" 1 'the terminal outside and inside'
ok as alice skiff instance rm --force plain
eventually 3 sh -c '! pgrep -u alice,bob'
