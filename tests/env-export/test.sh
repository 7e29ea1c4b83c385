# An environment as one file: exported by alice while she works in it, imported by bob, who has no helper, and by herself; over an image;
# and files that are damaged, cut off, or something else.
# takes: 15
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
as bob mkdir -p .config/skiff && echo 'helper = "none"' | as bob tee .config/skiff/config.toml >/dev/null

ok as alice skiff env create dev
inside alice dev 'printf "#!/bin/sh\necho tool of \$(cat /opt/data/who)\n" >/usr/local/bin/mytool; chmod 755 /usr/local/bin/mytool
    mkdir -p /opt/data; echo alice >/opt/data/who; ln /opt/data/who /opt/data/linked; truncate -s 1M /opt/data/hole
    chown 12:34 /opt/data/linked; rm /usr/bin/tac; mkfifo /opt/fifo; echo n >"/opt/new
line"; python3 -c "import os
path = \"/opt\"
while len(path) < 3840: os.mkdir(path := path + \"/\" + \"p\" * 200)
open(path + \"/\" + \"f\" * (4094 - len(path)), \"w\").write(\"far\")"
    nohup sh -c "while :; do echo line; done" >/opt/data/log 2>&1 & sleep 0.2
    python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\"/opt/socket\")"'
before=$(as alice skiff env exec dev -- sh -c 'cd /opt && find . ! -name log ! -name socket -printf "%p %y %m %U:%G %s %n %l\n" | sort')

# It goes on being used. What cannot be taken along is named.
fits as alice skiff env export dev shared.skiff --json
equal "$(json "$out" 'd["skipped"]')" "['opt/socket']"
equal "$(json "$out" 'd["bytes"]')" "$(stat -c %s /home/alice/shared.skiff)"
# It has what inside only root may read.
equal "$(stat -c %a /home/alice/shared.skiff)" 600
ok as alice skiff env stop dev
fails 125 as alice skiff env export dev shared.skiff
has "$err" 'shared.skiff: file exists'
fails 125 as alice skiff env export nosuch x.skiff
fails 125 as alice skiff env export dev /proc/x.skiff
equal "$(as alice sh -c 'ls -A | grep -c "^\.shared\|x.skiff"; true')" 0 'nothing half-made stays'

# Elsewhere: another user, without the helper. The name is the one that it had.
install -m 644 /home/alice/shared.skiff /shared/dev.skiff
ok as bob skiff env import /shared/dev.skiff
equal "$out$err" ''
ok as bob skiff env exec dev -- sh -c 'mytool; [ ! -e /usr/bin/tac ] && echo gone'
equal "$out" $'tool of alice\ngone'
fails 125 as bob skiff env import /shared/dev.skiff
has "$err" 'already exists'
has "$err" 'hint: `skiff env import /shared/dev.skiff NEW` gives it another name; `skiff env rm dev` removes'
ok as alice skiff env import shared.skiff again
# By a pipe; and never into a file of the name `-`.
ok as alice sh -c 'skiff env export again - >piped.skiff && skiff env import - piped <piped.skiff && skiff env rm piped && rm piped.skiff'
[ ! -e /home/alice/- ] || fail 'a file is called -'
fails 125 as alice skiff env export again - --json
has "$err" 'both go to standard output'
fails 125 as alice skiff import shared.skiff img
has "$err" 'an exported environment, not an image'
has "$err" '`skiff env import '
fails 125 as alice skiff env import debian:12 other
has "$err" 'hint: if an image is meant: `skiff env import image:debian:12`'
fails 125 as alice skiff env create x.toml
has "$err" 'must not end in .toml'
equal "$(as alice skiff env exec again -- sh -c 'cd /opt && find . ! -name log ! -name socket -printf "%p %y %m %U:%G %s %n %l\n" | sort')" "$before"
ok as alice srun -Q -N2 --environment=again mytool
equal "$out" $'tool of alice\ntool of alice'

# A disk that is full: it is said how much the environment may need, and nothing of it stays.
ok as alice skiff env create large
inside alice large 'head -c 3000000 /dev/urandom >/opt/random'
ok as alice skiff env export large large.skiff
mkdir /home/alice/small
mount -t tmpfs -o size=2m,mode=700,uid="$(id -u alice)",gid="$(id -g alice)" small /home/alice/small
fails 125 as alice env SKIFF_STATE=/home/alice/small skiff env import large.skiff
has "$err" ': its files take 2.9 MiB, and the disk for them has '
has "$err" 'B free'
equal "$(find /home/alice/small -size +100k)" '' 'half an environment is left'
# Nor of a copy, of which cp would say the same for each file.
ok as alice env SKIFF_STATE=/home/alice/small skiff env create two
ok as alice env SKIFF_STATE=/home/alice/small skiff exec two sh -c 'cd /opt; for n in 1 2 3 4 5; do head -c 300k /dev/urandom >$n; done'
ok as alice env SKIFF_STATE=/home/alice/small skiff env stop two
fails 125 as alice env SKIFF_STATE=/home/alice/small skiff env clone two three
has "$err" ': No space left on device'
has "$err" 'hint: make room there'
equal "$(wc -l <<<"$err")" 2 'lines on standard error'
equal "$(find /home/alice/small -size +100k | wc -l)" 5 'half an environment is left'
eventually 10 umount /home/alice/small
rmdir /home/alice/small
rm /home/alice/large.skiff

# Who ends what takes long is told so, and nothing of it stays.
inside alice large 'head -c 100000000 /dev/urandom >/opt/random'
ok as alice skiff env stop large
start alice skiff env export large held.skiff 2>/shared/interrupted
eventually 5 pkill -STOP -x -P $started skiff
sleep 1.5
kill $started
code=0
wait $started || code=$?
equal $code 143
equal "$(cat /shared/interrupted)" 'skiff: exporting environment large: interrupted'
equal "$(ls -A /home/alice | grep held || true)" '' 'half a file is left'
eventually 5 sh -c '! pgrep -u alice -x skiff'
ok as alice skiff env rm large

# Very many empty files of the same names, again and again, take a byte or two each in the exported file: no such file takes all inodes of a disk.
ok as alice skiff env create many
inside alice many 'for d in 1 2 3 4 5 6 7 8; do mkdir /opt/$d; cd /opt/$d; touch -d @0 $(seq 1000); done'
ok as alice skiff env export many many.skiff
mkdir /home/alice/small
mount -t tmpfs -o nr_inodes=20000,mode=700,uid="$(id -u alice)",gid="$(id -g alice)" small /home/alice/small
fails 125 as alice env SKIFF_STATE=/home/alice/small skiff env import many.skiff
has "$err" 'less than 16 bytes for each of its files'
[ "$(find /home/alice/small | wc -l)" -lt 100 ] || fail 'half an environment is left'
eventually 10 umount /home/alice/small
rmdir /home/alice/small
rm /home/alice/many.skiff
ok as alice skiff env rm many

# Typed inside, it is done outside, and the environment's own /tmp is not the host's.
inside alice again 'cd; skiff env export again by-inside.skiff'
fails 125 as alice skiff env exec again -- skiff env export again /tmp/x.skiff
has "$err" 'a /tmp of its own'

# What is no exported environment, or no whole one.
as alice sh -c 'head -c 3000 shared.skiff >cut; cp shared.skiff bent; printf XXXXXXXX | dd of=bent bs=1 seek=2000 conv=notrunc status=none; mkdir dir; mkfifo pipe'
for file in cut bent /etc/passwd dir nosuch /dev/null pipe; do
    limit=10 fails 125 as alice skiff env import $file other
    has "$err" "${file##*/}"
    lacks "$err" panicked
done
fails 125 as alice skiff env import /etc/passwd other
has "$err" '`skiff import /etc/passwd NAME`'
fails 125 as alice skiff env show other
equal "$(ls -A /home/alice/.local/share/skiff/env | sort | xargs)" 'again dev' 'nothing half-made stays'

# Over an image, which the importing user's store gets by its digest.
start_registry
make_store
skeleton "$images_tmp/root"
push tools/plain:1 "$images_tmp/root"
ok as alice skiff pull -q $registry/tools/plain:1
ok as alice skiff env create --base image:$registry/tools/plain:1 over
ok as alice skiff env exec over -- sh -c 'echo mine >/etc/mine'
ok as alice skiff env export over over.skiff
ok as alice skiff env import over.skiff over2
ok as alice skiff env exec over2 -- cat /etc/mine
equal "$out" mine
ok as alice skiff env show over2 --json
equal "$(json "$out" 'd["base"]')" "image:$registry/tools/plain:1"

# A file whose end says that it is large, and that has holes there, takes no memory for them.
as alice python3 -c 'import struct
size = (2 << 30) + (256 << 20)
with open("holes", "wb") as file:
    file.seek(4096 + size)
    file.write(struct.pack("<QQ32sI8s", 2 << 30, 256 << 20, bytes(32), 1, b"SKIFFENV"))'
fails 125 as alice prlimit --as=500000000 skiff env import holes other
has "$err" 'what it says of itself has another digest'

# A file system on which no file is without a name (a FUSE one, of root's here): for a depot, and for what is exported to it.
fuse=/home/alice/fuse
trap 'umount -l $fuse /shared/fuse-parts 2>/dev/null || true; images_cleanup' EXIT
as alice mkdir $fuse
mkdir /shared/fuse-parts
mount -t tmpfs none /shared/fuse-parts
mkdir /shared/fuse-parts/{lower,upper,work}
fuse-overlayfs -o allow_other,lowerdir=/shared/fuse-parts/lower,upperdir=/shared/fuse-parts/upper,workdir=/shared/fuse-parts/work $fuse
install -d -o alice -m 700 $fuse/alice
fails 1 as alice python3 -c "import os; os.open('$fuse/alice', os.O_TMPFILE | os.O_RDWR)"
ok as alice env SKIFF_DEPOT=$fuse/alice/depot skiff env snapshot again
ok as alice env SKIFF_DEPOT=$fuse/alice/depot skiff depot verify
ok as alice skiff env export again $fuse/alice/again.skiff
ok as alice skiff env import $fuse/alice/again.skiff third
ok as alice skiff env exec third -- mytool
equal "$out" 'tool of alice'
ok as alice skiff export $registry/tools/plain:1 $fuse/alice/plain.sqsh
ok as alice skiff export $registry/tools/plain:1 oci-archive:$fuse/alice/plain.tar
ok as alice skiff import $fuse/alice/plain.sqsh from-fuse
# What stands on an image that no registry has is of no use to others: both are told so, and the way out is one.
ok as alice skiff env create --base image:from-fuse made
ok as alice skiff env export made /shared/made.skiff
has "$err" 'the file can be imported only where image localhost/from-fuse'
ok as alice chmod 644 /shared/made.skiff
fails 125 as bob skiff env import /shared/made.skiff
has "$err" 'hint: no registry has that image: '
lacks "$err" 'leaves a copy'
ok as alice skiff commit --full made whole:1
ok as alice skiff export whole:1 $fuse/alice/whole.sqsh
ok as alice skiff env rm made
rm -f /shared/made.skiff
# The first snapshot in a depot has begun a collection, which goes on by itself: it has files open, and names that are only needed meanwhile.
eventually 30 sh -c '! pgrep -u alice -f "depot gc --background"'
equal "$(find $fuse/alice -name '.*')" '' 'names that were only needed meanwhile'
eventually 10 umount $fuse
# Its server ends a moment later.
eventually 10 umount /shared/fuse-parts
