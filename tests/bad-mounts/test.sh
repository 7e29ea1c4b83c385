# Mounts that are written wrong, that are not there, or that lead elsewhere.
. "$(dirname "$0")/../lib.sh"
home=/home/alice
echo of-bob >/home/bob/file && chown -R bob /home/bob && chmod 700 /home/bob
as alice sh -c 'mkdir dir; echo one >dir/file; ln -s /home/bob/file to-bob; ln -s /etc to-etc; ln -s dir to-dir; ln -s loop loop; ln -s nowhere dangling'

wrong() { # MOUNT MESSAGE
    fails 125 as alice skiff run -v "$1" -- true
    has "$err" "$2" "mount $1"
    has "$err" 'hint: ' "mount $1"
    fails 125 as alice skiff env create dev -v "$1"
    has "$err" "$2" "environment with mount $1"
    [ ! -e $home/.local/share/skiff/env/dev ] || fail "an environment with mount $1 was made"
}
wrong ./dir/../../x 'holds `..`'
wrong "type=volume,source=data,target=/x" 'type volume does not exist here'
wrong "type=bind,target=/x" 'no source'
wrong "$home/dir:data" 'a path is not absolute'
wrong "$home/dir:/x/../etc" 'holds `..`'
wrong "$home/../bob:/x" 'holds `..`'
wrong "$home/dir:/x:rx" 'the option "rx" is not known'
wrong "$home/dir:/x:ro:z" 'too many colons'
wrong '' 'a path is not absolute'
wrong "$home/dir:/" "the environment's own"
wrong "$home/dir:/run/skiff" "the environment's own"
wrong "$home/dir:/run/skiff/host/etc" "the environment's own"
wrong "$home/dir://run//skiff" "the environment's own"

# Sources that are not there, or not hers; a file on a directory and the reverse.
absent() { # MOUNT MESSAGE
    fails 125 as alice skiff run -v "$1" -- true
    has "$err" "$2" "mount $1"
    has "$err" 'hint: ' "mount $1"
}
absent "$home/nosuch:/x" 'No such file or directory'
absent dirr:/x 'No such file or directory'
absent "$home/dangling:/x" 'No such file or directory'
absent "$home/loop:/x" 'loop'
absent "$home/to-bob:/x" 'Permission denied'
absent '/root/.ssh:/x' 'Permission denied'
absent "$home/dir:/etc/passwd" 'a file mounts on a file'
absent "$home/dir/file:/etc" '/etc'
# What she cannot read she cannot read where it is mounted either.
ok as alice skiff run -v /etc/shadow:/etc/motd -v /home/bob:/x -- sh -c 'if cat /etc/motd || ls /x; then exit 9; fi 2>/dev/null; id -u'
equal "$out" 0

# As users of Docker, Podman and Apptainer write mounts: as seen from where they are, several, with their options, or with keys.
ok as alice sh -c 'mkdir -p sub/deep; echo two >sub/file; cd sub; skiff run -v .:/a:ro,z -v ../dir:/b,./deep:/c --mount type=bind,source=file,target=/d,readonly \
    -- sh -c "cat /a/file /b/file /d; touch /c/new; for f in /a/x /d; do touch \$f 2>&- || echo refused; done"'
equal "$out" $'two\none\ntwo\nrefused\nrefused'
[ -f $home/sub/deep/new ] || fail 'a mount of a list takes no writes'
ok as alice sh -c 'cd sub; skiff run -v deep -- ls $HOME/sub/deep'
equal "$out" new
ok as alice env SKIFF_BIND=./dir:/a,/etc:/b:ro skiff run -v sub:/a -- sh -c 'cat /a/file; ls /b/passwd'
equal "$out" $'two\n/b/passwd' 'SKIFF_BIND, and the command line above it'
ok as alice skiff env create there -v dir:/data
ok as alice sh -c 'cd /; skiff exec there cat /data/file'
equal "$out" one
ok as alice skiff rm -f there
# Memory, and its limits.
ok as alice skiff run --tmpfs /x:size=64k,mode=700 --shm-size 1M -- sh -c 'stat -c %a /x; head -c 100k /dev/zero >/x/f 2>&- || echo full; stat -fc "%T %b %S" /dev/shm'
equal "$out" $'700\nfull\ntmpfs 256 4096'
fails 125 as alice skiff run --tmpfs /x:size=lots -- true
has "$err" 'hint: '
ok as alice skiff run --contain --device /dev/fuse --device /dev/null:/dev/hole:r -- sh -c 'ls /dev/fuse; wc -c </dev/hole'
equal "$out" $'/dev/fuse\n0'
fails 125 as alice skiff run --device nvidia.com/gpu=all -- true
has "$err" 'this host has no descriptions of devices (CDI)'
has "$err" 'hint: '

# A file of variables that has no end, or never comes, and one that a program writes.
fails 125 as alice skiff run --env-file /dev/zero -- true
has "$err$out" 'longer than' 'variables without end'
ok as alice mkfifo never
limit=45 fails 125 as alice skiff run --env-file never -- true
has "$err" 'nothing has come of it in time'
ok as alice bash -c 'skiff run --env-file <(echo A=1; sleep 0.5; echo B=2) -- sh -c "echo \$A \$B"'
equal "$out" '1 2'

# Links of hers as sources mean what they mean to her.
ok as alice skiff run -v $home/to-dir:/x -- cat /x/file
equal "$out" one
# Links inside as targets are followed inside and never lead out.
ok as alice skiff env create links -v $home/dir:/data/in -v $home/dir:/opt/link/new -v $home/dir/file:/var/link
inside alice links 'cat /data/in/file /var/link'
ok as alice skiff env stop links
ok as alice skiff env rm links
mkdir /shared/outside
ok as alice skiff env create links -v $home/dir:/data
ok as alice skiff env exec links -- true
ok as alice skiff env stop links
upper=$home/.local/share/skiff/env/links/upper
for target in /shared/outside ../../../../../../shared/outside ../etc; do
    rm -rf $upper/data && as alice ln -s "$target" $upper/data
    ok as alice skiff env exec links -- sh -c 'cat /data/file; grep -c " /[^ ]* .*dir" /proc/self/mountinfo >/dev/null; true'
    equal "$out" one "mount on a link to $target"
    equal "$(ls /shared/outside)" '' 'what the mount has put outside'
    ok as alice skiff env stop links
done
for target in /proc/1/root /proc/self/cwd /proc/self/fd/3; do
    rm -rf $upper/data && as alice ln -s "$target" $upper/data
    try as alice skiff env exec links -- cat /data/file
    [ "$code" = 125 ] && has "$err" 'skiff: mount on /data: ' || equal "$out" one "mount on a link to $target$(said)"
    try as alice skiff env stop links
done
rm -rf $upper/data && as alice ln -s data $upper/data
fails 125 as alice skiff env exec links -- true
has "$err" 'skiff: mount on /data: '
# As root outside nothing is followed that she put there: the helper never looks at her files.
ok as alice skiff env rm --force links
eventually 3 sh -c '! pgrep -u alice'
