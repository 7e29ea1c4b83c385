# bed: --internet
# takes: 60
# A package of Debian's that makes users and has files of several owners, installed with apt as anywhere; the host sees
# nothing of it. (Needs the network, as installing what the tests need does.)
. "$(dirname "$0")/../lib.sh"
manifest >before
ok as alice skiff env create dev
limit=100
inside alice dev 'export DEBIAN_FRONTEND=noninteractive
    ! dpkg -s cron 2>/dev/null || dpkg --force-depends --purge cron
    [ -n "$(ls /var/lib/apt/lists/*Packages* 2>/dev/null)" ] || apt-get -qq update
    apt-get -qq install -y cron || { apt-get -qq update; apt-get -qq install -y cron; }' 
inside alice dev 'dpkg -s cron | grep ^Status; stat -c "%U:%G %a" /usr/bin/crontab /var/spool/cron/crontabs; getent group crontab | cut -d: -f1'
equal "$out" $'Status: install ok installed\nroot:crontab 2755\nroot:crontab 1730\ncrontab'
# Its programs work, for another user inside too.
inside alice dev 'echo "0 0 * * * true" >/tmp/table; crontab -u nobody /tmp/table; crontab -u nobody -l; stat -c "%U %n" /var/spool/cron/crontabs/*'
equal "$out" $'0 0 * * * true\nnobody /var/spool/cron/crontabs/nobody'
# It goes on after a stop, for a job's view too.
ok as alice skiff env stop dev
ok as alice skiff env exec --me dev -- sh -c 'command -v crontab'
ok as alice skiff env diff dev
[ -e /usr/bin/crontab ] || has "$out" $'A /usr/bin/crontab\n'
# (Not by apt, which would look for something else to run what runs at night.)
inside alice dev 'dpkg --force-depends --purge cron; ! command -v crontab'

# Small ones of the list of `cargo xtask packages`, all at once: services, setuid programs, polkit's directory of mode 0700, FUSE.
packages='at bindfs ed iputils-ping lua5.4 nano polkitd screen squashfuse strace sudo'
inside alice dev "export DEBIAN_FRONTEND=noninteractive; printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
    echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/trial
    apt-get -qq install -y --no-install-recommends $packages
    apt-get -qq install -y --reinstall --no-install-recommends $packages
    dpkg --audit >&2; [ -z \"\$(dpkg --audit)\" ]"
# What root inside can with them: FUSE, terminals, and root again from a second user.
inside alice dev 'useradd -m -d /var/lib/second second; echo "second ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/second
    su second -c "sudo id -u" 2>/dev/null
    ping -V >/dev/null
    mkdir /mnt/bound /mnt/image /tmp/source; echo content >/tmp/source/file
    bindfs /tmp/source /mnt/bound; cat /mnt/bound/file; umount /mnt/bound
    mksquashfs /tmp/source /tmp/image.squashfs -quiet -no-progress; squashfuse /tmp/image.squashfs /mnt/image; cat /mnt/image/file; umount /mnt/image
    screen -dmS trial sh -c "tty >/tmp/tty; stat -c %U:%G \$(tty) >>/tmp/tty; : >/tmp/over; sleep 50"
    for i in $(seq 50); do [ ! -e /tmp/over ] || break; sleep 0.1; done
    cat /tmp/tty; screen -S trial -X quit'
equal "$out" $'0\ncontent\ncontent\n/dev/pts/0\nroot:tty'
inside alice dev "export DEBIAN_FRONTEND=noninteractive SUDO_FORCE_REMOVE=yes; apt-get -qq remove -y $packages; apt-get -qq purge -y $packages
    dpkg --audit >&2; [ -z \"\$(dpkg --audit)\" ]; ! command -v screen"
ok as alice skiff env stop dev
manifest >after
diff before after || fail 'the host has changed, see above'
equal "$(find /home/alice/.local -uid 0 -o -gid 0)" '' "files of the machine's root"
