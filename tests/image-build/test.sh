# `skiff build`: Dockerfiles become images, with the helper (alice) and without (bob).
# takes: 50
# time: 400
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
skeleton "$root"
for command in cp mv ln chmod chown echo readlink tr wc sort head date cut; do ln -sf busybox "$root/bin/$command"; done
echo 'app:x:500:600::/srv/app:/bin/sh' >>"$root/etc/passwd"
echo 'app:x:600:' >>"$root/etc/group"
mkdir -m 755 "$root/gone" && echo old >"$root/gone/file"
push tools/base:1 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/bin","BASE=1"],"Labels":{"of":"base"}}'
push tools/trigger:1 "$root" --config '{"Env":["PATH=/bin"],"OnBuild":["ENV TRIGGERED=yes","RUN echo by-trigger >/trigger"]}'
base=$registry/tools/base:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null

# A context with what contexts have. Its files are readable for their owner only, as with a umask of 077.
context() { # USER
    as "$1" sh -euc 'umask 077; rm -rf ctx; mkdir -p ctx/sub/dir1/dir2 ctx/files ctx/secret; cd ctx
        for file in foo.go bar.go sub/lfile sub/baz sub/dir1/dir2/foo files/a secret/key notes.md other.md; do echo "$file" >$file; done
        printf "#!/bin/sh\necho made\n" >run.sh; chmod 4755 run.sh
        ln -s foo.go to-file; ln -s /etc/passwd out; ln -s ../../../../../../etc out-dir; ln -s baz sub/inner
        mkdir tree; echo in-tar >tree/member; tar -C tree --owner=0 --group=0 -cf plain.tar .; echo packed >tree/packed; tar -C tree --owner=500 --group=600 -czf packed.tar.gz packed
        printf "secret\n*.md\n!notes.md\nDockerfile\n" >.dockerignore'
}
# The Dockerfile of USER's context.
dockerfile() { # USER
    as "$1" tee ctx/Dockerfile >/dev/null
}

for user in alice bob; do
    context $user
    dockerfile $user <<X
# syntax=docker/dockerfile:1
ARG VERSION=1
FROM $base AS builder
ARG VERSION
ENV GREETING="hello there" PLACE=/work
WORKDIR \$PLACE/sub
# Each of these is a layer.
RUN echo "\$GREETING \$VERSION \$BASE" >said; echo in-tmp >/tmp/kept; \\
    # a remark between
    rm -r /gone
COPY foo.go bar.go ./
COPY --chown=0:0 --chmod=750 sub /copied
COPY --chmod=644 foo.go /etc/app/
COPY files /deep/deeper/
COPY to-file *.md /links/
COPY run.sh /bin/
COPY <<one <<"two" /docs/
value: \$VERSION
one
value: \$VERSION
two
COPY <<three foo.go /docs/
in three
three
ADD plain.tar /unpacked/
RUN <<EOF
id -u >/who
cat /tmp/kept >>/who
EOF
RUN <<EOF cat >>/who
read by cat
EOF
RUN ["/bin/sh", "-c", "echo exec >>/who"]

FROM builder AS unused
RUN exit 9

FROM scratch
COPY --from=builder /bin /bin
COPY --from=0 /work/sub/said /deep /out/
COPY --from=$base /etc/passwd /etc/passwd
ENV PATH=/opt/bin:\$PATH A=1 B="x y"
LABEL purpose="a b" maker=me
EXPOSE 80 53/udp
VOLUME /data
STOPSIGNAL QUIT
HEALTHCHECK --interval=30s CMD /bin/true
USER app:app
WORKDIR /out
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["cat said"]
X
    ok as $user skiff build -t app:1 --build-arg VERSION=2 --label extra=yes ctx
    [[ $out == sha256:* ]] || fail "printed: $out"
    id=$out
    has "$err" 'step 1/'
    has "$err" '# syntax=docker/dockerfile:1 is ignored'
    lacks "$err" 'exit 9' "$user: a stage that nothing needs"
    ok as $user skiff run app:1
    equal "$out" 'hello there 2 1' "$user: the image runs"
    # Its configuration.
    ok as $user skiff inspect app:1
    while IFS='|' read -r key value; do
        equal "$(json "$out" "d['config']['config']$key")" "$value" "$user: $key"
    done <<'X'
