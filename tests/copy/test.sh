# `skiff cp`: files into and out of instances and environments, as Docker does it, with the helper (alice) and without (bob); and what
# somebody inside plants to have the caller outside read or write elsewhere.
# takes: 30
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
skeleton "$root"
# Without tar, and with cp nowhere: neither is needed inside.
[ ! -e "$root/bin/tar" ] && [ ! -e "$root/bin/cp" ] || fail 'the image has tar or cp'
push tools/plain:1 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/bin"]}'
image=$registry/tools/plain:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null

by_inside() { # From inside an environment it is done outside, of what both have.
    inside $user dev 'cd; skiff cp web:/etc/group ./by-inside; cat by-inside'
    equal "$out" "$(as $user skiff exec web cat /etc/group)"
    fails 125 as $user skiff env exec dev -- skiff cp web:/etc/group /tmp/by-inside
    has "$err" 'a /tmp of its own'
}

for user in alice bob; do
    as $user sh -c 'mkdir -p tree/sub; echo one >tree/file; echo two >tree/sub/other; ln -s /etc/passwd tree/link; ln -s sub tree/near
        chmod 2750 tree/sub; chmod 4751 tree/file; touch -d 2001-02-03T04:05:06.7 tree/file; mkfifo tree/pipe'
    ok as $user skiff pull $image
    ok as $user skiff run -d --name web --writable --root $image sleep 1000
    ok as $user skiff env create dev
    ok as $user skiff env create boxed --base image:$image
    for name in web dev boxed; do
        ok as $user skiff exec $name mkdir -p /srv
        # A file under its own name, a new one, and over one that is there; the same back.
        ok as $user skiff cp tree/file $name:/srv/
        ok as $user skiff exec $name sh -c 'cat /srv/file; stat -c "%a %u %Y" /srv/file'
        equal "$out" "one
751 0 $(stat -c %Y /home/$user/tree/file)" "$user: a file in $name"
        ok as $user skiff cp tree/sub/other $name:/srv/file
        ok as $user skiff cp $name:/srv/file back
        equal "$(cat /home/$user/back) $(stat -c '%U %a' /home/$user/back)" "two $user 644" "$user: over a file in $name"
        # A tree: under its name, under a new one, and its contents.
        ok as $user skiff cp tree $name:/srv
        has "$err" 'devices, pipes and sockets are left out: 1' "$user: $name"
        has "$err" 'without their setuid and setgid bits: 1' "$user: $name"
        ok as $user skiff cp tree $name:/srv/new
        ok as $user skiff cp tree/. $name:/srv/new
        ok as $user skiff exec $name sh -c 'cd /srv; ls tree new; stat -c "%a %F" tree/sub tree/link'
        equal "$out" "new:
file
link
near
sub

