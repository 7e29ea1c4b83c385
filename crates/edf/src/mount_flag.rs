//! Flags of mounts, as definitions, `--container-mounts` and `skiff run -v` have them in common.

/// What a flag asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountFlag {
    /// What is so in any case: mounts take along what lies below, and no file in them makes anybody another user or opens a device of the
    /// container's.
    AsEver,
    /// Nobody inside writes to it.
    ReadOnly,
    /// Nothing that is mounted later comes in or out.
    Private,
    /// What is mounted on the host later comes in.
    Slave,
    /// Nobody can mount the same again elsewhere.
    Unbindable,
    /// The source is a file with a squashfs file system in it.
    Squashfs,
}

impl MountFlag {
    /// Understands a flag; nothing if it is none of these.
    #[must_use]
    pub fn parse(flag: &str) -> Option<Self> {
        Some(match flag {
            "" | "rw" | "bind" | "rbind" | "nosuid" | "nodev" => Self::AsEver,
            "ro" => Self::ReadOnly,
            "private" | "rprivate" => Self::Private,
            "slave" | "rslave" => Self::Slave,
            "unbindable" | "runbindable" => Self::Unbindable,
            "sqsh" | "squashfs" => Self::Squashfs,
            _ => return None,
        })
    }
}
