//! What programs in a cluster look for: lists of its hosts in all the forms that they want, and what ssh and its daemon need.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use skiff_launch::hosts;
use skiff_spec::plan::File;
use skiff_sys::IgnoreError;

use crate::key::SshKey;
use crate::wire::ClusterMember;

/// Where they are, inside.
pub const DIR: &str = "/run/skiff/cluster";
/// Where OpenSSH looks for what a site adds to its clients' configuration.
pub const DROP_IN: &str = "/etc/ssh/ssh_config.d/00-skiff-cluster.conf";

/// The keys of one container.
pub struct Keys {
    /// By which its daemon proves who it is.
    pub host: SshKey,
    /// By which its user does.
    pub user: SshKey,
}

/// All files of the container of member `index`, whose sessions have these variables.
#[must_use]
pub fn all(
    members: &[ClusterMember],
    index: usize,
    keys: &Keys,
    variables: &[(OsString, OsString)],
) -> Vec<File> {
    let open = |name: &str, text| File { name: name.into(), mode: 0o644, text };
    let own = |name: &str, text| File { name: name.into(), mode: 0o600, text };
    vec![
        own("host_key", keys.host.private.clone()),
        own("user_key", keys.user.private.clone()),
        own("sshd_config", sshd_config(&members[index], variables)),
        open("authorized_keys", lines(members, |member| member.place.user_key.clone())),
        open("known_hosts", lines(members, |member| format!("{} {}", member.name, member.place.host_key))),
        open("ssh_config", ssh_config(members) + &for_others(members)),
        File { name: "bin/ssh".into(), mode: 0o755, text: SSH.into() },
        open("nodefile", members.iter().map(|m| format!("{}\n", m.name).repeat(m.slots as usize)).collect()),
        open("hostfile", lines(members, |member| format!("{} slots={}", member.name, member.slots))),
        open("machinefile", lines(members, |member| format!("{}:{}", member.name, member.slots))),
        open("hosts", lines(members, |member| member.name.clone())),
    ]
}

/// By this `ssh`, what the user has in their own configuration does not stand before what the cluster's hosts need.
const SSH: &str = r#"#!/bin/sh
# The cluster's hosts by the cluster's keys; all others as ever.
own=/run/skiff/cluster
IFS=:
for dir in $PATH:/usr/bin:/bin; do
    [ "$dir" = $own/bin ] || [ ! -x "$dir/ssh" ] || exec "$dir/ssh" -F $own/ssh_config "$@"
done
echo 'ssh: there is none in this root' >&2
exit 127
"#;

/// Variables by which programs find these files, and start their processes by `ssh` where they would otherwise turn to a manager who
/// knows nothing of the containers.
#[must_use]
pub fn variables(name: &str, is_root: bool) -> Vec<(&'static str, String)> {
    let at = |file: &str| format!("{DIR}/{file}");
    let mut variables = vec![
        ("SKIFF_CLUSTER", name.into()),
        ("PBS_NODEFILE", at("nodefile")),
        // Open MPI up to 4, and from 5 on.
        ("OMPI_MCA_plm", "rsh".into()),
        ("OMPI_MCA_plm_rsh_agent", "ssh".into()),
        ("OMPI_MCA_plm_rsh_disable_qrsh", "1".into()),
        ("OMPI_MCA_plm_rsh_disable_llspawn", "1".into()),
        ("OMPI_MCA_ras", "^slurm,tm,lsf,gridengine,loadleveler,alps".into()),
        ("OMPI_MCA_orte_default_hostfile", at("hostfile")),
        ("PRTE_MCA_plm", "ssh".into()),
        ("PRTE_MCA_plm_ssh_agent", "ssh".into()),
        ("PRTE_MCA_plm_ssh_disable_qrsh", "1".into()),
        ("PRTE_MCA_ras", "^slurm,pbs,lsf,gridengine".into()),
        ("PRTE_MCA_prte_default_hostfile", at("hostfile")),
        // MPICH, MVAPICH and Intel MPI.
        ("HYDRA_LAUNCHER", "ssh".into()),
        ("HYDRA_LAUNCHER_EXEC", "ssh".into()),
        ("HYDRA_RMK", "user".into()),
        ("HYDRA_HOST_FILE", at("machinefile")),
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh".into()),
        ("I_MPI_HYDRA_RMK", "user".into()),
        ("I_MPI_HYDRA_HOST_FILE", at("machinefile")),
    ];
    if is_root {
        // Open MPI refuses a root who could do harm. And where munge runs, its PMIx has that vouch for the ranks, to which they are the user.
        let allowed = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
        variables.extend(allowed.map(|name| (name, "1".into())));
        variables.push(("PMIX_MCA_psec", "native".into()));
    }
    variables
}

