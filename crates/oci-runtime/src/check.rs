//! What of a configuration cannot be obeyed without privilege: refused where the container would be another without it, else said in the log.

use skiff_spec::fault::{Fault, Result};

use crate::config::{BundleConfig, ProcessConfig};
use crate::log::Log;
use crate::mount_options;

/// Looks through a configuration.
///
/// # Errors
/// What is refused.
pub fn check(config: &BundleConfig, unknown: &[String], log: &Log) -> Result<()> {
    for key in unknown {
        log.warn(&format!("config.json: {key}: not a key that this runtime knows; it has no effect"));
    }
    if !config.oci_version.starts_with("1.") {
        return Err(Fault::new(format!(
            "config.json: ociVersion {:?}: only 1.x is known",
            config.oci_version
        )));
    }
    let root = config.root.as_ref().filter(|root| !root.path.as_os_str().is_empty());
    if root.is_none() {
        return Err(Fault::new("config.json: no `root.path`"));
    }
    let linux = &config.linux;
    let refused = [
        ("linux.personality", linux.personality.is_some()),
        ("linux.intelRdt", linux.intel_rdt.is_some()),
        ("linux.timeOffsets", linux.time_offsets.is_some()),
    ];
    refuse(&refused)?;
    if linux.mount_label.as_ref().is_some_and(|label| !label.is_empty()) {
        log.warn("linux.mountLabel: labels are not set");
    }
    mount_options::propagation(linux.rootfs_propagation.as_deref())?;
    let shares = |kind: &str| config.namespace(kind).is_some();
    let names = [("hostname", &config.hostname), ("domainname", &config.domainname)];
    if let Some((key, _)) = names
        .into_iter()
        .find(|(_, name)| name.as_ref().is_some_and(|name| !name.is_empty()))
        .filter(|_| !shares("uts"))
    {
        return Err(Fault::new(format!("{key}: the host's would change: no UTS namespace"))
            .hint("add {\"type\": \"uts\"} to linux.namespaces"));
    }
    for name in linux.sysctl.keys() {
        let kind = sysctl_kind(name).ok_or_else(|| {
            Fault::new(format!("linux.sysctl: {name}: is of no namespace: it would change the host"))
        })?;
        if !shares(kind) {
            return Err(Fault::new(format!(
                "linux.sysctl: {name}: the host's would change: no {kind} namespace"
            )));
        }
    }
    config.process.as_ref().map_or(Ok(()), |process| check_process(process, log))
}

/// Looks through a process's configuration alone.
///
/// # Errors
/// What is refused.
pub fn check_process(process: &ProcessConfig, log: &Log) -> Result<()> {
    refuse(&[
        ("process.scheduler", process.scheduler.is_some()),
        ("process.ioPriority", process.io_priority.is_some()),
        ("process.execCPUAffinity", process.exec_cpu_affinity.is_some()),
    ])?;
    for (key, profile) in
        [("apparmorProfile", &process.apparmor_profile), ("selinuxLabel", &process.selinux_label)]
    {
        if profile.as_ref().is_some_and(|profile| !profile.is_empty() && profile != "unconfined") {
            log.warn(&format!("process.{key}: profiles of security modules are not set"));
        }
    }
    match process.args.first() {
        None => Err(Fault::new("process.args: empty: nothing to start")),
        Some(_) => Ok(()),
    }
}

fn refuse(keys: &[(&str, bool)]) -> Result<()> {
    match keys.iter().find(|(_, is_there)| *is_there) {
        Some((key, _)) => {
            Err(Fault::new(format!("{key}: not supported")).hint("leave it out, or use runc or crun"))
        }
        None => Ok(()),
    }
}

/// The namespace that a sysctl belongs to.
fn sysctl_kind(name: &str) -> Option<&'static str> {
    const IPC: [&str; 8] =
        ["msgmax", "msgmnb", "msgmni", "sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced"];
    let is_sound =
        name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/*".contains(c)) && !name.contains("..");
    let name = name.replace('/', ".");
    match name.split_once('.') {
        _ if !is_sound => None,
        Some(("net", _)) => Some("network"),
        Some(("kernel", "domainname" | "hostname")) => Some("uts"),
        Some(("kernel", name)) if IPC.contains(&name) => Some("ipc"),
        Some(("fs", name)) if name.starts_with("mqueue.") => Some("ipc"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> std::result::Result<(), String> {
        let log = Log::open(None, false, false).expect("no log");
        let text = format!("{{\"ociVersion\": \"1.2.0\", \"root\": {{\"path\": \"rootfs\"}}, {text}}}");
        let (config, unknown) = BundleConfig::parse(text.as_bytes()).map_err(|e| e.to_string())?;
        check(&config, &unknown, &log).map_err(|e| e.to_string())
    }

    #[test]
    fn what_cannot_be_obeyed_is_refused() {
        let uts = "\"linux\": {\"namespaces\": [{\"type\": \"uts\"}]}";
        assert_eq!(checked("\"mounts\": null"), Ok(()));
        assert_eq!(checked(&format!("\"hostname\": \"a\", {uts}")), Ok(()));
        assert_eq!(checked("\"foo\": 1"), Ok(()), "other keys are told in the log");
        for (text, part) in [
            ("\"hostname\": \"a\"", "hostname: the host's"),
            ("\"process\": {\"args\": []}", "process.args"),
            (
                "\"process\": {\"args\": [\"a\"], \"scheduler\": {\"policy\": \"SCHED_FIFO\"}}",
                "process.scheduler",
            ),
            ("\"linux\": {\"timeOffsets\": {}}", "linux.timeOffsets"),
            ("\"linux\": {\"sysctl\": {\"kernel.panic\": \"1\"}}", "kernel.panic"),
            ("\"linux\": {\"sysctl\": {\"net.ipv4.ip_forward\": \"1\"}}", "no network namespace"),
            ("\"linux\": {\"rootfsPropagation\": \"up\"}", "rootfsPropagation"),
            ("\"mounts\": 7", "config.json"),
        ] {
            let why = checked(text).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
