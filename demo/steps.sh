#!/bin/bash
# Runs as root on the login node of the test bed; what alice and bob do, they do by ssh. Each step is told in one line.
set -euo pipefail
scratch=$1
package=$(cd "$scratch" && ls hello_*.deb)
cp "$scratch/$package" /shared/
ssh_as() { ssh -q -F "$SKIFF_TESTBED_SSH_CONFIG" "$1@ctl" "$2"; }
step() { printf '\n\e[1m%s\e[0m\n' "$1"; }
show() { printf '   %s\n' "$@"; }
fail() { printf 'demo: %s\n' "$1" >&2; exit 1; }
begun=$EPOCHREALTIME

step "1. A login node and two nodes with a real Slurm are up:"
show "$(sinfo -h -o '%D nodes %t: %N')"

step "2. alice logs in by ssh and is root of her own machine, alone on it:"
show "$(ssh_as alice 'id -un; echo processes: $(ps -e --no-headers | wc -l)' | paste -sd' ')"
ssh_as alice 'cat /etc/munge/munge.key' >/dev/null 2>&1 && fail "a secret of the host can be read"

step "3. She installs a package with apt, as on any Debian:"
ssh_as alice "DEBIAN_FRONTEND=noninteractive apt-get install -y /shared/$package" >"$scratch/apt.log" 2>&1 ||
    { cat "$scratch/apt.log" >&2; fail "apt-get install"; }
show "$(ssh_as alice 'hello; dpkg-query -W hello' | paste -sd' ')"

step "4. She builds a library into /usr/local/lib, and a program that needs it:"
ssh_as alice 'set -e; mkdir -p work; cd work
cat >greet.c <<C
#include <stdio.h>
#include <unistd.h>
void greet(void) { char host[64]; gethostname(host, 64); printf("greetings from %s, uid %d\n", host, getuid()); }
C
echo "void greet(void); int main(void) { greet(); }" >main.c
cc -shared -fPIC -o /usr/local/lib/libgreet.so greet.c
cc -o greet main.c -L/usr/local/lib -lgreet
ldconfig'
show "$(ssh_as alice 'ls -l /usr/local/lib/libgreet.so')"

step "5. She runs it on both nodes with plain srun; library and package go along, and she is herself there:"
ssh_as alice 'cd work; srun -N2 ./greet; srun -N2 hello --greeting="a package on every node"' | sed 's/^/   /'

step "6. Neither the host nor bob has noticed:"
[ ! -e /usr/local/lib/libgreet.so ] || fail "the host has her library"
! dpkg-query -W hello >/dev/null 2>&1 || [ "$(dpkg-query -W -f '${db:Status-Status}' hello)" != installed ] || show "(hello was on this host before)"
ssh_as bob '[ ! -e /usr/local/lib/libgreet.so ] && ! ls /home/alice' >/dev/null 2>&1 || fail "bob sees something of it"
show "no libgreet.so on the host, none for bob, and bob cannot see her home"

step "7. The nodes are as before:"
for n in n1 n2; do
    for _ in $(seq 50); do
        left=$(on $n sh -c 'ls /run/skiff/jobs 2>&-; pgrep -u alice -l; grep " - overlay " /proc/self/mountinfo; true')
        [ -n "$left" ] || break
        sleep 0.1
    done
    [ -z "$left" ] || fail "left on $n: $left"
    show "$n: no process, no mount, no directory of the jobs"
done
awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "\ndone in %.1f s\n", b - a }'
