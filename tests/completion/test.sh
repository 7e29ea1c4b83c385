# takes: 20
# The tab key offers what alice has, in bash, zsh and fish, each on a terminal and by the script that is installed for it.
. "$(dirname "$0")/../lib.sh"
. "$here/../images/lib.sh"
trap 'rm -rf /etc/skiff/networks.d; images_cleanup' EXIT
root=$images_tmp/root
skeleton "$root"
start_registry
make_store
push library/debian:12 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/bin"]}'
printf '[[registry]]\nlocation = "docker.io"\n[[registry.mirror]]\nlocation = "%s"\ninsecure = true\n' $registry >>/home/alice/.config/containers/registries.conf
mkdir -p /etc/skiff/networks.d
printf 'kind = "bridge"\nsubnet = "10.20.0.0/24"\n' >/etc/skiff/networks.d/physics.toml
ok as alice skiff pull debian:12
ok as alice skiff env create tools
ok as alice skiff env create toolbox
ok as alice skiff run -d --name busy debian:12 sleep 600
ok as alice skiff cluster up lab --slurm --nodes 2
# A file that a shell would offer where it knows nothing better.
as alice touch tomorrow

lines='skiff env rm to => tools toolbox ! tomorrow
skiff env rm toolb => toolbox
skiff env create --base i => image:debian:12
skiff exec bu => busy
skiff logs bu => busy
skiff run deb => debian:12
skiff run -v /usr:/mnt -e A=1 deb => debian:12
skiff run --net ph => physics
skiff run --net=ph => --net=physics
skiff run --net _ => host none private physics ! tomorrow
skiff cluster exec --node n => n1 n2 ! tomorrow
skiff cluster down la => lab
skiff migrate busy n => n1 n2
skiff run ./tomo => ./tomorrow
skiff env di => diff
skiff run --entry => --entrypoint'
for shell in bash zsh fish; do
    ok /usr/bin/python3 "$here/tab.py" $shell <<<"$lines"
done

# What bash takes for several words: only what comes behind a colon is put in.
completed() { # WORD...: what the tab key offers for the last one
    ok as alice bash -c '. /usr/share/bash-completion/completions/skiff; COMP_WORDS=(skiff "$@"); COMP_CWORD=$#; COMP_LINE="skiff $*"; COMP_POINT=${#COMP_LINE}
        _skiff_or_names skiff "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; printf "%s\n" "${COMPREPLY[@]}" | sort -u | xargs' - "$@"
}
completed run debian:1 && equal "$out" 12 'what comes behind a colon'
completed env rm '' && equal "$out" 'toolbox tools' 'no options and no <NAMES>'
completed stop '' && has "$out" busy && has "$out" tools && has "$out" lab
completed images '' && lacks "$out" debian
# What a shell would run is never offered.
ok as alice skiff export debian:12 debian.sqsh
ok as alice sh -c 'cp debian.sqsh "\$(touch x).sqsh"; skiff import "./\$(touch x).sqsh"; skiff images --format "{{.Reference}}"'
has "$out" 'touch x'
completed run '' && lacks "$out" touch
ok as alice skiff cluster down lab
ok as alice skiff rm -f tools toolbox busy