fn lines(members: &[ClusterMember], line: impl Fn(&ClusterMember) -> String) -> String {
    members.iter().map(|member| line(member) + "\n").collect()
}

/// What this member may also be called: nothing that another one could be called, too.
fn names(members: &[ClusterMember], member: &ClusterMember) -> Vec<String> {
    let mut names = vec![member.name.clone()];
    let short = member.name.split('.').next().unwrap_or_default();
    let is_number = member.name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let others = |name: &str| members.iter().any(|m| m.name != member.name && hosts::same(&m.name, name));
    if !is_number && short != member.name && !others(short) {
        names.push(short.into());
    }
    let address = member.place.address.to_string();
    let shared = members.iter().filter(|m| m.place.address == member.place.address).count() > 1;
    if !shared && !names.contains(&address) {
        names.push(address);
    }
    names
}

/// What `ssh` needs to get to the cluster's hosts without a flag. (Not the user's name: they have the same everywhere, which may be another
/// than the hosts know them by.)
#[must_use]
pub fn ssh_config(members: &[ClusterMember]) -> String {
    let mut text = String::new();
    let mut write = |line: std::fmt::Arguments<'_>| {
        text.write_fmt(line).ignore_error("writing to a string does not fail")
    };
    let mut all = vec![];
    for member in members {
        let names = names(members, member).join(" ");
        let (name, address, port) = (&member.name, member.place.address, member.place.port);
        write(format_args!(
            "Host {names}\n    HostName {address}\n    Port {port}\n    HostKeyAlias {name}\n"
        ));
        all.push(names);
    }
    write(format_args!("Host {}\n", all.join(" ")));
    for (key, value) in [
        ("IdentityFile", "/run/skiff/cluster/user_key"),
        ("IdentitiesOnly", "yes"),
        ("IdentityAgent", "none"),
        ("UserKnownHostsFile", "/run/skiff/cluster/known_hosts"),
        ("GlobalKnownHostsFile", "/run/skiff/cluster/known_hosts"),
        ("StrictHostKeyChecking", "yes"),
        ("CheckHostIP", "no"),
        ("UpdateHostKeys", "no"),
        ("PreferredAuthentications", "publickey"),
        ("BatchMode", "yes"),
        // A launcher waits for these: the exchanges that stand first by default take three times as long.
        ("KexAlgorithms", "curve25519-sha256@libssh.org,curve25519-sha256,ecdh-sha2-nistp256"),
        ("Ciphers", "aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr"),
        ("ConnectTimeout", "30"),
        ("ControlMaster", "no"),
        ("ControlPath", "none"),
        ("ProxyCommand", "none"),
        ("ForwardAgent", "no"),
        ("ForwardX11", "no"),
        ("LogLevel", "ERROR"),
    ] {
        write(format_args!("    {key} {value}\n"));
    }
    text
}

/// For all other hosts, what holds without us.
fn for_others(members: &[ClusterMember]) -> String {
    let ours: Vec<String> = members.iter().flat_map(|m| names(members, m)).map(|n| format!("!{n}")).collect();
    format!("Host * {}\n    Include config\n    Include /etc/ssh/ssh_config\n", ours.join(" "))
}

/// The daemon runs without privilege, so that nobody but its own user can log in; who proves who they are by a key made for this cluster.
fn sshd_config(member: &ClusterMember, variables: &[(OsString, OsString)]) -> String {
    let address = match member.place.address {
        std::net::IpAddr::V4(address) => address.to_string(),
        std::net::IpAddr::V6(address) => format!("[{address}]"),
    };
    let mut text = format!(
        "ListenAddress {address}:{port}\nSetEnv {environment}\n",
        port = member.place.port,
        environment = environment(variables),
    );
    for (key, value) in [
        ("HostKey", "/run/skiff/cluster/host_key"),
        ("AuthorizedKeysFile", "/run/skiff/cluster/authorized_keys"),
        ("AuthenticationMethods", "publickey"),
        ("PasswordAuthentication", "no"),
        ("KbdInteractiveAuthentication", "no"),
        ("PermitRootLogin", "prohibit-password"),
        // The keys lie where nobody else gets, whatever the root's directories are like.
        ("StrictModes", "no"),
        ("UsePAM", "no"),
        ("UseDNS", "no"),
        ("PidFile", "none"),
        ("PermitUserEnvironment", "no"),
        ("PermitUserRC", "no"),
        ("AllowAgentForwarding", "no"),
        ("X11Forwarding", "no"),
        ("PrintMotd", "no"),
        ("PrintLastLog", "no"),
        ("LoginGraceTime", "30"),
        // A launcher of MPI programs may come a hundred times at once.
        ("MaxStartups", "1000"),
        ("MaxSessions", "1000"),
        ("ClientAliveInterval", "15"),
        ("ClientAliveCountMax", "3"),
        ("Subsystem", "sftp internal-sftp"),
    ] {
        writeln!(text, "{key} {value}").ignore_error("writing to a string does not fail");
    }
    text
}

