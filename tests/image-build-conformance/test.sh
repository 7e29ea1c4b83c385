# What BuildKit's own tests of Dockerfiles state, as facts: each case is a Dockerfile that looks by itself whether they hold, or that is
# refused. docs/build.md lists what differs. With the helper (alice), who has subordinate ids; bob's builds are those of image-build.
# takes: 60
# time: 400
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
skeleton "$root"
for command in $(busybox --list); do [ -e "$root/bin/$command" ] || ln -s busybox "$root/bin/$command"; done
echo 'daemon:x:1:1:::/bin/false' >>"$root/etc/passwd"
printf 'daemon:x:1:\nnobody:x:99:\n' >>"$root/etc/group"
push box:1 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/bin"]}'
base=$registry/box:1

# The files of all contexts, which their owner alone may read.
as alice sh -euc 'umask 077; mkdir -p ctx/sub/dir1/dir2 ctx/files ctx/foo1/foo2 ctx/links/sub ctx/bar; cd ctx
    for file in foo bar/sub foo.go bar.go sub/dir1/dir2/foo files/foo.go foo1/foo2/bar foo1/foo2/baz links/sub/foo links/sub/baz links/sub/lfile links/sub/subfile links/bar; do echo "$file" >$file; done
    ln -s bar links/foo; ln -s sub links/link; ln -s subfile links/sub/l0; ln -s second links/sub/l1; ln -s baz links/sub/second; ln -s ../bar links/sub/up
    mkdir png; for file in a.png a.txt a.jpeg; do echo $file >png/$file; done
    mkdir tar; echo in-tar >tar/member; tar -C tar -cf one.tar member; tar -C tar -czf one.tar.gz member; cp tar/member tar/other; tar -C tar -cf two.tar other
    ln -s ../tmp/target tar/symlink; tar -C tar -cf link.tar symlink
    printf "#!/bin/sh\necho -n \$my_arg \$* >/out\n" >script.sh; chmod 700 script.sh'