['Env']|['PATH=/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', 'A=1', 'B=x y']
['Cmd']|['cat said']
['Entrypoint']|['/bin/sh', '-c']
['User']|app:app
['WorkingDir']|/out
['StopSignal']|QUIT
['Volumes']|{'/data': {}}
['Labels']['purpose']|a b
['Labels']['extra']|yes
['Healthcheck']['Test']|['CMD-SHELL', '/bin/true']
['Healthcheck']['Interval']|30000000000
['ExposedPorts']|{'53/udp': {}, '80/tcp': {}}
X
    # There are the files that were copied, and none that a container needs only while it runs.
    ok as $user skiff inspect --files app:1
    for part in proc skiff dev/null resolv.conf mtab; do lacks "$out" $part "$user: files of $id"; done
    ok as $user skiff history app:1
    has "$out" 'COPY --from=builder /bin /bin'

    # The builder's own files: modes, owners, links, deletions.
    ok as $user skiff build -q -t builder --build-arg VERSION=2 --target builder ctx
    equal "$err" '' "$user: quiet"
    see() { ok as $user skiff run --root --entrypoint /bin/sh builder -c "$1"; }
    see 'stat -c "%n %a %u:%g" /work /work/sub /work/sub/foo.go /copied /copied/lfile /copied/dir1 /etc/app /etc/app/foo.go /deep /deep/deeper/a /bin/run.sh /docs/one /unpacked/member /links'
    equal "$out" '/work 755 0:0
/work/sub 755 0:0
/work/sub/foo.go 600 0:0
/copied 755 0:0
/copied/lfile 750 0:0
/copied/dir1 750 0:0
/etc/app 755 0:0
/etc/app/foo.go 644 0:0
/deep 755 0:0
/deep/deeper/a 600 0:0
/bin/run.sh 4755 0:0
/docs/one 644 0:0
/unpacked/member 600 0:0
/links 755 0:0' "$user: owners and modes"
    see 'cat /copied/inner /links/to-file /links/notes.md /docs/one /docs/two /unpacked/member; readlink /copied/inner; ls -d /gone /secret /links/other.md 2>&1 | wc -l'
    equal "$out" 'sub/baz
foo.go
notes.md
value: 2
value: $VERSION
in-tar
baz
3' "$user: what was copied"
    see 'cat /who'
    equal "$out" $'0\nin-tmp\nread by cat\nexec' "$user: here-document, and /tmp of the image"
    ok as $user skiff run app:1 'cat /out/said /out/deeper/a'
    equal "$out" $'hello there 2 1\nfiles/a' "$user: what comes from a stage"

    # Everything is cached: nothing runs, and it is the same image.
    ok as $user skiff build -t app:1 --build-arg VERSION=2 --label extra=yes ctx
    equal "$out" "$id" "$user: the same image again"
    lacks "$err" 'step 1/' "$user: nothing was done"
    fits as $user skiff build --dry-run --json --build-arg VERSION=2 ctx
    equal "$(json "$out" 'all(s["cached"] for s in d if s["layer"])')" True "$user: all is cached"
    # What a build uses is as new as that build, even if it does nothing: what it has not used for long goes.
    state=/home/$user/.local/share/skiff/build
    as $user sh -c "mkdir $state/layers/unused; touch -d '20 days ago' $state/layers/* $state/images/*"
    ok as $user skiff build -q -t app:1 --build-arg VERSION=2 --label extra=yes ctx
    equal "$out" "$id" "$user: the same image again"
    [ ! -e $state/layers/unused ] || fail "$user: an old layer stays"
    fits as $user skiff build --dry-run --json --build-arg VERSION=2 ctx
    equal "$(json "$out" 'all(s["cached"] for s in d if s["layer"])')" True "$user: all is still cached"
    # What changes nothing but the configuration needs no step again; a changed file those from there on.
    as $user sh -c 'echo "CMD [\"cat passwd\"]" >>ctx/Dockerfile; touch ctx/foo.go'
    ok as $user skiff build -t app:2 --build-arg VERSION=2 ctx
    has "$err" 'COPY --from=builder /bin /bin (cached)'
    as $user sh -c 'echo changed >ctx/foo.go; echo unseen >ctx/secret/key'
    ok as $user skiff build -t app:2 --build-arg VERSION=2 ctx
    has "$err" 'rm -r /gone (cached)' "$user: before the change"
    lacks "$err" 'foo.go bar.go ./ (cached)' "$user: the change"
    lacks "$err" 'EOF (cached)' "$user: after the change"
    # As JSON, like any image; and pushed.
    fits as $user skiff build --json -q -t $registry/built/$user:1 --build-arg VERSION=2 ctx
    equal "$err" ''
    ok as $user skiff push $registry/built/$user:1
    ok as $user skiff rmi $registry/built/$user:1
    ok as $user skiff run $registry/built/$user:1 'cat /out/said'
    equal "$out" 'hello there 2 1'

    # Instructions that an image has for those who build on it.
    dockerfile $user <<X
