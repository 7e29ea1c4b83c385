# `skiff commit`: an image of what an instance or an environment has become, with the helper (alice) and without (bob).
# takes: 20
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
skeleton "$root"
mkdir "$root/gone" && echo old >"$root/gone/file"
push tools/plain:1 "$root" --config '{"Entrypoint":["/bin/sh","-c"],"Cmd":["echo old"],"Env":["PATH=/bin","A=1","B=2"],"Labels":{"of":"plain"}}'
image=$registry/tools/plain:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null

for user in alice bob; do
    ok as $user skiff pull $image
    ok as $user mkdir -p data
    as $user sh -c 'echo private >data/file'
    ok as $user skiff run -d --name web --writable --root -v data:/data --entrypoint sleep $image 1000
    ok as $user skiff exec web sh -c 'echo new >/new; ln -s /new /link; rm -r /gone; chmod 4750 /new; chmod 700 /srv 2>/dev/null || mkdir -m 700 /srv
        truncate -s 1G /sparse'
    # As soon as it is said what is wrong, before the files are read.
    fails 125 as $user skiff commit -c 'RUN make' web web:2
    has "$err" 'instruction "RUN make": only CMD,'
    fails 125 as $user skiff commit web ./file
    fails 125 as $user skiff commit nosuch web:2
    has "$err" 'there is no instance, environment or cluster of this name'
    ok as $user skiff commit -m 'patched by hand' -a "$user" -c 'ENV A="3 4"' -c 'ENTRYPOINT []' -c 'CMD ["cat", "/new"]' web web:2
    [[ $out == sha256:* ]] || fail "printed: $out"
    has "$err" 'reading the files of web'
    ok as $user skiff stop -t 1 web
    # It is an image as any other, and what was of the container's own is not in it.
    ok as $user skiff run web:2
    equal "$out" new
    fails 1 as $user skiff run --root web:2 ls -d /gone
    ok as $user skiff run --root web:2 sh -c 'stat -c "%a %u" /new /srv; readlink /link; ls /data; echo "$A $B"; stat -c %s /sparse'
    equal "$out" $'4750 0\n700 0\n/new\n3 4 2\n1073741824' "$user: the image's files"
    ok as $user skiff history web:2
    has "$out" 'patched by hand'
    ok as $user skiff inspect --format '{{.Config.author}} {{.Config.config.Labels.of}}' web:2
    equal "$out" "$user plain"
    ok as $user skiff inspect --files web:2
    lacks "$out" run/skiff
    # The name before gives way; a new container of it changes only what is its own.
    ok as $user skiff env create boxed --base image:web:2
    ok as $user skiff env exec boxed -- sh -c 'echo newer >/new'
    fits as $user skiff commit --quiet --json boxed web:2
    equal "$err" ''
    ok as $user skiff run web:2
    equal "$out" newer
    # An instance of an environment over an image stands on that image.
    ok as $user skiff instance start env:boxed held sleep 1000
    ok as $user skiff exec --root held sh -c 'echo of-instance >/new'
    ok as $user skiff commit held held:1
    ok as $user skiff stop -t 0 held
    ok as $user skiff run held:1
    equal "$out" of-instance "$user: an instance of an environment"
    # A link to the list of mounts is in a root, as in Docker's, and nowhere among its changes.
    ok as $user skiff run --root web:2 sh -c 'readlink /etc/mtab; grep -c " /proc " /etc/mtab'
    equal "$out" $'/proc/self/mounts\n1' "$user: /etc/mtab"
    ok as $user skiff env diff boxed
    has "$out" 'C /new'
    lacks "$out" mtab "$user: changes"
    ok as $user skiff inspect --files web:2
    lacks "$out" etc/mtab "$user: the image's files"
    # What Skiff itself puts into a root, the user's account and files at which the host's are mounted, is among neither; what the user does is.
    ok as $user skiff env create clean --base image:$image
    ok as $user skiff env exec clean -- id -u
    ok as $user skiff env diff clean
    equal "$out" '' "$user: changes of an untouched environment"
    ok as $user skiff commit --quiet clean clean:1
    ok as $user skiff env exec clean -- sh -c 'echo app:x:900:900::/:/bin/sh >>/etc/passwd; echo 10.0.0.1 >/etc/own'
    ok as $user skiff env diff clean
    has "$out" 'C /etc/passwd'
    lacks "$out" /etc/group "$user: changes"
    ok as $user skiff commit --quiet clean clean:2
    for number in 1 2; do
        ok as $user skiff export clean:$number clean-$number.tar
        as $user sh -euc "mkdir clean-$number; tar -C clean-$number -xf clean-$number.tar"
        cmp "/home/$user/clean-$number/etc/group" "$root/etc/group" || fail "$user: /etc/group of clean:$number"
    done
    cmp "/home/$user/clean-1/etc/passwd" "$root/etc/passwd" || fail "$user: /etc/passwd of clean:1"
    equal "$(stat -c %Y "/home/$user/clean-1/etc/passwd")" "$(stat -c %Y "$root/etc/passwd")" "$user: when it was changed"
    # (Of a mount its empty place stays, as with Docker: here of Slurm's configuration.)
    equal "$(ls "/home/$user/clean-1/etc" | grep -vx slurm)" "$(ls "$root/etc")" "$user: /etc of clean:1"
    { cat "$root/etc/passwd"; echo app:x:900:900::/:/bin/sh; } | cmp - "/home/$user/clean-2/etc/passwd" || fail "$user: /etc/passwd of clean:2"
    # What others unpack.
    ok as $user skiff export web:2 oci-archive:web.tar
    ok as $user skiff import web.tar again
    ok as $user skiff run again
    equal "$out" newer
    # Nothing is made when it is only asked what would be.
    fits as $user skiff commit --dry-run --json boxed none:1
    [ "$(json "$out" 'd["files"] > 20 and d["bytes"] > 10000')" = True ] || fail "would have: $out"
    fails 125 as $user skiff run --pull never none:1
    ok as $user skiff env create dev
done
# Root inside neither stops nor sees the process that reads the files.
ok as alice skiff run -d --name watched --writable --root -v data:/data --entrypoint sleep $image 1000
start alice skiff exec watched sh -c 'echo on >/watching; cp /watching /data; while :; do
    for about in /proc/[0-9]*; do case $about in */1 | */$$) ;; *) case $(cat $about/comm 2>&-) in skiff*) kill -STOP ${about#/proc/} ;; esac ;; esac; done; done'
eventually 10 test -e /home/alice/data/watching
limit=30 ok as alice skiff commit --quiet watched watched:1
limit=30 ok as alice skiff run watched:1 sh -c '[ -e /watching ]'
ok as alice skiff rm -f watched
# The reader goes with its caller.
start alice skiff commit --quiet boxed killed:1
kill -9 "$started"
eventually 5 sh -c '! pgrep -u alice -f "commit --quiet" >/dev/null'
# From inside it is done outside.
inside alice dev 'skiff commit boxed inside:1 && skiff run inside:1'
has "$out" newer
ok as alice skiff store verify
