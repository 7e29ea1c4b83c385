# As an ordinary user: a root file system with OpenSSH and Open MPI in directory $1, of the files of this machine's packages.
set -euo pipefail
root=$1
mkdir -p "$root"/{proc,sys,dev,tmp,run,home,etc,var/tmp,usr/bin,usr/sbin,usr/lib,usr/lib64}
for dir in bin sbin lib lib64; do ln -s usr/$dir "$root/$dir"; done
no=(--no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances)
mapfile -t packages < <(apt-cache depends --recurse --installed "${no[@]}" dash bash coreutils sed openssh-server openssh-client openmpi-bin |
    grep -o '^[a-z0-9][^ ]*' | sort -u)
# Names that no package has are of what packages provide; what only root may read is no loss.
{ dpkg-query -L "${packages[@]}" 2>/dev/null || true; } | sort -u | grep -vE '^/(usr/share/(doc|man|locale|info|lintian|perl)|var|boot|usr/lib/modules)' |
    while read -r path; do if [ -r "$path" ] && [ ! -d "$path" ]; then echo "$path"; fi; done >"$root/tmp/files"
{ cat "$root/tmp/files"; echo /etc/ld.so.cache; echo /usr/bin/sh; find /etc/alternatives; find /usr/bin -lname '/etc/alternatives/*'; } |
    tar -C / -c --no-recursion -T - --transform='s,^\(bin\|sbin\|lib\|lib64\)/,usr/\1/,' 2>/dev/null | tar -C "$root" -x
printf 'root:x:0:0::/root:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