FROM $registry/tools/trigger:1
RUN echo "\$TRIGGERED" >/own
X
    ok as $user skiff build -t triggered ctx
    ok as $user skiff run triggered cat /trigger /own
    equal "$out" $'by-trigger\nyes'
    # No network, if that is asked for; many steps; --no-cache runs all again.
    {
        echo "FROM $base"
        echo 'RUN --network=none cat /proc/net/dev | wc -l >/devices'
        for number in $(seq 1 24); do echo "RUN echo $number >>/numbers"; done
    } | dockerfile $user
    limit=120 ok as $user skiff build -t many ctx
    ok as $user skiff run many sh -c 'wc -l </numbers; cat /devices'
    equal "$out" $'24\n3' "$user: many layers"
    dockerfile $user <<X
FROM $base
RUN cat /proc/sys/kernel/random/uuid >/first
RUN cat /first /proc/sys/kernel/random/uuid >/now
X
    ok as $user skiff build -q -t now ctx
    ok as $user skiff run now cat /now
    before=$out
    ok as $user skiff build -q --no-cache -t now ctx
    ok as $user skiff run now cat /now
    equal "$(comm -12 <(sort <<<"$out") <(sort <<<"$before"))" '' "$user: --no-cache has run each step"
    equal "$(find $state/layers -name 'once.*')" '' "$user: layers that nobody else uses"
    # The cache is as it was.
    ok as $user skiff build -q -t now ctx
    ok as $user skiff run now cat /now
    equal "$out" "$before" "$user: the cache after --no-cache"

    # A command that fails: its exit code, the line, no image, nothing left behind but what was done before.
    dockerfile $user <<X
FROM $base
RUN echo one >/one
RUN echo two >/two; exit 7
X
    fails 7 as $user skiff build -t failed ctx
    has "$err" 'ctx/Dockerfile:3: RUN: exit code 7'
    has "$err" 'any steps before it are kept'
    has "$err" 'hint: no image was made'
    equal "$out" ''
    fails 125 as $user skiff inspect failed
    fails 7 as $user skiff build -t failed ctx
    has "$err" 'RUN echo one >/one (cached)'
    fails 7 as $user skiff build --no-cache -t failed ctx
    has "$err" 'hint: no image was made, and with --no-cache no step is kept'
    # Quiet, it prints the id alone; what a command said that fails is shown.
    ok as $user skiff build -q -t said -f - ctx <<X
FROM $base
RUN echo "said $user"; echo "and that" >&2
X
    equal "$err" '' "$user: quiet commands"
    fails 7 as $user skiff build -q -t failed -f - ctx <<X
FROM $base
RUN echo "said $user"; exit 7
X
    has "$err" "said $user"
    has "$err" 'RUN: exit code 7'
    fails 127 as $user skiff build -t failed -f - ctx <<X
FROM $base
RUN ["/bin/nosuch"]
X
    has "$err" 'standard input:2: RUN'
    fails 137 as $user skiff build -t failed -f - ctx <<X
FROM $base
RUN kill -9 \$\$
X
    # No RUN reaches what its caller has open (a directory leads to all of the host's files), nor what process 1 has.
    ok as $user sh -c 'exec 8<ctx/files; skiff build -t closed -f - ctx' <<X
