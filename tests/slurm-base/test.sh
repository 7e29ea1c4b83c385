# A node whose system is not the one that the environment was built on: a word about it, or by configuration a refusal.
# takes: 21
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
inside alice dev 'echo dev >/etc/marker'
cd /home/alice
bash=$(dpkg-query -W -f '${Version}' bash)
word='skiff: the base of node n2 is not the one the environment was built on: '

# What n2 has instead of a file, made from it by a filter.
differs() { # FILE FILTER...
    local file=$1
    shift
    on n2 sh -c 'file=$1; shift; "$@" <"$file" >/run/other && mount --bind /run/other "$file"' - "$file" "$@"
}
same() { on n2 umount "$1"; }

# On both nodes by srun and by sbatch: it runs, and says this once for each job.
warned() { # DIFFERENCE
    ok as alice srun -Q -N2 -n4 --environment=dev cat /etc/marker
    equal "$out" $'dev\ndev\ndev\ndev'
    equal "$err" "$word$1"
    ok as alice sbatch --parsable -N2 -o out --environment=dev --wrap 'srun -N2 cat /etc/marker; srun -N2 cat /etc/marker'
    equal "$(ended "$out")" 'COMPLETED 0:0'
    equal "$(sort out)" $'dev\ndev\ndev\ndev\n'"$word$1"
}
silent() {
    ok as alice srun -QN2 --environment=dev cat /etc/marker
    equal "$out$err" $'dev\ndev'
}
refused() { # DIFFERENCE
    local job words="skiff: environment dev: the base of node n2 is another one: $1"
    fails 125 as alice srun -N2 --environment=dev touch ran.%n
    has "$err" "$words"
    has "$err" 'hint: use nodes that have the login'
    has "$err" 'base.mismatch = "warn"'
    lacks "$err" 'node n1'
    rm -f ran*
    fails 125 as alice srun -w n2 --environment=dev touch ran
    ok as alice sbatch --parsable -w n2 -o out --environment=dev --wrap 'touch ran'
    equal "$(ended "$out")" 'FAILED 125:0'
    has "$(cat out)" "$words"
    # A script that runs on the sound node, its step on the other one.
    ok as alice sbatch --parsable -N2 -o out --environment=dev --wrap 'srun -N1 -n1 -w n2 touch ran'
    equal "$(ended "$out")" 'FAILED 125:0'
    has "$(cat out)" "$words"
    test ! -e ran || fail 'it ran all the same'
    ok as alice srun -w n1 --environment=dev cat /etc/marker
    equal "$out" dev
}
mismatch() { printf '[base]\nmismatch = "%s"\n' "$1" >/etc/skiff/conf.d/base.toml; }
mkdir -p /etc/skiff/conf.d

silent
differs /var/lib/dpkg/status sed '/^Package: bash$/,/^$/s/^Version: .*/Version: 1.0-other/'
warned "packages: bash:amd64 1.0-other here, $bash there"
mismatch refuse
refused "packages: bash:amd64 1.0-other here, $bash there"
# The user may choose, unless the site has locked it.
as alice sh -c 'mkdir -p .config/skiff; printf "[base]\nmismatch = \"warn\"\n" >.config/skiff/config.toml'
warned "packages: bash:amd64 1.0-other here, $bash there"
sed -i '1i lock = ["base.mismatch"]' /etc/skiff/conf.d/base.toml
refused "packages: bash:amd64 1.0-other here, $bash there"
rm -r .config
mismatch ignore
silent
rm /etc/skiff/conf.d/base.toml
same /var/lib/dpkg/status
silent

# A package less, one more; the release; the architecture.
differs /var/lib/dpkg/status sed '/^Package: bash$/,/^Status:/s/^Status: .*/Status: deinstall ok config-files/; s/^Package: dash$/Package: not-dash/'
warned 'packages: bash:amd64 missing here; dash:amd64 missing here; not-dash:amd64 only here'
same /var/lib/dpkg/status
# Debian's sid has no number.
built="debian$(. /etc/os-release && echo "${VERSION_ID:+ $VERSION_ID}")"
differs /etc/os-release sed '/^VERSION_ID=/d; $a VERSION_ID="99"'
warned "release debian 99 here, $built where it was built"
mismatch refuse
refused "release debian 99 here, $built where it was built"
rm /etc/skiff/conf.d/base.toml
same /etc/os-release
silent

# The base is the host's: what the environment itself installs or claims is no difference.
inside alice dev 'sed -i "/^Package: bash$/,/^$/s/^Version: .*/Version: 2.0-own/" /var/lib/dpkg/status
    sed -i s/^ID=.*/ID=own/ $(readlink -f /etc/os-release)'
mismatch refuse
silent
inside alice dev 'srun -QN2 grep -h ^ID= /etc/os-release'
equal "$out$err" $'ID=own\nID=own'
# Nor does the job's own environment matter for what it submits.
ok as alice sbatch --parsable -w n1 -o out --environment=dev --wrap 'sbatch --parsable -w n2 -o out.2 --wrap "cat /etc/marker" >nested'
equal "$(ended "$out") $(ended "$(cat nested)")" 'COMPLETED 0:0 COMPLETED 0:0'
equal "$(cat out out.2)" dev
rm /etc/skiff/conf.d/base.toml
# The login node is upgraded after the submission: then it is the nodes that differ from what the job carries.
ok as alice sbatch --parsable -H -w n1 -o out --environment=dev --wrap 'cat /etc/marker'
held=$out
on n1 sh -c 'sed "/^Package: bash$/,/^$/s/^Version: .*/Version: 3.0-new/" </var/lib/dpkg/status >/run/new; mount --bind /run/new /var/lib/dpkg/status'
scontrol release "$held"
equal "$(ended "$held")" 'COMPLETED 0:0'
equal "$(sort out)" "dev
skiff: the base of node n1 is not the one the environment was built on: packages: bash:amd64 3.0-new here, $bash there"
on n1 umount /var/lib/dpkg/status
as alice skiff env stop dev
idle