tree:
file
link
near
sub
750 directory
777 symbolic link" "$user: a tree in $name"
        ok as $user skiff cp -a $name:/srv/tree out
        ok as $user skiff cp $name:srv/tree/. out
        ok as $user skiff cp -L $name:/srv/tree/near out/followed
        equal "$(cd /home/$user/out; find . -printf '%P %y %m %l %u\n' | sort)" \
            "$(printf '%s\n' " d 755  $user" "file f 751  $user" "followed d 750  $user" "followed/other f 644  $user" "link l 777 /etc/passwd $user" "near l 777 sub $user" \
                "sub d 750  $user" "sub/other f 644  $user")" "$user: a tree out of $name"
        # Streams on both sides, and from one to another.
        ok as $user sh -c "skiff cp $name:/srv/tree - | tar t | sort | xargs"
        equal "$out" 'tree/ tree/file tree/link tree/near tree/sub/ tree/sub/other' "$user: a stream out of $name"
        ok as $user sh -c "tar c -C tree sub | skiff cp - $name:/tmp"
        ok as $user skiff cp $name:/tmp/sub/other dev:/srv/from-$name
        ok as $user skiff exec dev cat /srv/from-$name
        equal "$out" two "$user: from $name to dev"
        as $user rm -rf out back
    done
    # Where a file has no bytes, none are read or sent: 200 GiB with a byte in the middle and one at the end.
    as $user sh -c 'truncate -s 200G wide; printf x | dd of=wide bs=1 seek=100G conv=notrunc status=none; printf yz >>wide'
    limit=20 ok as $user skiff cp wide web:/srv/wide
    limit=20 ok as $user skiff cp web:/srv/wide wide-back
    equal "$(stat -c %s /home/$user/wide-back) $(tail -c 2 /home/$user/wide-back)" "$(stat -c %s /home/$user/wide) yz" "$user: a file of holes"
    equal "$(dd if=/home/$user/wide-back bs=1 skip=100G count=2 status=none | tr '\0' .)" x. "$user: between its holes"
    [ "$(stat -c %b /home/$user/wide-back)" -lt 1000 ] || fail "$user: holes have been filled"
    as $user rm wide wide-back
    # What cannot be read is named, and all else is copied.
    as $user sh -c 'mkdir -p partly/closed partly/later; echo 1 >partly/a; echo 2 >partly/later/z; echo 3 >partly/shut; chmod 0 partly/closed partly/shut'
    fails 125 as $user skiff cp partly web:/srv
    for name in closed shut; do has "$err" "cannot open partly/$name: Permission denied" "$user"; done
    has "$err" 'cannot be read: 2'
    ok as $user skiff exec web sh -c 'cd /srv/partly; find . | busybox sort'
    equal "$out" $'.\n./a\n./later\n./later/z' "$user: what can be read"
    # What goes wrong says what, where, why and what to do; nothing half made is left.
    refused() { # PART WORD...
        fails 125 as $user skiff cp "${@:2}"
        has "$err" "$1" "skiff cp ${*:2}"
        has "$err" 'hint: ' "skiff cp ${*:2}"
    }
    refused 'web:/srv/file is a file; a directory cannot replace it' tree web:/srv/file
    refused 'web:/nosuch: no such directory' tree/file web:/nosuch/x
    refused 'web:/nosuch/: no such directory' tree/file web:/nosuch/
    refused 'web:/dev/null: a device, pipe or socket cannot be copied' web:/dev/null .
    refused 'web:/proc/1/status: the kernel shows its state there' web:/proc/1/status .
    refused 'there is no instance, environment or cluster of this name' nosuch:/x .
    refused 'neither path is in an instance or environment' tree back
    refused 'no path after the colon' web: .
    fails 125 as $user skiff cp web:/nosuch .
    has "$err" 'cannot open web:/nosuch: No such file or directory'
    # The image of `web` takes changes, and this one's takes none.
    ok as $user skiff run -d --name fixed $image sleep 1000
    refused 'read-only' tree/file fixed:/etc
    ok as $user skiff cp fixed:/etc/group .
    equal "$(cat /home/$user/group)" "$(as $user skiff exec fixed cat /etc/group)"

    # ---- Somebody inside wishes ill to whoever copies out: an absolute link, one upwards, a pipe, a device, a setuid shell, holes.
    as $user sh -c 'mkdir -p secret out; echo mine >secret/key; chmod 600 secret/key'
    ok as $user skiff exec web sh -c 'mkdir -p /x/d/e; cd /x; ln -s '"/home/$user/secret"' to-secret; ln -s ../../../../../../etc/shadow up
        ln -s '"/home/$user/secret/key"' d/key; busybox mkfifo d/pipe; busybox cp /bin/busybox d/shell; chmod 6777 d/shell;
        busybox mkfifo pipe; ln -s . d/loop; busybox truncate -s 1G d/hole'
    ok as $user skiff cp web:/x/d out
    cd /home/$user/out/d
    equal "$(stat -c %a shell) $(stat -c %b hole) $(stat -c %s hole) $(readlink key loop | xargs)" "755 0 1073741824 /home/$user/secret/key ." "$user: what comes out"
    cd - >/dev/null
    [ ! -e /home/$user/out/d/pipe ] || fail 'a pipe has come out'
    ok as $user sh -c 'umask 077; skiff cp web:/x/d/shell guarded; skiff cp -a web:/x/d/shell as-is'
    equal "$(stat -c %a /home/$user/guarded /home/$user/as-is | xargs)" '700 777' "$user: modes by the umask"
    # A pipe does not hold up the caller, and is not written to.
    limit=10 refused 'a device, pipe or socket cannot be copied' web:/x/pipe .
    limit=10 refused 'which a copy does not replace' tree/file web:/x/pipe
    # A link inside means what it means inside: the file of that path there, if there is one.
    as $user skiff exec web sh -c 'busybox cp /etc/group /shown; ln -sf /shown /x/absolute'
    ok as $user skiff cp -L web:/x/absolute shown
    equal "$(cat /home/$user/shown)" "$(as $user skiff exec web cat /shown)"
    # First a link comes out, then a file below a directory of its name: it is not written through the link.
    ok as $user skiff cp web:/x/to-secret out/
    ok as $user skiff exec web sh -c 'rm /x/to-secret; mkdir -p /x/to-secret; echo evil >/x/to-secret/key'
    refused 'is a link or a file, not a directory' web:/x/to-secret out
    ok as $user skiff exec web sh -c 'echo evil >/x/plain'
    as $user ln -s ../secret/key out/plain
    ok as $user skiff cp web:/x/plain out
    equal "$(cat /home/$user/out/plain)" evil
    equal "$(cat /home/$user/secret/key)" mine "$user: a file that a link led to"
    # Inside, links of the destination are replaced as well, and nothing leads out of its root.
    ok as $user skiff cp tree/file web:/x/up
    equal "$(as $user skiff exec web cat /x/up)" one
    # An archive that names what is above, beside or behind a link.
    /usr/bin/python3 - "$images_tmp" <<'P'
