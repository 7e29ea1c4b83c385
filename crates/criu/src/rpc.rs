//! The messages of CRIU's `images/rpc.proto`, as far as this crate's callers need them.
//!
//! Fields are named as there; those that no doc comment explains further are documented in `criu(8)` under the option of that name.
//! Numbers never change in that file, and fields of an answer that are not named here are passed over.

use std::fmt;

use prost::{Enumeration, Message};

/// What is asked for, and what an answer is to (`criu_req_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum RequestType {
    /// An answer to a request that CRIU does not understand.
    Empty = 0,
    /// Save processes.
    Dump = 1,
    /// Create the saved processes again.
    Restore = 2,
    /// Check whether CRIU works on this host.
    Check = 3,
    /// Save memory while the processes run; further requests and a dump follow.
    PreDump = 4,
    /// Start a page server in the background.
    PageServer = 5,
    /// In an answer: the stage that CRIU has reached. In a request: whether to proceed.
    Notify = 6,
    /// Write an image that describes the processor.
    CpuInfoDump = 7,
    /// Compare the processor with such an image.
    CpuInfoCheck = 8,
    /// Ask what the kernel offers.
    FeatureCheck = 9,
    /// Ask for the version.
    Version = 10,
    /// Wait for a child of CRIU's.
    WaitPid = 11,
    /// Start a page server as CRIU's child.
    PageServerChild = 12,
    /// Save memory while the processes run; nothing follows.
    SinglePreDump = 13,
}

/// How TCP connections are kept silent while no process has them (`criu_network_lock_method`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum NetworkLock {
    /// By the program `iptables-restore`.
    Iptables = 1,
    /// By the kernel's interface, without a program.
    Nftables = 2,
    /// Not at all: the caller sees to it.
    Skip = 3,
}

/// What is done with control groups (`criu_cg_mode`); see `--manage-cgroups`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum CgroupMode {
    /// Nothing: restored processes are in CRIU's.
    Ignore = 0,
    /// The groups must exist.
    None = 1,
    /// The properties of groups are restored.
    Props = 2,
    /// Groups are created, and those that were missing are set.
    Soft = 3,
    /// Groups are always created and set.
    Full = 4,
    /// The groups must not exist before.
    Strict = 5,
    /// CRIU's default.
    Default = 6,
}

/// Where pages go in place of a file, or where a page server listens (`criu_page_server_info`).
#[derive(Clone, PartialEq, Message)]
pub struct PageServer {
    /// Address, as text.
    #[prost(string, optional, tag = "1")]
    pub address: Option<String>,
    /// TCP port.
    #[prost(int32, optional, tag = "2")]
    pub port: Option<i32>,
    /// In an answer: PID of the page server.
    #[prost(int32, optional, tag = "3")]
    pub pid: Option<i32>,
    /// In place of address and port: a descriptor of CRIU's that is connected already.
    #[prost(int32, optional, tag = "4")]
    pub fd: Option<i32>,
}

/// A namespace that restored processes are put into (`join_namespace`).
#[derive(Clone, PartialEq, Message)]
pub struct JoinNamespace {
    /// Type, such as `net`.
    #[prost(string, required, tag = "1")]
    pub namespace: String,
    /// Path of the namespace's file.
    #[prost(string, required, tag = "2")]
    pub file: String,
    /// For a user namespace: `UID,GID`.
    #[prost(string, optional, tag = "3")]
    pub extra: Option<String>,
}

