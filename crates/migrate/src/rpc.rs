//! What is said to CRIU and what it answers: the messages of its `images/rpc.proto`, as far as they are needed here. Numbers never
//! change there, so fields that are not named here are simply not asked for.

use prost::{Enumeration, Message};

/// What is asked, and what an answer is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// An answer to something that is not understood.
    Empty = 0,
    /// Save processes.
    Dump = 1,
    /// Make them again.
    Restore = 2,
    /// Whether it works at all.
    Check = 3,
    /// The other way round: CRIU tells how far it is, and waits for a word.
    Notify = 6,
    /// What the kernel lets it do.
    FeatureCheck = 9,
    /// Which one it is.
    Version = 10,
}

/// How connections are kept still while nobody has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum NetworkLock {
    /// By a program, `iptables-restore`, which is nowhere inside.
    Iptables = 1,
    /// By the kernel's own interface, without any program.
    Nftables = 2,
    /// Not at all.
    Skip = 3,
}

/// What is done with control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Cgroups {
    /// Nothing: they are the host's.
    Ignore = 0,
}

/// Where pages go in place of a file.
#[derive(Clone, PartialEq, Message)]
pub struct PageServer {
    /// An address.
    #[prost(string, optional, tag = "1")]
    pub address: Option<String>,
    /// A port.
    #[prost(int32, optional, tag = "2")]
    pub port: Option<i32>,
    /// In place of both: a connection of its own.
    #[prost(int32, optional, tag = "4")]
    pub socket: Option<i32>,
}

/// The options of a dump or restore.
#[derive(Clone, PartialEq, Message)]
pub struct Options {
    /// Always -1: CRIU would look for the descriptor of a process that it does not see.
    #[prost(int32, required, tag = "1")]
    pub images_dir_fd: i32,
    /// The topmost of the processes, as numbered where CRIU runs.
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    /// Whether the processes go on after a dump.
    #[prost(bool, optional, tag = "3")]
    pub leave_running: Option<bool>,
    /// Connections may be open.
    #[prost(bool, optional, tag = "5")]
    pub tcp_established: Option<bool>,
    /// Locks of files may be held.
    #[prost(bool, optional, tag = "8")]
    pub file_locks: Option<bool>,
    /// From 0 (nothing) to 4 (everything).
    #[prost(int32, optional, tag = "9")]
    pub log_level: Option<i32>,
    /// Where pages go in place of a file.
    #[prost(message, optional, tag = "11")]
    pub page_server: Option<PageServer>,
    /// What a process has got of an image is no longer kept there.
    #[prost(bool, optional, tag = "16")]
    pub auto_dedup: Option<bool>,
    /// Whether CRIU tells how far it is.
    #[prost(bool, optional, tag = "12")]
    pub notify: Option<bool>,
    /// Open files that have no name any more may get one.
    #[prost(bool, optional, tag = "18")]
    pub link_remap: Option<bool>,
    /// What is done with control groups.
    #[prost(enumeration = "Cgroups", optional, tag = "34")]
    pub cgroups: Option<i32>,
    /// The largest file without a name that goes into an image, in bytes.
    #[prost(uint32, optional, tag = "35")]
    pub ghost_limit: Option<u32>,
    /// How connections are kept still.
    #[prost(enumeration = "NetworkLock", optional, tag = "64")]
    pub network_lock: Option<i32>,
    /// Whether CRIU does without the host's privilege.
    #[prost(bool, optional, tag = "67")]
    pub unprivileged: Option<bool>,
    /// Where the images are.
    #[prost(string, optional, tag = "68")]
    pub images_dir: Option<String>,
    /// Whether CRIU's log goes to its standard error.
    #[prost(bool, optional, tag = "71")]
    pub log_to_stderr: Option<bool>,
}

/// What the kernel may let it do. In a question: what to look at.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Features {
    /// Telling which pages were written since.
    #[prost(bool, optional, tag = "1")]
    pub mem_track: Option<bool>,
    /// Pages that come when they are needed.
    #[prost(bool, optional, tag = "2")]
    pub lazy_pages: Option<bool>,
}

/// A question; or the word that is waited for.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// What is asked.
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub kind: i32,
    /// How.
    #[prost(message, optional, tag = "2")]
    pub options: Option<Options>,
    /// Whether it may go on.
    #[prost(bool, optional, tag = "3")]
    pub go_on: Option<bool>,
    /// There will be more questions.
    #[prost(bool, optional, tag = "4")]
    pub keep_open: Option<bool>,
    /// What to look at.
    #[prost(message, optional, tag = "5")]
    pub features: Option<Features>,
}

/// How far it is.
#[derive(Clone, PartialEq, Message)]
pub struct Notify {
    /// The name of the stage.
    #[prost(string, optional, tag = "1")]
    pub stage: Option<String>,
    /// At some: the topmost of the processes made again.
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}

/// What was made again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Restored {
    /// The topmost process.
    #[prost(int32, required, tag = "1")]
    pub pid: i32,
}

/// Which CRIU it is.
#[derive(Clone, PartialEq, Message)]
pub struct Version {
    /// 4 of 4.1.1.
    #[prost(int32, required, tag = "1")]
    pub major: i32,
    /// 1 of 4.1.1.
    #[prost(int32, required, tag = "2")]
    pub minor: i32,
    /// The last 1 of 4.1.1.
    #[prost(int32, optional, tag = "4")]
    pub sublevel: Option<i32>,
}

/// An answer, or a message of how far it is.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// To what.
    #[prost(enumeration = "Kind", required, tag = "1")]
    pub kind: i32,
    /// Whether it went well.
    #[prost(bool, required, tag = "2")]
    pub success: bool,
    /// What was made again.
    #[prost(message, optional, tag = "4")]
    pub restored: Option<Restored>,
    /// How far it is.
    #[prost(message, optional, tag = "5")]
    pub notify: Option<Notify>,
    /// An errno, if it did not go well.
    #[prost(int32, optional, tag = "7")]
    pub errno: Option<i32>,
    /// What the kernel lets it do.
    #[prost(message, optional, tag = "8")]
    pub features: Option<Features>,
    /// The first thing that went wrong.
    #[prost(string, optional, tag = "9")]
    pub why: Option<String>,
    /// Which one it is.
    #[prost(message, optional, tag = "10")]
    pub version: Option<Version>,
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
        let request = Request { kind: Kind::Dump.into(), options: Some(options), ..Request::default() };
        let minus_one = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let rest = [0x10, 2, 0x80, 4, 2, 0x98, 4, 1, 0xa2, 4, 2, b'/', b'i'];
        let inner = [&minus_one[..], &rest].concat();
        let wanted = [&[0x08, 1, 0x12, u8::try_from(inner.len()).unwrap()][..], &inner].concat();
        assert_eq!(request.encode_to_vec(), wanted);
    }

    #[test]
    fn what_is_not_known_in_an_answer_is_passed_over() {
        let bytes = [0x08, 6, 0x10, 1, 0x2a, 3, 0x0a, 1, b'x', 0xf8, 0x7f, 5];
        let answer = Response::decode(&bytes[..]).expect("valid");
        assert_eq!((answer.kind, answer.success), (Kind::Notify.into(), true));
        assert_eq!(answer.notify.and_then(|n| n.stage).as_deref(), Some("x"));
        for (cut, reason) in [(1, "invalid varint"), (5, "invalid varint"), (7, "buffer underflow")] {
            let refused = Response::decode(&bytes[..cut]).expect_err("cut").to_string();
            assert!(refused.contains(reason), "{cut} bytes: {refused}");
        }
    }
}
