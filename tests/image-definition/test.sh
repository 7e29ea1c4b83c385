# `skiff build` of Apptainer's definition files, what RUN may see beside its files (`--mount`), and files of other servers (ADD), with the helper (alice) and without (bob).
# takes: 20
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
skeleton "$root"
for command in cp mv ln chmod rm mkdir readlink tr wc sort head env expr touch tar; do ln -sf busybox "$root/bin/$command"; done
mkdir "$root/srv"
push tools/base:1 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/bin","BASE=1"],"User":"nobody","WorkingDir":"/srv"}'
base=$registry/tools/base:1
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null

for user in alice bob; do
    as $user sh -euc 'mkdir -p work/data/sub; cd work; echo one >data/one; echo two >data/sub/two; echo "a b" >"with space"'
    as $user tee work/solver.def >/dev/null <<X
# A remark before it.
Bootstrap: docker
From: $base
Stage: builder

%post
    mkdir -p /opt/built/deep
    echo "\$(id -u) \$(pwd) \$BASE" >/opt/built/deep/who

Bootstrap: docker
From: {{ IMAGE }}

%arguments
    IMAGE=nosuch.invalid/x
    VERSION=1

%files from builder
    /opt/built /opt/
%files
    data /srv
    data /made
    "with space" /srv/
    data/*e /srv/all/

%post -c /bin/sh -eu
    # That is how a definition keeps what it finds out.
    echo 'export FOUND="it is {{ VERSION }}"' >>\$APPTAINER_ENVIRONMENT
    echo "built.by {{ VERSION }} of \$(id -u)" >>"\$APPTAINER_LABELS"
    test "\$0" = /.skiff-build/script

%environment
    export PATH=/opt/solver/bin:\$PATH SOLVER="x  y"
    unset BASE
    export MINE=\$HOME/solver

%runscript
    echo "run: \$SOLVER, \$FOUND, \$MINE: \$*"

%startscript
    exec sleep 100

%test
    touch /tested
    test "\$SOLVER" = 'x  y'

%labels
    Maintainer It's me
%help
    Says what it is given.
X
    ok as $user sh -c "cd work && skiff build --build-arg IMAGE=$base --build-arg VERSION=2 solver.def"
    [[ $out == sha256:* ]] || fail "printed: $out"
    id=$out
    has "$err" 'MINE: depends on the user who runs the image, so only the runscript sets it'
    ok as $user skiff run solver a 'b  c'
    home=$(as $user sh -c 'echo $HOME')
    equal "$out" "run: x  y, it is 2, $home/solver: a b  c" "$user: the runscript"
    # Without the runscript, as in jobs, the environment is the same.
    ok as $user skiff run --entrypoint= solver sh -c 'echo "$SOLVER|$FOUND|${BASE-none}|${MINE-none}|$PATH"'
    equal "$out" 'x  y|it is 2|none|none|/opt/solver/bin:/bin' "$user: the environment"
    ok as $user skiff run --entrypoint= solver sh -c 'cat /opt/built/deep/who /srv/data/sub/two /made/sub/two "/srv/with space" /srv/all/one
        ls -d /tested /.skiff-build /.build.labels 2>&1 | wc -l; ls -A /.singularity.d; cat /.singularity.d/runscript.help'
    equal "$out" "0 / 1
two
two
a b
one
3
Singularity
env
runscript
runscript.help
startscript
test
    Says what it is given." "$user: the files"
    ok as $user skiff inspect solver
    equal "$(json "$out" "[d['config']['config'].get(k) for k in ('User', 'WorkingDir')]")" '[None, None]' "$user: whose it is"
    equal "$(json "$out" "sorted(d['config']['config']['Labels'].items())")" \
        "[('Maintainer', \"It's me\"), ('built.by', '2 of 0'), ('org.label-schema.usage', '/.singularity.d/runscript.help')]" "$user: labels"
    # Cached as a Dockerfile's steps are; what is only said of the image runs nothing again.
    ok as $user sh -c "cd work && skiff build -q --build-arg IMAGE=$base --build-arg VERSION=2 solver.def"
    equal "$out" "$id" "$user: the same image again"
    equal "$err" ''
    as $user sed -i 's/It.s me/You/' work/solver.def
    ok as $user sh -c "cd work && skiff build --build-arg IMAGE=$base --build-arg VERSION=2 -f solver.def ."
    has "$err" '%post # That is how a definition keeps what it finds out. ... (cached)'

    # Over an image that was built so, by its name: its environment is kept and goes before the new one.
    as $user tee work/Apptainer >/dev/null <<'X'
Bootstrap: localimage
From: solver
%post
    echo "$SOLVER" >/seen
%environment
    export SOLVER="$SOLVER and more"
X
    ok as $user skiff build -t more work
    ok as $user skiff run --entrypoint= more sh -c 'cat /seen; echo "$SOLVER"'
    equal "$out" $'x  y\nx  y and more' "$user: an environment over another"
    # A test that fails, and one that is not asked for. A line that asks for the host is refused.
    # A definition from elsewhere reads the user's current directory, which nobody has named: they are told, unless it reads nothing.
    as $user mkdir -p elsewhere
    printf 'Bootstrap: docker\nFrom: %s\n%%files\n    data/one /one\n' "$base" | as $user tee elsewhere/x.def >/dev/null
    printf 'Bootstrap: docker\nFrom: %s\n%%post\n    true\n' "$base" | as $user tee elsewhere/none.def >/dev/null
    note="elsewhere and reads files of the current directory, $home/work:"
    for call in '--dry-run ../elsewhere/x.def' '-t elsewhere ../elsewhere/x.def'; do
        ok as $user sh -c "cd work && skiff build $call"
        has "$err" "$note"
    done
    for call in '--dry-run ../elsewhere/none.def' '--dry-run -f ../elsewhere/x.def .' '--dry-run solver.def'; do
        ok as $user sh -c "cd work && skiff build --build-arg IMAGE=$base $call"
        lacks "$err" "$note"
    done
    as $user sh -c "printf 'Bootstrap: docker\nFrom: $base\n%%test\n    exit 3\n' >work/bad.def"
    fails 3 as $user skiff build work/bad.def
    has "$err" 'work/bad.def:3: %test: exit code 3'
    ok as $user skiff build -q --notest work/bad.def
    fails 125 as $user skiff build -t bad -f - work <<<$'Bootstrap: docker\nFrom: x\n%setup\ntouch x'
    has "$err" 'standard input:3: %setup: not supported'
    # Whoever has written the file reads nothing of the user's that is not in the context.
    as $user sh -c 'mkdir -p work/inner private/bin; echo key >private/key; tar -C private -cf archive.tar .'
    fails 125 as $user skiff build work/inner -f - <<<$'Bootstrap: localimage\nFrom: ./private'
    has "$err" 'is outside of'
    # Nor by a link.
    as $user ln -s ../../archive.tar work/inner/out.tar
    fails 125 as $user skiff build work/inner -f - <<<$'Bootstrap: localimage\nFrom: work/inner/out.tar'
    has "$err" 'is outside of'
    fails 125 as $user skiff build work/inner -f - <<<$'FROM docker-archive:archive.tar\n'
    has "$err" 'a file of this host'
    fails 125 as $user skiff build work/inner -f - <<<$'FROM scratch\nCOPY --from=dir:private key /\n'
    has "$err" 'a file of this host'

    # One command may have a cache twice.
    ok as $user skiff build -q -t twice -f - work <<<"FROM $base"$'\nUSER 0\nRUN --mount=type=cache,id=a,target=/a --mount=type=cache,id=a,target=/b touch /a/x && ls /b/x\n'

    # What RUN sees beside its files is not in the image; a cache stays for the next build.
    as $user sh -c 'mkdir -p ctx/src; cd ctx; echo source >src/file; echo left-out >src/secret; echo src/secret >.dockerignore; printf hush >../token'
    as $user tee ctx/Dockerfile >/dev/null <<X
FROM $base AS builder
USER 0
RUN mkdir /artifacts && echo artifact >/artifacts/file
FROM $base
USER 0
ARG where=/from
RUN --mount=target=/ctx --mount=from=builder,source=/artifacts,target=\$where \\
    cat /ctx/src/file \$where/file >/seen; ls -A /ctx /ctx/src /from >>/seen; ! touch /ctx/x /from/x 2>/dev/null
RUN --mount=type=bind,source=src/file,target=/one,rw echo more >>/one && cat /one >>/seen
RUN --mount=type=cache,target=/kept,mode=0700 --mount=type=tmpfs,target=/memory <<E
    touch /memory/x
    echo x >>/kept/log; stat -c '%a %u' /kept >>/seen; wc -l </kept/log >/times
E
RUN --mount=type=secret,id=token --mount=type=secret,id=token,env=TOKEN --mount=type=secret,id=none \\
    cat /run/secrets/token >/told; echo "\$TOKEN" >>/told
RUN <<E
#!/bin/expr 40 +
E
X
    as $user sed -i 's|^#!/bin/expr 40 +$|#!/bin/sh\necho "$0" >>/seen|' ctx/Dockerfile
    ok as $user skiff build -t mounts --secret id=token,src=token ctx
    ok as $user skiff run --root mounts sh -c 'cat /seen /times /told; ls -d /ctx /from /one /kept /memory /run/secrets /.skiff-build 2>&1 | wc -l'
    equal "$out" 'source
artifact
/ctx:
.dockerignore
Dockerfile
src

/ctx/src:
file

/from:
file
source
more
700 0
/.skiff-build/script
1
hushhush
7' "$user: mounts"
    as $user sh -c 'sed -i "s/touch .memory.x/touch \/memory\/y/" ctx/Dockerfile; echo changed >src'
    ok as $user skiff build -t mounts --secret id=token,src=token ctx
    ok as $user skiff run --root mounts cat /times
    equal "$out" 2 "$user: the cache's second time"
    as $user sh -c 'echo other >ctx/src/file'
    ok as $user skiff build -t mounts --secret id=token,src=token ctx
    has "$err" '/artifacts/file (cached)'
    ok as $user skiff run --root mounts head -1 /seen
    equal "$out" other "$user: a mounted file that has changed"
    fails 125 as $user skiff build -t bad -f - ctx <<X
FROM $base
RUN --mount=type=secret,id=nosuch,required true
X
    has "$err" 'hint: skiff build --secret id=nosuch,src=FILE gives it'
    # A file of another server, by its sum: fetched once, and not at all for what is cached.
    install -d $images_tmp/www && echo fetched >$images_tmp/www/file.txt && tar -C $images_tmp/www -cf $images_tmp/www/one.tar file.txt
    python3 -m http.server --bind 127.0.0.1 -d $images_tmp/www 5080 >$images_tmp/www.log 2>&1 3>&- &
    server=$!
    eventually 10 python3 -c 'import socket; socket.create_connection(("127.0.0.1", 5080))'
    sum() { sha256sum "$images_tmp/www/$1" | cut -d' ' -f1; }
    as $user tee ctx/Dockerfile >/dev/null <<X
FROM $base
USER 0
ADD --checksum=sha256:$(sum file.txt) http://127.0.0.1:5080/file.txt?x=/y /into/
ADD --chmod=644 --checksum=sha256:$(sum one.tar) http://127.0.0.1:5080/one.tar /named
RUN stat -c '%n %a %u' /into/file.txt /named >/seen
X
    ok as $user skiff build -t added ctx
    ok as $user skiff run --root added cat /seen /into/file.txt
    equal "$out" '/into/file.txt 600 0
/named 644 0
fetched' "$user: files of another server"
    as $user sed -i "s/$(sum one.tar)/$(printf %064d 0)/" ctx/Dockerfile
    fails 125 as $user skiff build -t bad ctx
    has "$err" 'ctx/Dockerfile:4: ADD: http://127.0.0.1:5080/one.tar: the file has the digest sha256:'
    kill $server && wait $server 2>/dev/null || true
    as $user sed -i "s/$(printf %064d 0)/$(sum one.tar)/" ctx/Dockerfile
    as $user sh -c 'echo "RUN true" >>ctx/Dockerfile'
    ok as $user skiff build -t added ctx
    has "$err" '/named (cached)'
    ok as $user skiff build -q --prune
    equal "$(find /home/$user/.local/share/skiff/build/mounts -mindepth 1)" '' "$user: mounts after --prune"
done