import io, sys, tarfile
def archive(name, *entries):
    with tarfile.open(f'{sys.argv[1]}/{name}.tar', 'w') as out:
        for path, kind, text in entries:
            info = tarfile.TarInfo(path)
            info.type, info.mode = kind, 0o6777
            if kind == tarfile.REGTYPE:
                info.size = len(text)
                out.addfile(info, io.BytesIO(text.encode()))
            else:
                info.linkname, info.devmajor, info.devminor = text, 1, 3
                out.addfile(info)
archive('upwards', ('../evil', tarfile.REGTYPE, 'x'))
archive('linked', ('l', tarfile.SYMTYPE, '/tmp'), ('l/evil', tarfile.REGTYPE, 'x'))
archive('hard', ('l', tarfile.SYMTYPE, '/etc'), ('h', tarfile.LNKTYPE, 'l/passwd'))
archive('device', ('/null', tarfile.CHRTYPE, ''), ('/good', tarfile.REGTYPE, 'x'))
P
    chmod 644 "$images_tmp"/*.tar
    ok as $user skiff exec web mkdir /into
    for name in upwards linked hard; do
        fails 125 as $user sh -c "skiff cp - web:/into <$images_tmp/$name.tar"
        has "$err" 'hint: ' $name
    done
    ok as $user sh -c "skiff cp - web:/into <$images_tmp/device.tar"
    has "$err" 'are left out: 1'
    ok as $user skiff exec web sh -c 'ls /into; ls /tmp /evil 2>/dev/null | grep evil; stat -c %a /into/good'
    equal "$out" $'good\nl\n755' "$user: what an archive has made"
    # Nor while it changes: somebody in an environment, who has the home in common, exchanges a directory and a link to another one.
    as $user mkdir -p shared tree/sub
    start $user skiff env exec dev -- sh -c 'cd ~/shared; while :; do rm -rf sub; mkdir sub; rm -rf sub; ln -s ../secret sub; done'
    swapper=$started
    for i in $(seq 30); do try as $user skiff cp web:/srv/tree/. shared; done
    kill $swapper
    equal "$(ls /home/$user/secret)" key "$user: beside a destination that changes"
    # A file that is a pipe, a link or nothing from one moment to the next holds up nobody, and comes out as a file or link or not at all.
    ok as $user skiff exec web mkdir /race
    start $user skiff exec web sh -c 'cd /race; while :; do echo evil >x; rm x; busybox mkfifo x; rm x; ln -s /home/'$user'/secret/key x; rm x; done'
    swapper=$started
    for i in $(seq 20); do limit=20 ok as $user skiff cp web:/race raced; done
    kill $swapper
    [ ! -p /home/$user/raced/x ] || fail 'a pipe has come out'
    equal "$(cat /home/$user/secret/key)" mine "$user: behind a file that changes"
    # A name is any bytes, and a message shows none that a terminal would obey.
    ok as $user skiff exec web sh -c 'mkdir /names; cd /names; echo odd >"$(printf "a\\nb")"; busybox mkfifo "$(printf "c\\033[1md")"'
    ok as $user skiff cp web:/names odd
    equal "$(cat "/home/$user/odd/"$'a\nb')" odd
    fails 125 as $user skiff cp web:/names/$'c\033[1md' .
    case $err in *$'\033'*) fail "$user: an escape sequence in a message" ;; esac
    # What ends early is no success: the other side is gone, the disk or the limit is full.
    fails 125 as $user sh -c 'ulimit -f 100; trap "" XFSZ; skiff cp web:/bin/busybox big'
    has "$err" 'File too large'
    [ ! -e /home/$user/big ] || fail 'half a file was left'
    equal "$(find /home/$user -name '.skiff-cp-*')" '' "$user: files that were not finished"
    try as $user skiff cp web:/bin/busybox nosuch/
    has "$err" 'hint: ' "$user: how to mend it"
    # What cannot be read ends the copy, and it is said that it is not whole.
    as $user sh -c 'mkdir -p part/b; echo a >part/a; chmod 0 part/b'
    fails 125 as $user skiff cp part web:/srv/part
    has "$err" 'part/b: Permission denied'
    has "$err" 'hint: the copy has all but these'
    as $user rm -rf part
    fails 125 as $user skiff cp web:/srv/nothere .
    has "$err" 'hint: look there: skiff exec web ls -ld /srv/nothere'
    # Who has read enough is told nothing.
    ok as $user sh -c 'skiff cp web:/ - | head -c 1000 | wc -c'
    equal "$out$err" 1000 "$user: a reader that has had enough"
    # Those that have joined the container, too.
    eventually 5 sh -c "! pgrep -u $user -f 'skiff cp'"

    [ $user = bob ] || by_inside
    for name in web fixed; do ok as $user skiff kill $name; ok as $user skiff rm $name; done
    fails 125 as $user skiff cp web:/etc/group .
    ok as $user skiff rm -f dev boxed
done
