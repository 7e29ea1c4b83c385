//! A real OpenSSH server on the login node, and keys with which root in the bed logs in as one of its users.

use std::process::Command;

use anyhow::Context;

use super::bed::{Bed, LOGIN, USERS};
use super::machine::GROUP;
use super::process::{log_tail, run};

/// Not in the bed's directory: sshd refuses keys below a directory that others may write, as /var/tmp is.
const AUTHORIZED_KEYS: &str = "/run/sshd-authorized-keys";

/// Writes keys and configuration and starts sshd.
pub fn start(bed: &Bed) -> anyhow::Result<()> {
    let dir = bed.path("ssh");
    for name in ["host_key", "user_key"] {
        run(Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f"])
            .arg(dir.join(name)))?;
    }
    let read = |name: &str| {
        std::fs::read_to_string(dir.join(name)).with_context(|| format!("cannot read ssh/{name}"))
    };
    std::fs::write(AUTHORIZED_KEYS, read("user_key.pub")?)
        .with_context(|| format!("cannot write {AUTHORIZED_KEYS}"))?;
    bed.write("ssh/known_hosts", &format!("{LOGIN},localhost,127.0.0.1 {}", read("host_key.pub")?))?;
    bed.make_dir("ssh/sshd_config.d", 0o755)?;
    if let Some(command) = &bed.args.ssh_force_command {
        let block = format!("Match Group {GROUP}\n    ForceCommand {command}\n");
        bed.write("ssh/sshd_config.d/skiff.conf", &block)?;
    }
    bed.write("ssh/sshd_config", &server_config(bed))?;
    bed.write("ssh/config", &client_config(bed))?;
    std::fs::create_dir_all("/run/sshd").context("cannot make /run/sshd")?;
    let log = bed.path("logs/sshd.log");
    run(Command::new("/usr/sbin/sshd").arg("-f").arg(dir.join("sshd_config")).arg("-E").arg(&log))
        .with_context(|| log_tail(&log))
}

fn server_config(bed: &Bed) -> String {
    let dir = bed.path("ssh");
    let dir = dir.display();
    format!(
        "Port 22\nHostKey {dir}/host_key\nAuthorizedKeysFile {AUTHORIZED_KEYS}\nAllowUsers {users}\n\
         KbdInteractiveAuthentication no\nPasswordAuthentication no\nUsePAM yes\nPrintMotd no\nUseDNS no\n\
         LogLevel VERBOSE\nX11Forwarding yes\nAcceptEnv LANG LC_*\nSubsystem sftp /usr/lib/openssh/sftp-server\nPidFile /run/sshd.pid\n\
         Include {dir}/sshd_config.d/*.conf\n",
        users = USERS.join(" "),
    )
}

fn client_config(bed: &Bed) -> String {
    let dir = bed.path("ssh");
    let dir = dir.display();
    format!(
        "Host {LOGIN} localhost 127.0.0.1\n    IdentityFile {dir}/user_key\n    IdentitiesOnly yes\n    BatchMode yes\n    \
         UserKnownHostsFile {dir}/known_hosts\n    StrictHostKeyChecking yes\n    ConnectTimeout 5\n"
    )
}