FROM $base
RUN ! ls /proc/[0-9]*/fd/*/../foo.go
X
    # Nor the terminal, whichever descriptor it asks; what it prints comes in order.
    dockerfile $user <<X
FROM $base
RUN echo "read: <\$(head -n1 <&0)\$(head -n1 <&2)\$(head -n1 </dev/tty)>"; for n in 1 2 3; do echo "out \$n"; echo "err \$n" >&2; done; cat /proc/self/stat | cut -d' ' -f7
X
    as $user sh -c 'printf "FROM %s\nRUN echo waiting; sleep 100\n" "$1" >waiting
        printf "FROM %s\nRUN trap : INT; echo waiting; sleep 100; exit 0\nRUN echo further\n" "$1" >handling
        printf "FROM %s\nRUN trap \"\" INT; echo waiting; sleep 30; exit 0\nRUN echo further\n" "$1" >ignoring' sh "$base"
    login $user
    PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 python3 - "${login[@]}" skiff build -t quiet ctx <<'X' || fail "$user: a RUN at a terminal"
import sys
from terminal import Terminal
terminal = Terminal(sys.argv[1:])
terminal.line("typed")
terminal.expect("^read: <>\r\nout 1\r\nerr 1\r\nout 2\r\nerr 2\r\nout 3\r\nerr 3\r\n0\r$")
if terminal.finish() != 0:
    sys.exit("it failed")
# The key that interrupts is passed on, and ends the build whatever the command does about it; the second time at once.
def interrupted(file, keys):
    terminal = Terminal(sys.argv[1:] + ["-t", "interrupted", "-f", file])
    terminal.expect("^waiting\r$")
    for key in range(keys):
        terminal.send("\x03")
    return file, terminal
# Side by side, as each has two seconds to end.
begun = [interrupted(file, 1) for file in ("waiting", "handling", "ignoring")]
for file, terminal in begun + [interrupted("ignoring", 2)]:
    terminal.expect("RUN: the build was interrupted by signal 2\r$")
    if terminal.finish() != 130:
        sys.exit(file + ": it was not interrupted")
X
    fails 125 as $user skiff inspect interrupted
    # What is not supported is refused with its line before anything is done.
    while IFS='|' read -r line part; do
        fails 125 as $user skiff build -t failed -f - ctx <<<"FROM $base
$line"
        has "$err" 'standard input:2: ' "$user: $line"
        has "$err" "$part" "$user: $line"
    done <<'X'
RUN --mount=type=ssh,source=x git clone x|source: not supported
COPY https://example.org/x /|files from other hosts
ADD http://example.org/x /|by http anybody
COPY nosuch /|context: nosuch: no such file
COPY secret/key /|`.dockerignore` leaves it out
COPY ../outside /|outside the context
COPY out /|nothing outside of it is copied
COPY out-dir/passwd /|nothing outside of it is copied
COPY --from=localhost/nosuch:1 /x /|COPY
RUNX y|no such instruction
X
    fails 125 as $user skiff build -t failed --platform linux/s390x ctx
    has "$err" 'this host builds for'
    fails 125 as $user skiff build -t failed ctx/foo.go
    has "$err" 'the context is not a directory'

    # Killed at any moment, a build leaves nothing half made: what comes next is whole.
    dockerfile $user <<X
FROM $base
RUN echo half >/half; sleep 30; echo whole >/half
COPY files /files
X
    for seconds in 0.05 0.2 0.5 1; do
        start $user skiff build -t killed ctx
        sleep "$seconds"
        kill -9 "$started"
        wait "$started" 2>&- || true
        eventually 20 sh -c "! ls -d $state/skiff-scratch.* 2>&-"
        fails 125 as $user skiff inspect killed
    done
    equal "$(pgrep -u $user -x sleep || true)" '' "$user: nothing runs on"
    as $user sed -i 's/sleep 30; //' ctx/Dockerfile
    ok as $user skiff build -t killed ctx
    ok as $user skiff run killed cat /half /files/a
    equal "$out" $'whole\nfiles/a'
    # Two at once.
    as $user sh -c 'echo "RUN echo both >/both" >>ctx/Dockerfile'
    start $user skiff build -q -t twin:1 ctx
    first=$started
    ok as $user skiff build -q -t twin:2 ctx
    wait $first || fail "$user: one of two builds at once failed"
    ok as $user skiff run twin:1 cat /both
    equal "$out" both
    # Half a layer is none: what a prune could not remove, or was interrupted at, is not used.
    layer=$(ls -d $state/layers/* | head -1)
    mkdir -p "$layer"/upper/not-hers/deep
    fails 125 as $user skiff build --prune
    has "$err" 'not-hers'
    ok as $user skiff build -t twin:1 ctx
    lacks "$err" '(cached)' "$user: a layer that is half removed"
    rm -rf $state/layers/gone.*/upper/not-hers
    ok as $user skiff build --prune
    has "$err" 'layers removed from the cache'
    equal "$(find $state/layers $state/images -mindepth 1)" '' "$user: an empty cache"
