# Project quotas, which the kernel of the test bed lacks: `slurm.tmp_quota` limits what a job writes to its directory on a node, from its prolog to its
# epilog. No Slurm is needed for that: the plug-in calls the same two commands with the same variables.
. "$(dirname "$0")/../lib.sh"
SKIFF_TESTBED_NODES=
disk=$(mktemp -d)
cleanup() {
    mountpoint -q /local && umount -l /local
    as alice skiff env rm -f dev || true
    rm -rf /local "$disk" /etc/skiff/conf.d/quota.toml /run/skiff/jobs
}
trap cleanup EXIT
truncate -s 400M "$disk/image"
mke2fs -q -t ext4 -O quota,project -E quotatype=prjquota "$disk/image"
mkdir -p /local /etc/skiff/conf.d
mount -o loop,prjquota "$disk/image" /local
chmod 755 /local
printf '[slurm]\ntmp = "/local"\ntmp_quota = "16M"\n' >/etc/skiff/conf.d/quota.toml
ok as alice skiff env create dev
ok as alice skiff slurm submit --environment dev
spec=$(head -1 <<<"$out")
job() { # NUMBER USER prolog|epilog
    ok env SLURM_JOB_ID=$1 SLURM_JOB_UID=$(id -u $2) SLURM_JOB_GID=$(id -g $2) SPANK_SKIFF_JOB="$spec" skiff slurm $3
}
writes() { # USER JOB MIB
    try as $1 sh -c "head -c $(($3 << 20)) /dev/zero >/run/skiff/jobs/$2/tmp/file.$3"
}
try skiff doctor
has "$out" 'at most 16.0 MiB for each job, in /local'

# Each has its own, for both directories together; what is over it is refused.
job 7 alice prolog
job 8 bob prolog
writes alice 7 10
equal "$code" 0
try as alice sh -c 'head -c 10M /dev/zero >/run/skiff/jobs/7/vartmp/file'
[ "$code" != 0 ] || fail 'a job has written more than its quota'
has "$err" 'Disk quota exceeded'
writes bob 8 15
equal "$code" 0 'another job'
# The number of the project tells nobody else's.
one=$(lsattr -pd /local/skiff-jobs/7/tmp | awk '{print $1}') other=$(lsattr -pd /local/skiff-jobs/8/tmp | awk '{print $1}')
[ "$one" != "$other" ] && [ "$one" -ge $((1 << 30)) ] || fail "projects $one and $other"
try as bob lsattr -pd /local/skiff-jobs/7/tmp
lacks "$out" "$one"
# With a project of the site's in the place of the job's own, the epilog forgets no limit but that of jobs.
mkdir /local/site
chattr -p 5 /local/site
try setquota -P 5 1000 1000 0 0 /local
[ "$code" = 0 ] || skip 'setquota is not installed'
ok as alice chattr -p 5 "$(readlink -f /run/skiff/jobs/7/tmp)"
job 7 alice epilog
ok repquota -P -O csv -n /local
has "$out" ',1000,'
job 8 bob epilog
lacks "$(repquota -P -O csv -n /local)" "#$other,"
equal "$(ls -A /local/skiff-jobs)" ''
# A job of the same number begins anew, and where nothing is to be limited nothing is.
rm /etc/skiff/conf.d/quota.toml
printf '[slurm]\ntmp = "/local"\n' >/etc/skiff/conf.d/quota.toml
job 8 bob prolog
writes bob 8 30
equal "$code" 0 'without a quota'
job 8 bob epilog
