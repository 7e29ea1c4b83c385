# Configuration that is not to be trusted or understood: named with the place and how to mend it, and nothing is done.
. "$(dirname "$0")/../lib.sh"
file=/etc/skiff/config.toml
cp -a $file kept
restore() { rm -rf $file /etc/skiff/conf.d /etc/skiff/helper.conf /etc/skiff/networks.d; cp -a kept $file; chmod 755 /etc/skiff; chown root:root /etc/skiff; }
trap restore EXIT
mkdir -p /etc/skiff/conf.d
refused() { # MESSAGE...
    local command message
    for command in 'run -- true' 'env create dev' 'env list' 'config' 'sweep'; do
        fails 125 as alice skiff $command
        for message; do has "$err" "$message" "$command"; done
        has "$err" 'hint: ' "$command"
    done
}

# Not root's alone.
chown alice $file
refused "$file: belongs to uid $(id -u alice)"
chown root $file
chmod 666 $file
refused "$file: belongs to uid 0 with mode 666"
chmod 664 $file
refused 'mode 664'
chmod 644 $file
chmod 777 /etc/skiff
refused '/etc/skiff: belongs to uid 0 with mode 777'
chmod 755 /etc/skiff
chmod 600 $file
refused "$file: Permission denied"
restore; mkdir -p /etc/skiff/conf.d
rm $file && as alice sh -c 'echo "mounts = []" >~/own.toml' && ln -s /home/alice/own.toml $file
refused 'belongs to'
restore; mkdir -p /etc/skiff/conf.d

# Not to be understood.
echo 'mounts = [' >/etc/skiff/conf.d/a.toml
refused /etc/skiff/conf.d/a.toml
echo 'monuts = []' >/etc/skiff/conf.d/a.toml
refused monuts
echo 'mounts = "/shared"' >/etc/skiff/conf.d/a.toml
refused mounts
printf '[base]\nmismatch = "perhaps"\n' >/etc/skiff/conf.d/a.toml
refused perhaps
printf '[run]\nlinger = -1\n' >/etc/skiff/conf.d/a.toml
refused linger
printf '\xff\xfe' >/etc/skiff/conf.d/a.toml
refused /etc/skiff/conf.d/a.toml
echo 'mounts = ["relative"]' >/etc/skiff/conf.d/a.toml
fails 125 as alice skiff run -- true
has "$err" 'mount "relative": a path is not absolute'
echo 'state = "relative"' >/etc/skiff/conf.d/a.toml
fails 125 as alice skiff env list
has "$err" '"relative" is not an absolute path'
rm /etc/skiff/conf.d/a.toml

# The user's own: the same words, his file.
as alice mkdir -p .config/skiff
echo 'nonsense = 1' >/home/alice/.config/skiff/config.toml
refused /home/alice/.config/skiff/config.toml nonsense
# What the site has locked stays.
printf 'lock = ["run.linger", "helper"]\n[run]\nlinger = 3\n' >/etc/skiff/conf.d/lock.toml
printf 'helper = "none"\n[run]\nlinger = 99\nmemory = "7M"\n' >/home/alice/.config/skiff/config.toml
fits as alice skiff config --json
equal "$(json "$out" 'd["run"]["linger"], d["run"]["memory"], d["helper"]')" "(3, '7M', '')"
rm -r /home/alice/.config

# The helper's own file is held to the same.
mkdir /etc/skiff/networks.d
printf 'kind = "bridge"\nsubnet = "10.20.0.0/24"\n' >/etc/skiff/networks.d/lab.toml
for spoil in "echo 'range_base = x'" "echo 'nonsense = 1'" 'echo nonsense'; do
    eval "$spoil" >/etc/skiff/helper.conf
    fails 125 as alice skiff run -- true
    has "$err" /etc/skiff/helper.conf
    has "$err" 'hint: '
    # Nor is anything else served: whose ids are whose is not known. (Here `skiff` has become the helper, and nobody else could say why.)
    fails 125 as alice skiff run --net lab -- true
    has "$err" /etc/skiff/helper.conf
    has "$err" 'hint: '
done
rm -r /etc/skiff/networks.d
echo 'range_base = 1000000' >/etc/skiff/helper.conf
chmod 666 /etc/skiff/helper.conf
fails 125 as alice skiff run -- true
has "$err" '/etc/skiff/helper.conf: belongs to uid 0 with mode 666'
rm /etc/skiff/helper.conf && ln -s /home/alice/own.toml /etc/skiff/helper.conf
fails 125 as alice skiff run -- true
has "$err" /etc/skiff/helper.conf
rm /etc/skiff/helper.conf
ok as alice skiff run -- true