done

# Owners that only those have who have subordinate ids.
as alice tee ctx/Dockerfile >/dev/null <<X
FROM $base
COPY --chown=app:app sub /copied
COPY --chown=500 files /numbered/deep/
COPY --chown=500:app foo.go /mixed
ADD packed.tar.gz /packed/
USER app
RUN id -u >/tmp/whoami; echo "\$HOME" >>/tmp/whoami
# What this makes is the user's, and not what was there.
WORKDIR /numbered/own/new
WORKDIR /place/own
RUN echo mine >file
FROM $base
COPY --from=0 /copied /tmp/whoami /packed/packed /all/
COPY --from=0 --chown=1:2 /copied /again
X
ok as alice skiff build -t owners ctx
ok as alice skiff run --root owners sh -c 'stat -c "%n %u:%g" /all /all/lfile /all/dir1 /all/whoami /all/packed /again /again/lfile; cat /all/whoami'
equal "$out" '/all 0:0
/all/lfile 500:600
/all/dir1 500:600
/all/whoami 500:600
/all/packed 500:600
/again 1:2
/again/lfile 1:2
500
/srv/app' 'owners'
ok as alice skiff build -q -t owners:0 --target 0 ctx
ok as alice skiff run --root owners:0 sh -c 'stat -c "%n %u:%g" /copied /numbered /numbered/deep /numbered/deep/a /mixed /numbered/own /numbered/own/new /place /place/own /place/own/file'
equal "$out" '/copied 500:600
/numbered 500:500
/numbered/deep 500:500
/numbered/deep/a 500:500
/mixed 500:600
/numbered/own 500:600
/numbered/own/new 500:600
/place 500:600
/place/own 500:600
/place/own/file 500:600'
fails 125 as alice skiff build -t failed -f - ctx <<X
FROM $base
COPY --chown=nobody-knows files /x
X
has "$err" "is not in the stage's /etc/passwd"

# From inside it is done outside; without a name the image is called as its context.
ok as alice skiff env create dev
inside alice dev 'cd /home/alice && skiff build --target 0 ctx && skiff run --root ctx cat /mixed'
has "$out" changed

# In a job it is the same command, and what a job has built is cached here.
node_stores
as alice sh -euc 'mkdir job; cp /bin/busybox job/sh'
as alice tee job/Dockerfile >/dev/null <<'X'
FROM scratch
COPY sh /bin/sh
RUN echo step >/step
CMD ["/bin/sh", "-c", "read -r line </step; echo $line"]
X
ok as alice srun -Q -n1 -w n1 skiff build -q -t in-job job
ok as alice srun -Q -n1 -w n1 skiff run in-job
equal "$out" step
# The stores are the hosts' own, and other hosts have a copy from the depot.
ok as alice skiff run in-job
equal "$out" step 'here, what a job has built'
ok as alice srun -Q -n1 -w n2 --container-image=in-job sh -c 'read -r line </step; echo $line'
equal "$out" step 'on another node, what a job has built'
# FROM takes such a copy.
as alice tee job/Dockerfile.over >/dev/null <<'X'
FROM in-job
RUN read -r line </step; echo "over $line" >/over
X
ok as alice srun -Q -n1 -w n2 skiff build -q -t over-job -f job/Dockerfile.over job
fits as alice skiff build --dry-run --json job
equal "$(json "$out" '[s["cached"] for s in d if s["layer"]]')" '[True, True]' 'what a job has built'

# What was imported at home, and what no registry has, is in that host's store only: it is said how a node gets it.
as alice sh -euc 'mkdir home; echo home >home/step; cp /bin/busybox home/sh; printf "FROM scratch\nCOPY sh /bin/sh\nCOPY step /step\n" >home/Dockerfile'
ok as alice skiff build -q -t at-home home
ok as alice skiff export at-home home.sqsh
ok as alice skiff import -q home.sqsh from-home:1
as alice tee job/Dockerfile.home >/dev/null <<'X'
FROM from-home:1
RUN read -r line </step; echo "over $line" >/over
X
fails 125 as alice srun -Q -n1 -w n2 skiff build -q -t over-home -f job/Dockerfile.home job
has "$err" 'from-home:1 (sha256:'
has "$err" 'not in the store of this host'
has "$err" 'hint: it came from no registry: where it was imported, `srun --container-image=localhost/from-home:1 true`'
# In a job's environment it is refused, and where it can be done is said.
fails 125 as alice srun -Q -n1 -w n1 --environment=dev skiff build -q -t in-environment job
has "$err" 'environments cannot be used or changed from inside'
has "$err" 'srun --overlap --environment=none skiff build'