/// The options of a request (`criu_opts`).
#[derive(Clone, PartialEq, Message)]
pub struct Options {
    /// Descriptor of the directory of images, in the process that made the socket; -1 where [`Options::images_dir`] says it.
    /// [`Criu::ask`](crate::Criu::ask) sets both, unless the conversation began with [`Criu::over`](crate::Criu::over).
    #[prost(int32, required, tag = "1")]
    pub images_dir_fd: i32,
    /// The topmost of the processes to dump, as numbered in CRIU's PID namespace.
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    /// Whether the processes go on after a dump.
    #[prost(bool, optional, tag = "3")]
    pub leave_running: Option<bool>,
    /// Whether UNIX sockets may lead to processes that are not dumped.
    #[prost(bool, optional, tag = "4")]
    pub ext_unix_sk: Option<bool>,
    /// Whether TCP connections may be open.
    #[prost(bool, optional, tag = "5")]
    pub tcp_established: Option<bool>,
    /// Whether any path to a device will do if the original is gone.
    #[prost(bool, optional, tag = "6")]
    pub evasive_devices: Option<bool>,
    /// Whether the session and the terminal may belong to processes that are not dumped.
    #[prost(bool, optional, tag = "7")]
    pub shell_job: Option<bool>,
    /// Whether locks of files may be held.
    #[prost(bool, optional, tag = "8")]
    pub file_locks: Option<bool>,
    /// From 0 (nothing) to 4 (everything).
    #[prost(int32, optional, tag = "9")]
    pub log_level: Option<i32>,
    /// Name of a log file in the directory of images.
    #[prost(string, optional, tag = "10")]
    pub log_file: Option<String>,
    /// Where pages go in place of a file (`ps`).
    #[prost(message, optional, tag = "11")]
    pub page_server: Option<PageServer>,
    /// Whether CRIU tells of each stage, and waits there for [`Criu::proceed`](crate::Criu::proceed).
    #[prost(bool, optional, tag = "12")]
    pub notify_scripts: Option<bool>,
    /// The root directory of restored processes.
    #[prost(string, optional, tag = "13")]
    pub root: Option<String>,
    /// Directory of the pre-dump before, relative to that of the images.
    #[prost(string, optional, tag = "14")]
    pub parent_img: Option<String>,
    /// Whether the kernel is to note which pages change from now on.
    #[prost(bool, optional, tag = "15")]
    pub track_mem: Option<bool>,
    /// Whether an image no longer keeps what a process has got of it.
    #[prost(bool, optional, tag = "16")]
    pub auto_dedup: Option<bool>,
    /// Whether open files that have no name any more may get one.
    #[prost(bool, optional, tag = "18")]
    pub link_remap: Option<bool>,
    /// What is done with control groups (`manage_cgroups_mode`).
    #[prost(enumeration = "CgroupMode", optional, tag = "34")]
    pub cgroup_mode: Option<i32>,
    /// Size of the largest file without a name that goes into an image, in bytes.
    #[prost(uint32, optional, tag = "35")]
    pub ghost_limit: Option<u32>,
    /// Resources that are not dumped and given to the restore, such as `mnt[KEY]:VALUE`.
    #[prost(string, repeated, tag = "37")]
    pub external: Vec<String>,
    /// Namespaces that are restored without their contents, as `CLONE_NEW*` flags; only `CLONE_NEWNET`.
    #[prost(uint32, optional, tag = "38")]
    pub empty_ns: Option<u32>,
    /// Namespaces that restored processes are put into.
    #[prost(message, repeated, tag = "39")]
    pub join_ns: Vec<JoinNamespace>,
    /// Seconds until a dump gives up.
    #[prost(uint32, optional, tag = "45")]
    pub timeout: Option<u32>,
    /// Whether connections that are just being made are left out.
    #[prost(bool, optional, tag = "46")]
    pub tcp_skip_in_flight: Option<bool>,
    /// Whether a restore goes on where a sysctl cannot be set.
    #[prost(bool, optional, tag = "47")]
    pub weak_sysctls: Option<bool>,
    /// Whether pages are brought when the restored processes need them.
    #[prost(bool, optional, tag = "48")]
    pub lazy_pages: Option<bool>,
    /// Whether the other end of a terminal comes from outside.
    #[prost(bool, optional, tag = "50")]
    pub orphan_pts_master: Option<bool>,
    /// Whether TCP connections are restored closed.
    #[prost(bool, optional, tag = "52")]
    pub tcp_close: Option<bool>,
    /// `TYPE:NAME` of the security profile of restored processes.
    #[prost(string, optional, tag = "53")]
    pub lsm_profile: Option<String>,
    /// How connections are kept silent.
    #[prost(enumeration = "NetworkLock", optional, tag = "64")]
    pub network_lock: Option<i32>,
    /// Whether CRIU does without `CAP_SYS_ADMIN` on the host: `CAP_CHECKPOINT_RESTORE` in its user namespace is enough.
    #[prost(bool, optional, tag = "67")]
    pub unprivileged: Option<bool>,
    /// Path of the directory of images.
    #[prost(string, optional, tag = "68")]
    pub images_dir: Option<String>,
    /// Whether the log goes to CRIU's standard error.
    #[prost(bool, optional, tag = "71")]
    pub log_to_stderr: Option<bool>,
}

/// What the kernel offers (`criu_features`). In a request: what to look at.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Features {
    /// Telling which pages have changed: pre-dumps work.
    #[prost(bool, optional, tag = "1")]
    pub mem_track: Option<bool>,
    /// Bringing pages when they are needed.
    #[prost(bool, optional, tag = "2")]
    pub lazy_pages: Option<bool>,
    /// Telling a process from a later one with the same PID.
    #[prost(bool, optional, tag = "3")]
    pub pidfd_store: Option<bool>,
}

/// A request; or whether CRIU is to proceed from a stage (`criu_req`).
#[derive(Clone, PartialEq, Message)]
pub struct CriuRequest {
    /// What is asked for (`type`).
    #[prost(enumeration = "RequestType", required, tag = "1")]
    pub kind: i32,
    /// How it is to be done (`opts`).
    #[prost(message, optional, tag = "2")]
    pub options: Option<Options>,
    /// Whether CRIU may proceed.
    #[prost(bool, optional, tag = "3")]
    pub notify_success: Option<bool>,
    /// Whether more requests follow. Only questions allow it.
    #[prost(bool, optional, tag = "4")]
    pub keep_open: Option<bool>,
    /// What to look at.
    #[prost(message, optional, tag = "5")]
    pub features: Option<Features>,
    /// PID of the child to wait for.
    #[prost(uint32, optional, tag = "6")]
    pub pid: Option<u32>,
}

