# bed: --internet
# `skiff build` of definitions that begin with `Bootstrap: debootstrap`: with the helper by mmdebstrap (alice), without it by debootstrap (bob). What makes
# the root has nothing of the host's but its programs, and takes no package without a signature. (Needs the network, as env-apt does.)
# time: 900
# takes: 120
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
make_store
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null
suite=$(. /etc/os-release; echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$suite //p" | head -1)
[ -n "$mirror" ] || skip "no mirror of $suite is in the lists of apt"
for program in /usr/bin/mmdebstrap /usr/sbin/debootstrap; do [ -x $program ] || skip "$program is not installed: make deps"; done

definition() { # SUITE MIRROR [LINE]...
    printf '%s\n' 'Bootstrap: debootstrap' "OSVersion: $1" "MirrorURL: $2" "${@:3}"
}
hide() { mv "$1" "$1.hidden"; }
show() { mv "$1.hidden" "$1"; }
cleanup() {
    for hidden in /usr/bin/mmdebstrap /usr/sbin/debootstrap /usr/share/keyrings/debian-archive-keyring.gpg; do
        [ ! -e $hidden.hidden ] || show $hidden
    done
    images_cleanup
}
trap cleanup EXIT

for user in alice bob; do
    more='apt-get update -q -o Acquire::Languages=none && apt-get install -q -y --no-install-recommends dc'
    # Once is enough for what a step of its own does.
    if [ $user = bob ]; then hide /usr/bin/mmdebstrap && more=true; fi
    as $user mkdir -p work
    definition "$suite" "$mirror" 'Include: hello' '%post' "    $more" '%runscript' '    hello' | as $user tee work/small.def >/dev/null
    limit=240 ok as $user skiff build work/small.def
    has "$err" "step 2/8: debootstrap $suite hello"
    ok as $user skiff run small
    equal "$out" 'Hello, world!' "$user: what it has"
    [ $user = bob ] || { ok as $user skiff run --entrypoint= small dc -e '6 7 *p' && equal "$out" 42; }
    # It is whole and its own: packages are as they should be, owners are those of packages, and nothing says where it was made.
    ok as $user skiff run --root --writable --entrypoint= small sh -ec 'dpkg --audit; apt-get -qq check; stat -c "%U:%G %a" /etc/shadow /var/mail /usr/bin/passwd /
        if [ -e /target ]; then ls -R /target; fi; ! grep -r trusted /etc/apt'
    equal "$out" 'root:shadow 640
root:mail 2775
root:root 4755
root:root 755'
    equal "$err" ''
    # Cached by its text, and not for who does not want that.
    as $user sh -c 'echo "%help
        x" >>work/small.def'
    ok as $user skiff build work/small.def
    has "$err" "debootstrap $suite hello (cached)"

    # Nobody can have signed this.
    mkdir -p $images_tmp/www/dists/$suite
    printf '%s\n' 'Origin: Debian' "Suite: $suite" "Codename: $suite" 'Components: main' "Architectures: $(dpkg --print-architecture)" >$images_tmp/www/dists/$suite/Release
    python3 -m http.server --bind 127.0.0.1 -d $images_tmp/www 5081 >$images_tmp/www.log 2>&1 3>&- &
    server=$!
    eventually 10 python3 -c 'import socket; socket.create_connection(("127.0.0.1", 5081))'
    definition "$suite" http://127.0.0.1:5081 | as $user tee work/unsigned.def >/dev/null
    try as $user skiff build work/unsigned.def
    [ "$code" != 0 ] && [ "$code" != 125 ] || fail "exit code $code: $err"
    has "$err" "work/unsigned.def:1: debootstrap: exit code"
    asked=$(grep -c Release $images_tmp/www.log || true)
    [ "$asked" -gt 0 ] || fail 'nobody has asked'
    # A mirror that is none of Debian's is asked by the proxy that is given, as RUN would.
    try as $user skiff build --build-arg http_proxy=http://127.0.0.1:5082 work/unsigned.def
    [ "$code" != 0 ] || fail 'it went by no proxy'
    equal "$(grep -c Release $images_tmp/www.log)" "$asked" 'asked by the proxy'
    kill $server && wait $server 2>/dev/null || true
done
show /usr/bin/mmdebstrap

# A definition is anybody's text.
refused() { # LINE MESSAGE DEFINITION-WORDS...
    definition "${@:3}" | as alice tee work/bad.def >/dev/null
    fails 125 as alice skiff build work/bad.def
    has "$err" "work/bad.def:$1: $2"
    has "$err" 'hint: '
}
refused 2 'OSVersion: "--no-check-gpg" is not the name of a release' --no-check-gpg "$mirror"
refused 3 'MirrorURL: "file:///home/alice" is not the address of a mirror' "$suite" file:///home/alice
refused 3 'MirrorURL: "deb [trusted=yes] ' "$suite" "deb [trusted=yes] $mirror $suite main"
refused 4 'Include: "--allow-unauthenticated" is not the name of a package' "$suite" "$mirror" 'Include: hello --allow-unauthenticated'
refused 4 'Include: "/etc/shadow" is not' "$suite" "$mirror" 'Include: /etc/shadow'
refused 4 'unknown header key keyring' "$suite" "$mirror" 'Keyring: /tmp/mine.gpg'
# Hosts and users that lack what it takes.
definition "$suite" "$mirror" 'Include: dc' | as alice tee work/other.def >/dev/null
hide /usr/share/keyrings/debian-archive-keyring.gpg
fails 125 as alice skiff build work/other.def
has "$err" 'no signature could be checked'
show /usr/share/keyrings/debian-archive-keyring.gpg
hide /usr/bin/mmdebstrap && hide /usr/sbin/debootstrap
fails 125 as alice skiff build work/other.def
has "$err" 'mmdebstrap and debootstrap are not installed'
has "$err" 'apt-get install mmdebstrap, or debootstrap'
show /usr/bin/mmdebstrap && show /usr/sbin/debootstrap