names=0
# passes NAME [OPTION...]: builds the Dockerfile on standard input, whose commands fail where a fact does not hold.
passes() {
    local name=$1
    shift
    sed "s|@BASE@|$base|g" >"$images_tmp/Dockerfile"
    names=$((names + 1))
    ok as alice skiff build -q -t case:${name//[^a-z0-9]/-} "$@" -f - ctx <"$images_tmp/Dockerfile"
}
# refused NAME PART [OPTION...]: the same of one that is refused before anything is run, with these words.
refused() {
    local name=$1 part=$2
    shift 2
    sed "s|@BASE@|$base|g" >"$images_tmp/Dockerfile"
    names=$((names + 1))
    fails 125 as alice skiff build -q -t case:${name//[^a-z0-9]/-} "$@" -f - ctx <"$images_tmp/Dockerfile"
    has "$err" "$part" "$name"
}

# COPY and ADD: destinations, wildcards, links.
passes copy-destinations <<'X'
FROM @BASE@
ENV empty=""
COPY foo $empty
COPY foo /sample/
COPY foo /foo2
WORKDIR /var/www
COPY --link foo .
COPY --link foo.go $empty
ENV FROM=foo
COPY $FROM baz
COPY foo $FROM.$FROM
RUN cmp /foo /sample/foo && cmp /foo /foo2 && cmp /foo /var/www/foo && test -f /var/www/foo.go && cmp baz /foo && test -f foo.foo
COPY sub /twice
COPY sub /twice
COPY files/foo.go /dest/foo.go
COPY files/foo.go /dest/foo.go
COPY files /dest
RUN test -f /twice/dir1/dir2/foo && [ "$(cat /dest/foo.go)" = files/foo.go ]
X
passes copy-wildcards <<'X'
FROM @BASE@
COPY *.go /gofiles/
COPY f*.go foo2.go
COPY sub/* /subdest/
COPY sub/*/dir2/foo /subdest2/
COPY sub/*/dir2/foo /subdest3/bar
COPY foo nomatch* /some/
COPY sub/dir1/ subdest4
COPY sub/dir1/. subdest5
COPY sub/dir1 subdest6
RUN test -f /gofiles/foo.go && test -f /gofiles/bar.go && [ "$(cat foo2.go)" = foo.go ] && test -f /subdest/dir2/foo && test -f /subdest2/foo && test -f /subdest3/bar && test -f /some/foo
RUN for n in 4 5 6; do test -f /subdest$n/dir2/foo || exit 1; done
X
passes copy-links <<'X'
FROM @BASE@ AS build
RUN mkdir -p /out/sub && ln -s /out/sub /sub && ln -s out/sub /sub2 && echo data >/sub/foo
FROM @BASE@
COPY links/link/foo /through
COPY links/foo /first
COPY links/sub/l* /all/
COPY links/sub /whole
COPY links/sub/up /up
COPY --from=build /sub/foo /f1
COPY --from=build /sub2/foo /f2
RUN [ "$(cat /through)" = links/sub/foo ] && [ "$(cat /first)" = links/bar ] && [ ! -L /first ]
RUN [ "$(cat /all/l0 /all/l1 /all/lfile | tr '\n' ' ')" = 'links/sub/subfile links/sub/baz links/sub/lfile ' ] && [ "$(readlink /whole/l0)" = subfile ] && [ "$(cat /up)" = links/bar ] && [ "$(cat /f1 /f2 | tr -d '\n')" = datadata ]
X
passes symlink-destination <<'X'
FROM @BASE@
ADD link.tar /
COPY foo /symlink/
RUN [ "$(cat /tmp/target/foo)" = foo ]
X
# Owners and modes.
passes copy-owners --build-arg group=nobody <<'X'
FROM @BASE@ AS source
RUN touch /file && chown 100:200 /file && mkdir -p /dir/subdir && touch /dir/subdir/nested && chown 100:200 /dir && chown 101:201 /dir/subdir && chown 102:202 /dir/subdir/nested
FROM @BASE@ AS base
RUN mkdir -p /old/oldsub && touch /old/oldfile && chown 500:600 /old && chown 501:601 /old/oldsub /old/oldfile
FROM base
COPY --from=source /file .
COPY --from=source /dir /dir
COPY --from=source /dir/. /old
RUN [ "$(stat -c %u:%g /file /dir /dir/subdir /dir/subdir/nested /old /old/oldsub /old/oldfile /old/subdir /old/subdir/nested | tr '\n' ' ')" = '100:200 0:0 101:201 102:202 500:600 501:601 501:601 101:201 102:202 ' ]
FROM base
COPY --from=source --chown=300:400 /file .
COPY --from=source --chown=300:400 /dir /dir
COPY --from=source --chown=300:400 /dir/. /old
RUN [ "$(stat -c %u:%g /file /dir /dir/subdir /dir/subdir/nested /old /old/oldsub /old/oldfile /old/subdir /old/subdir/nested | tr '\n' ' ')" = '300:400 300:400 300:400 300:400 500:600 501:601 501:601 300:400 300:400 ' ]
ENV owner=1000
ARG group
COPY --chown=daemon foo /
COPY --chown=1000:nobody bar /baz
COPY --chown=${owner}:${group} foo /foobis
ADD --chown=${owner}:${group} foo /added
ADD --chown=100:200 one.tar /tar/
RUN [ "$(stat -c '%u %g' /foo /baz /baz/sub /foobis /added /tar /tar/member | tr '\n' ' ')" = '1 1 1000 99 1000 99 1000 99 1000 99 100 200 100 200 ' ]
X
passes copy-modes --build-arg mode=755 <<'X'
FROM @BASE@
ARG mode
COPY --chmod=0644 foo /
COPY --chmod=777 bar /baz
COPY --chmod=0 foo /none
COPY --chmod=${mode} foo /given
COPY --chmod=777 <<EOF /all
text
EOF
COPY --chmod=0413 <<EOF /odd
text
EOF
RUN [ "$(stat -c %a /foo /baz/sub /none /given /all /odd | tr '\n' ' ')" = '644 777 0 755 777 413 ' ]
X
passes copy-modes-in-words <<'X'
FROM @BASE@ AS base
RUN mkdir -p /in/dirs/d && touch /in/file && chmod 666 /in/file && chmod 124 /in/dirs/d
FROM base
COPY --from=base --chmod=go-w /in/file /f1
COPY --from=base --chmod=u=rw,g=r,o=r /in/file /f2
COPY --from=base --chmod=a+X /in/file /f3
COPY --from=base --chmod=go-w /in/dirs /d1
COPY --from=base --chmod=u+rw,g+r,o-x,o+w /in/dirs /d2
COPY --from=base --chmod=a+X /in/dirs /d3
RUN [ "$(stat -c %a /f1 /f2 /f3 /d1/d /d2/d /d3/d | tr '\n' ' ')" = '644 644 666 104 766 135 ' ]
X
for mode in 64a 10000 u+q; do refused "mode-$mode" "--chmod=$mode" <<<"FROM scratch
COPY --chmod=$mode foo /"; done
# --parents and --exclude.
passes copy-parents <<'X'
FROM @BASE@ AS base
WORKDIR /test
RUN mkdir -p a/b/c/d/e a/b2/c/d/e a/b/c2/d/e a/b/c2/d/e2 && touch a/b/c/d/foo a/b/c/d/e/bay a/b2/c/d/e/bar a/b/c2/d/e/baz a/b/c2/d/e2/baz && chmod 700 a/b
FROM @BASE@
COPY --parents foo1/foo2/bar /
WORKDIR /w
COPY --parents foo1/foo2/ba* .
RUN test -f /foo1/foo2/bar && test ! -e /foo1/foo2/baz && test -f /w/foo1/foo2/bar && test -f /w/foo1/foo2/baz && [ "$(stat -c %a:%u /foo1 /w/foo1/foo2 | tr '\n' ' ')" = '700:0 700:0 ' ]
COPY --from=base --parents /test/a/b/./c/d /o1/
COPY --from=base --parents /test/a/b/c/d/. /o2/
COPY --from=base --parents ./test/a/b/c/d /o3/
COPY --from=base --parents /test/a/./b/./c /o4/
COPY --from=base --parents /test/a/./*/c /o5/
COPY --from=base --parents /test/a/b*/./c/**/e /o6/
COPY --from=base --parents /test/a/b/c*/./d/**/baz /test/a/b*/./c/**/bar /o7/
COPY --from=base --parents /test/a/b/c/d/foo /test/a/./b/c/d/foo /o8/
RUN [ "$(stat -c %a /o8/test/a/b /o8/b | tr '\n' ' ')" = '700 700 ' ]
RUN test -d /o1/c/d/e && test -f /o1/c/d/foo && test ! -e /o1/a && test ! -e /o1/e
RUN for o in /o2 /o3; do test -d $o/test/a/b/c/d/e && test -f $o/test/a/b/c/d/foo || exit 1; done; [ "$(stat -c %a /o2/test/a/b)" = 700 ]
RUN test -f /o4/b/c/d/foo && test -d /o5/b/c/d/e && test -f /o5/b2/c/d/e/bar && test -f /o6/c/d/e/bay && test -f /o6/c/d/e/bar && test ! -e /o6/c/d/foo
RUN test -f /o7/d/e/baz && test ! -e /o7/d/e/bay && test -f /o7/d/e2/baz && test -f /o7/c/d/e/bar
X
refused parents-missing 'no such file' <<<'FROM scratch
COPY --parents foo1/nosuch /'
passes copy-exclude <<'X'
FROM @BASE@ AS one
COPY --exclude=*/*.png --exclude=*/*.jpeg . /1
ADD --exclude=*.png png/ /2/
COPY --exclude=*.txt --exclude=*.jpeg pn* /3/
ADD --exclude=* png /4
ARG what=*.txt
COPY --exclude=$what png/a.* /5/
COPY --exclude=png/* --exclude=!png/a.txt --parents png foo /6/
FROM @BASE@
COPY --from=one --exclude=a.txt --exclude=a.png /1/png /2 /7/
COPY --from=one / /one
RUN test -f /one/1/png/a.txt && test ! -e /one/1/png/a.png && test ! -e /one/1/png/a.jpeg && test -f /one/1/foo && [ "$(ls /one/2 | tr '\n' ' ')" = 'a.jpeg a.txt ' ] && [ "$(ls /one/3)" = a.png ]
RUN [ -d /one/4 ] && [ -z "$(ls /one/4)" ] && [ "$(ls /one/5 | tr '\n' ' ')" = 'a.jpeg a.png ' ] && [ "$(ls /one/6/png /one/6/foo | tr '\n' ' ')" = '/one/6/foo  /one/6/png: a.txt ' ] && [ "$(ls /7)" = a.jpeg ]
X
# Archives.
passes add-archives <<'X'
FROM @BASE@
ADD one.tar /1/
ADD one.tar.gz /2/
ADD --unpack=false one.tar.gz /3/
COPY one.tar.gz /4/
ADD *.tar /5
ADD --exclude=one.tar o*.tar* /6/
RUN test -f /1/member && test -f /2/member && test -f /3/one.tar.gz && test -f /4/one.tar.gz && test -f /5/member && test -f /5/other && test -f /6/member && test ! -e /6/one.tar
X
# Arguments and variables.
passes args --build-arg tag=1 --build-arg FOO=bar <<X
ARG tag=nosuchtag
ARG FOO=\${FOO:?"custom error"}
ARG a1="foo bar" a2=box
ARG a3="\$a2-foo"
FROM $registry/\$a2:\${tag#x}
ARG a3 a4="123 456" a1 FOO EMPTY=
ARG UNSET
RUN [ "\$a1:\$a3:\$a4:\$FOO" = 'foo bar:box-foo:123 456:bar' ] && env | grep -q ^EMPTY= && ! env | grep -q ^UNSET=
ENV format foo%sbar
RUN [ "\$format" = 'foo%sbar' ]
X
refused args-required 'custom error' <<<'ARG FOO=${FOO:?"custom error"}
FROM scratch'
refused args-required-in-stage 'foo missing' <<<'FROM scratch
ARG FOO
ARG BAR=${FOO:?"foo missing"}'
passes args-given --build-arg BAR=1 <<<'FROM scratch
ARG FOO
ARG BAR=${FOO:?"foo missing"}'
for given in 'def_val my_arg=d' 'override my_arg=ov'; do
    set --
    [[ $given == def_val* ]] || set -- --build-arg my_arg=override
    passes "args-trimmed-${given%% *}" "$@" <<X
FROM @BASE@
ARG my_arg
ENV my_arg "my_arg=\${my_arg:-def_val}"
ENV my_trimmed_arg "\${my_arg%%e*}"
COPY script.sh script.sh
RUN ./script.sh \$my_arg \$my_trimmed_arg
RUN [ "\$(cat /out)" = 'my_arg=${given%% *} my_arg=$given' ]
X
done
passes proxies --build-arg http_proxy=hp --build-arg NO_PROXY=np <<'X'
FROM @BASE@
RUN [ "$http_proxy:$NO_PROXY" = hp:np ]
X
for target in '' first; do
    passes "target-$target" ${target:+--target $target} <<X
FROM @BASE@ AS base
RUN [ -z "\$TARGETSTAGE" ]
ARG TARGETSTAGE
RUN [ "\$TARGETSTAGE" = '${target:-final}' ]
FROM base AS first
FROM base AS Final
X
done
# Commands.
passes commands <<'X'
FROM @BASE@
ENTRYPOINT ["/nosuch"]
RUN ["ls"]
RUN [ "$(id -u):$(id -g)" = 0:0 ]
WORKDIR /made
WORKDIR /
RUN test -d /made
RUN mkdir /mine && chown 7:8 /mine
WORKDIR /mine
RUN [ "$(stat -c %u:%g /mine)" = 7:8 ]
COPY foo /
FROM @BASE@
WORKDIR /deep
COPY --from=0 foo .
RUN test -f /deep/foo
X
for text in 'RUN ["echo", "hello"]this is invalid' 'RUN nosuchcommand'; do
    try as alice skiff build -q -t failed -f - ctx <<<"FROM $base
$text"
    [[ $code = 127 || $code = 2 || $code = 1 ]] || fail "$text: exit code $code"
done
passes entrypoint <<'X'
FROM @BASE@
ENTRYPOINT []random string
X
ok as alice skiff inspect case:entrypoint
equal "$(json "$out" "d['config']['config']['Entrypoint']")" "['/bin/sh', '-c', '[]random string']"
passes shell <<'X'
FROM @BASE@ AS below
CMD ["test"]
FROM below
SHELL ["ls"]
ENTRYPOINT my entrypoint
X
ok as alice skiff inspect case:shell
equal "$(json "$out" "d['config']['config'].get('Cmd'), d['config']['config']['Entrypoint']")" "(None, ['ls', 'my entrypoint'])"
passes labels --label bar=baz <<'X'
FROM scratch
ARG PORTS="3000 4000/udp"
EXPOSE $PORTS
EXPOSE 5000
LABEL foo=bar
X
ok as alice skiff inspect case:labels
equal "$(json "$out" "sorted(d['config']['config']['ExposedPorts']), d['config']['config']['Labels']['foo'], d['config']['config']['Labels']['bar']")" "(['3000/tcp', '4000/udp', '5000/tcp'], 'bar', 'baz')"
passes users <<'X'
FROM @BASE@
RUN echo 'own:x:1001:1001::/bin:/bin/false' >>/etc/passwd && echo 'own:x:1001:' >>/etc/group
USER own
RUN [ "$(id -u):$(id -g)/$(id -un):$(id -gn)/$(id -G)" = 1001:1001/own:own/1001 ]
USER root
RUN echo 'more:x:1002:own' >>/etc/group
USER own
RUN [ "$(id -u):$(id -g)/$(id -G)" = '1001:1001/1001 1002' ]
USER 1001
RUN [ "$(id -u):$(id -g)/$(id -G)" = '1001:1001/1001 1002' ]
USER own:own
RUN [ "$(id -G)" = 1001 ]
USER 1001:more
RUN [ "$(id -u):$(id -g)/$(id -G)" = 1001:1002/1002 ]
USER own:1002
RUN [ "$(id -u):$(id -g)/$(id -G)" = 1001:1002/1002 ]
USER 1042:1043
RUN [ "$(id -u):$(id -g)/$(id -G)" = 1042:1043/1043 ]
USER daemon
WORKDIR /daemons
RUN [ "$(id -un)" = daemon ] && [ "$(stat -c %U:%G /daemons)" = daemon:daemon ]
X
# Here-documents.
passes heredocs <<'X'
FROM @BASE@
WORKDIR /dest
COPY <<EOF single
single file
EOF
COPY <<EOF <<EOF2 double/
first file
EOF
second file
EOF2
COPY <<EOF slash1
\
EOF
COPY <<EOF slash2
\\
EOF
COPY <<EOF slash3
\$
EOF
COPY <<"EOF" raw1
\
EOF
COPY <<"EOF" raw3
\$
EOF
RUN [ "$(cat single double/EOF double/EOF2 | tr '\n' ,)" = 'single file,first file,second file,' ] && [ "$(od -An -c slash1 | tr -d ' ')" = '\n' ] && [ "$(cat slash2)" = '\' ] && [ "$(cat slash3)" = '$' ] && [ "$(cat raw1)" = '\' ] && [ "$(cat raw3)" = '\$' ]
SHELL ["/bin/awk"]
RUN <<EOF
BEGIN {
	print "by awk" > "/awk"
}
EOF
SHELL ["/bin/sh", "-c"]
RUN <<EOF
#!/bin/awk -f
BEGIN {
	print "by itself" > "/itself"
}
EOF
RUN [ "$(cat /awk /itself | tr '\n' ,)" = 'by awk,by itself,' ]
RUN cat <<EOF1 | tr '[:upper:]' '[:lower:]' > ./out1; \
	cat <<EOF2 | tr '[:lower:]' '[:upper:]' > ./out2
hello WORLD
EOF1
HELLO world
EOF2
RUN <<EOF 3<<IN1 4<<IN2 sh
tr '[:upper:]' '[:lower:]' <&3 >fd3
tr '[:lower:]' '[:upper:]' <&4 >fd4
EOF
hello WORLD
IN1
HELLO world
IN2
RUN [ "$(cat out1 out2 fd3 fd4 | tr '\n' ,)" = 'hello world,HELLO WORLD,hello world,HELLO WORLD,' ]
COPY <<EOF tab
	foo
EOF
COPY <<-EOF notab
	bar
EOF
RUN <<-EOF sh >untabbed
	echo "
	bar"
EOF
RUN [ "$(cat tab)" = "$(printf '\tfoo')" ] && [ "$(cat notab)" = bar ] && [ "$(tail -n1 untabbed)" = bar ]
ARG name=world
COPY <<EOF c1
Hello '${name}' "${name}"!
EOF
COPY <<'EOF' c2
Hello ${name}!
EOF
RUN <<EOF
name="new world"
echo "Hello ${name}!" >r2
EOF
RUN [ "$(cat c1)" = "Hello 'world' \"world\"!" ] && [ "$(cat c2)" = 'Hello ${name}!' ] && [ "$(cat r2)" = 'Hello new world!' ]
X
# Mounts.
passes mounts <<'X'
FROM @BASE@ AS build
RUN mkdir out && echo foo >out/foo
FROM @BASE@
RUN --mount=target=/context [ "$(cat /context/foo)" = foo ]
RUN --mount=target=/mytmp,type=tmpfs touch /mytmp/foo
RUN [ ! -f /mytmp/foo ]
RUN --mount=type=tmpfs,target=/dev/shm,size=128m mount | grep /dev/shm | grep -q size=131072k
RUN --mount=from=build,src=out,target=/out,rw touch /out/bar && test -f /out/foo
RUN --mount=type=cache,target=/mycache touch /mycache/foo
RUN --mount=type=cache,target=/mycache2 [ ! -f /mycache2/foo ]
ENV SOME_PATH=/mycache MNT_ID=named
RUN --mount=type=cache,target=$SOME_PATH [ -f $SOME_PATH/foo ]
RUN --mount=type=cache,id=named,target=/abc touch /abc/foo
RUN --mount=type=cache,id=$MNT_ID,target=/cba [ -f /cba/foo ]
RUN --mount=type=cache,target=/owned,uid=1001,gid=1002,mode=0751 [ "$(stat -c '%u %g %f' /owned)" = '1001 1002 41e9' ]
RUN --mount=source=.,target=/tmp/test --mount=source=foo.go,target=/tmp/b.txt [ "$(cat /tmp/test/foo /tmp/b.txt | tr '\n' ,)" = foo,foo.go, ]
RUN --mount=type=secret,required=false,target=/mysecret [ ! -e /mysecret ]
RUN --mount=type=ssh [ -z "$SSH_AUTH_SOCK" ]
X
refused mount-from 'variables' <<<'FROM scratch
RUN --mount=from=$ttt,type=bind,target=/tmp ls'
for mount in '--mont=target=/x,type=tmpfs' '--mount=typ=tmpfs' '--mount=type=tmp,target=/x' '--mount=type=ssh,id=a,required=true'; do
    refused "mount-$mount" 'standard input:2' <<<"FROM @BASE@
RUN $mount true"
done
# Stages.
passes stages --target Stage1 <<'X'
FROM scratch AS STAge0
COPY foo bar
FROM scratch AS staGE1
COPY --from=staGE0 bar baz
COPY --from=@BASE@ /etc/passwd test
FROM scratch
COPY nosuch /
X
refused stages-order 'not before this one' <<<'FROM scratch AS target
COPY --from=build / /out
FROM scratch AS build
FROM target'
refused stages-none 'no FROM' <<<'ARG foo=bar'
refused copy-from-argument 'variables' <<<'FROM scratch
COPY --from=$FOO . .'
refused instruction 'no such instruction' <<<'FROM scratch
FNTRYPOINT ["/bin/sh"]'
refused target 'no stage of this name' --target nosuch <<<'FROM scratch AS one'
passes onbuild <<'X'
FROM @BASE@ AS src
RUN mkdir -p /in && echo -n 12 >/in/file
FROM @BASE@ AS base
ONBUILD RUN mkdir -p /out && echo -n 11 >>/out/foo
ONBUILD COPY --from=src /in/file /out/copied
ONBUILD RUN <<EOF
echo here >/here
EOF
FROM base AS mid
RUN [ "$(cat /out/foo)" = 11 ] && [ "$(cat /out/copied)" = 12 ] && [ "$(cat /here)" = here ] && rm /out/foo
FROM mid
RUN [ ! -e /out/foo ]
X
# The cache knows files by content, and what a step that is mounted has.
as alice sh -euc 'mkdir wild; cd wild; echo 1 >foo1; echo 2 >foo2; echo 3 >bar'
unique() {
    ok as alice skiff build -q -t unique -f - wild <<X
FROM $base
COPY foo* files/
RUN cat /proc/sys/kernel/random/uuid >/unique
COPY bar files/
X
    ok as alice skiff run unique cat /unique
}
unique && first=$out
as alice sh -c 'echo changed >wild/bar'
unique && equal "$out" "$first" 'a file that is copied later'
as alice sh -c 'echo changed >wild/foo2'
unique && [ "$out" != "$first" ] || fail 'a file that a wildcard means'
# Names of files that are read by themselves.
as alice sh -euc 'mkdir lower linked; echo "FROM scratch" >lower/dockerfile; echo "FROM scratch" >linked/Dockerfile.web; ln -s Dockerfile.web linked/Dockerfile'
ok as alice skiff build -q lower
ok as alice skiff build -q linked
echo "cases: $names"
as alice rm -rf ctx wild lower linked