/// The stage that CRIU has reached (`criu_notify`).
#[derive(Clone, PartialEq, Message)]
pub struct Notify {
    /// Name of the stage (`script`).
    #[prost(string, optional, tag = "1")]
    pub stage: Option<String>,
    /// At some stages of a restore: PID of the topmost process.
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}

/// What was restored (`criu_restore_resp`).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RestoredTree {
    /// PID of the topmost process.
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
}

/// A version of CRIU (`criu_version`). Versions are compared by their numbers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Version {
    /// 4 of 4.1.2.
    #[prost(int32, required, tag = "1")]
    pub major: i32,
    /// 1 of 4.1.2.
    #[prost(int32, required, tag = "2")]
    pub minor: i32,
    /// Commit that it was built of, if it is no release.
    #[prost(string, optional, tag = "3")]
    pub gitid: Option<String>,
    /// 2 of 4.1.2.
    #[prost(int32, optional, tag = "4")]
    pub sublevel: Option<i32>,
}

impl Version {
    /// Whether this is version `major.minor` or a later one.
    #[must_use]
    pub fn is_at_least(&self, major: i32, minor: i32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.sublevel.filter(|sublevel| *sublevel > 0).map_or(Ok(()), |sublevel| write!(f, ".{sublevel}"))
    }
}

/// An answer, or a stage that CRIU has reached (`criu_resp`).
#[derive(Clone, PartialEq, Message)]
pub struct CriuResponse {
    /// What this answers (`type`).
    #[prost(enumeration = "RequestType", required, tag = "1")]
    pub kind: i32,
    /// Whether it went well.
    #[prost(bool, required, tag = "2")]
    pub success: bool,
    /// What was restored (`restore`).
    #[prost(message, optional, tag = "4")]
    pub restored: Option<RestoredTree>,
    /// The stage reached.
    #[prost(message, optional, tag = "5")]
    pub notify: Option<Notify>,
    /// Where the page server listens (`ps`).
    #[prost(message, optional, tag = "6")]
    pub page_server: Option<PageServer>,
    /// The number of the system's error (`cr_errno`).
    #[prost(int32, optional, tag = "7")]
    pub errno: Option<i32>,
    /// What the kernel offers.
    #[prost(message, optional, tag = "8")]
    pub features: Option<Features>,
    /// The first error of the log (`cr_errmsg`).
    #[prost(string, optional, tag = "9")]
    pub message: Option<String>,
    /// The version.
    #[prost(message, optional, tag = "10")]
    pub version: Option<Version>,
    /// Exit status of the child that was waited for, as `waitpid` gives it.
    #[prost(int32, optional, tag = "11")]
    pub status: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the protocol buffers of CRIU's own clients encode it: field number and wire type, then the value.
    #[test]
    fn a_question_is_encoded_as_criu_reads_it() {
        let options = Options {
            images_dir_fd: -1,
            pid: Some(2),
            network_lock: Some(NetworkLock::Nftables.into()),
            unprivileged: Some(true),
            images_dir: Some("/i".into()),
            ..Options::default()
        };
        let request =
            CriuRequest { kind: RequestType::Dump.into(), options: Some(options), ..CriuRequest::default() };
        let minus_one = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let rest = [0x10, 2, 0x80, 4, 2, 0x98, 4, 1, 0xa2, 4, 2, b'/', b'i'];
        let inner = [&minus_one[..], &rest].concat();
        let wanted = [&[0x08, 1, 0x12, u8::try_from(inner.len()).unwrap()][..], &inner].concat();
        assert_eq!(request.encode_to_vec(), wanted);
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let version = |major, minor, sublevel| Version { major, minor, sublevel, gitid: None };
        for (version, text, new_enough) in [
            (version(4, 1, None), "4.1", true),
            (version(4, 10, Some(2)), "4.10.2", true),
            (version(5, 0, Some(0)), "5.0", true),
            (version(3, 17, Some(1)), "3.17.1", false),
        ] {
            assert_eq!((version.to_string().as_str(), version.is_at_least(4, 1)), (text, new_enough));
        }
    }

    #[test]
    fn what_is_not_known_in_an_answer_is_passed_over() {
        let bytes = [0x08, 6, 0x10, 1, 0x2a, 3, 0x0a, 1, b'x', 0xf8, 0x7f, 5];
        let answer = CriuResponse::decode(&bytes[..]).expect("valid");
        assert_eq!((answer.kind, answer.success), (RequestType::Notify.into(), true));
        assert_eq!(answer.notify.and_then(|n| n.stage).as_deref(), Some("x"));
        for (cut, reason) in [(1, "invalid varint"), (5, "invalid varint"), (7, "buffer underflow")] {
            let refused = CriuResponse::decode(&bytes[..cut]).expect_err("cut").to_string();
            assert!(refused.contains(reason), "{cut} bytes: {refused}");
        }
    }
}