# mallory's context: links out of it, pipes, terminal escapes, paths of all lengths, a Dockerfile that is none.
as mallory sh -euc 'mkdir -p evil/d; cd evil; ln -s /home/alice stolen; ln -s /proc/self/root rooted; mkfifo d/pipe; echo x >ok
    python3 -c "import os
for name in [\"long\"] + [\"n\" * 250] * 17: os.mkdir(name); os.chdir(name)
open(\"deep\", \"w\").close()"'
evil() { fails 125 as mallory skiff build -t evil -f - evil; }
for line in 'COPY stolen/data /' 'COPY stolen /' 'COPY rooted/etc/passwd /' 'COPY d /' 'COPY d/pipe /' 'COPY long /' 'COPY . /' 'ADD stolen/.bashrc /'; do
    evil <<<"FROM $base
$line"
    has "$err" 'standard input:2: ' "mallory: $line"
done
evil < <(printf 'FROM %s\nRUN\033]0;owned\007 x\n' "$base")
lacks "$err" $'\033' 'terminal escapes'
has "$err" '\x1b'
evil < <(printf 'FROM %s\nRUN --odd\033[2J x\n' "$base")
lacks "$err" $'\033' 'terminal escapes'
evil < <(head -c 100000 /dev/urandom)
evil < <(head -c 5000000 /dev/zero | tr '\0' a)
# What is said of a step that runs is readable, too. Links of an image lead where they lead in the image.
ok as mallory skiff build -t evil -f - evil < <(printf 'FROM %s\nRUN echo "\033[2Jx" >/dev/null; ln -s /etc /link; ln -s ../../../../.. /up\nCOPY ok /link/copied\nCOPY ok /up/up-there\n' "$base")
lacks "$err" $'\033' 'terminal escapes of a step'
ok as mallory skiff run evil cat /etc/copied /up-there
equal "$out" $'x\nx'
[ ! -e /etc/copied ] || fail 'a link inside led COPY out'
rm -rf /home/mallory/evil

# What RUN prints: a pipe gets it as it is; a terminal obeys colours, and shows the rest.
as mallory mkdir evil
as mallory tee evil/Dockerfile >/dev/null <<X
FROM $base
RUN printf '\033]52;c;eA==\007\033[31mred\033[0m\033[2J\n'
X
ok as mallory skiff build --no-cache -t evil evil
has "$err" $'\e]52;c;eA==\a\e[31mred\e[0m\e[2J'
try as mallory env TERM=xterm script -qec 'skiff build --no-cache -t evil evil' /dev/null
has "$out" $'\\x1b]52;c;eA==\\x07\e[31mred\e[0m\\x1b[2J'

# An archive is inflated in the user's state, and not where all users have their temporary files; and it takes no more than half of what is free.
state=/home/mallory/.local/share/skiff/build
trap 'umount -l $state /home/mallory/small 2>/dev/null || true; images_cleanup' EXIT
mkdir /home/mallory/small && mount -t tmpfs -o size=4m,mode=1777 small /home/mallory/small
as mallory sh -euc 'cd evil; mkdir in; head -c 30000000 /dev/zero >in/large; echo small >in/small; tar -czf packed.tar.gz in; rm -r in
    printf "FROM scratch AS files\nADD packed.tar.gz /\nFROM scratch\nCOPY --from=files /in/small /\n" >Dockerfile'
ok as mallory env TMPDIR=/home/mallory/small skiff build -t evil evil
mount -t tmpfs -o size=40m,mode=700,uid="$(id -u mallory)",gid="$(id -g mallory)" small $state
fails 125 as mallory skiff build --no-cache -t evil evil
has "$err" 'no space for unpacking '
has "$err" 'packed.tar.gz, which takes twice the size of its content'
eventually 10 umount $state
eventually 10 umount /home/mallory/small
rm -rf /home/mallory/evil /home/mallory/small