/// As `SetEnv` takes them. What it cannot take is left out: a line's end and what has no text.
fn environment(variables: &[(OsString, OsString)]) -> String {
    let quoted = |(name, value): &(OsString, OsString)| {
        let (name, value) = (name.to_str()?, value.to_str()?);
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let fits = name.bytes().all(plain) && !value.contains(['\n', '\r', '"', '\\', '\0']);
        fits.then(|| format!("\"{name}={value}\""))
    };
    let set: Vec<String> = variables.iter().filter_map(quoted).collect();
    if set.is_empty() { "SKIFF_CLUSTER_SESSION=1".into() } else { set.join(" ") }
}

/// Variables that belong to one login, and not to whoever comes by `ssh`.
#[must_use]
pub fn is_a_sessions_own(name: &std::ffi::OsStr) -> bool {
    const NAMES: [&str; 14] = [
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "TERM",
        "MAIL",
        "DISPLAY",
        "TMPDIR",
        "_",
        "XAUTHORITY",
        "TMUX",
    ];
    const BEGINNINGS: [&str; 10] =
        ["SSH_", "XDG_", "BASH_FUNC", "SLURM_", "SLURMD_", "SRUN_", "PMI", "LSB_", "LS_", "SGE_"];
    let name = name.as_bytes();
    NAMES.iter().any(|own| own.as_bytes() == name)
        || BEGINNINGS.iter().any(|begin| name.starts_with(begin.as_bytes()))
}

/// `/etc/hosts` with the members, whose names mean nothing else in it any more.
#[must_use]
pub fn etc_hosts(members: &[ClusterMember], own: &str) -> String {
    let called = |member: &ClusterMember| {
        let address = member.place.address.to_string();
        let mut called = names(members, member);
        called.retain(|name| *name != address);
        (address, called)
    };
    hosts::hosts_with(members.iter().map(called), own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::SshAddress;

    fn member(name: &str, address: &str, slots: u32) -> ClusterMember {
        let place = SshAddress {
            version: String::new(),
            address: address.parse().expect("an address"),
            port: 2222,
            host_key: "ssh-ed25519 H".into(),
            user_key: "ssh-ed25519 U".into(),
            processors: 1,
            megabytes: 1,
            opener: vec![],
        };
        ClusterMember { name: name.into(), slots, place }
    }

    #[test]
    fn lists_of_hosts() {
        let members = [member("n1.site", "10.0.0.1", 2), member("n2", "10.0.0.2", 1)];
        let keys =
            Keys { host: SshKey::generate("").expect("a key"), user: SshKey::generate("").expect("a key") };
        let files = all(&members, 1, &keys, &[("A".into(), "b c".into()), ("B".into(), "x\ny".into())]);
        let text = |name: &str| files.iter().find(|f| f.name == name).map_or("", |f| f.text.as_str());
        assert_eq!(text("nodefile"), "n1.site\nn1.site\nn2\n");
        assert_eq!(text("hostfile"), "n1.site slots=2\nn2 slots=1\n");
        assert_eq!(text("machinefile"), "n1.site:2\nn2:1\n");
        assert_eq!(text("known_hosts"), "n1.site ssh-ed25519 H\nn2 ssh-ed25519 H\n");
        let config = text("ssh_config");
        assert!(
            config.starts_with("Host n1.site n1 10.0.0.1\n    HostName 10.0.0.1\n    Port 2222\n"),
            "{config}"
        );
        assert!(
            config.contains("Host * !n1.site !n1 !10.0.0.1 !n2 !10.0.0.2\n    Include config\n"),
            "{config}"
        );
        let daemon = text("sshd_config");
        assert!(daemon.starts_with("ListenAddress 10.0.0.2:2222\nSetEnv \"A=b c\"\n"), "{daemon}");
        assert!(files.iter().all(|f| f.mode & 0o077 == 0 || !f.text.contains("PRIVATE KEY")));
    }

    #[test]
    fn names_of_members_mean_members() {
        let members = [member("n1", "10.0.0.1", 1), member("n2", "10.0.0.2", 1)];
        let own = "127.0.0.1 localhost\n127.0.1.1 n1 me # this one\n# n2\n192.0.2.2 n2\n192.0.2.9 other\n";
        let want = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n10.0.0.1 n1\n10.0.0.2 n2\n\
                    127.0.1.1 me\n192.0.2.9 other\n";
        assert_eq!(etc_hosts(&members, own), want);
    }
}
