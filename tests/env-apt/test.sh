# bed: --internet
# takes: 18
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
manifest >after
diff before after || fail 'the host has changed, see above'
equal "$(find /home/alice/.local -uid 0 -o -gid 0)" '' "files of the machine's root"
