//! Why a command does not run, as an enum and over a pipe.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;

use skiff_spec::fault::Fault;
use skiff_spec::named_option::NamedOption;
use skiff_sys::IgnoreError;

use crate::command::{CommandSpec, NotStarted, exit_code};

/// Why a command does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Something of ours.
    Skiff(Fault),
    /// The command itself could not be started: it, and the errno.
    Command(OsString, i32),
}

impl Failed {
    /// As an error for where no command of the user's is started.
    #[must_use]
    pub fn into_error(self) -> Fault {
        match self {
            Self::Skiff(e) => e,
            Self::Command(name, errno) => {
                Fault::new(format!("{}: {}", name.display(), io::Error::from_raw_os_error(errno)))
            }
        }
    }

    pub(crate) fn to_start(command: &CommandSpec, why: &NotStarted) -> Self {
        match why {
            NotStarted::Program(e) => {
                let name = command.argv.first().cloned().unwrap_or_default();
                Self::Command(name, e.raw_os_error().unwrap_or(0))
            }
            NotStarted::User(e) => {
                let user = command.user.as_deref().unwrap_or_default();
                let (why, hint) = match e.kind() {
                    io::ErrorKind::NotFound => (
                        "no such user or group inside".into(),
                        "a user is a name of /etc/passwd inside, or a number; root is always there",
                    ),
                    io::ErrorKind::InvalidInput => (
                        "you have no such id inside".into(),
                        "there are as many as /etc/subuid gives you: `skiff doctor`; root is always there",
                    ),
                    _ => (e.to_string(), ""),
                };
                Fault::new(format!("user {user:?}: {why}")).hint(hint).into()
            }
            NotStarted::Untrusted(e) if !command.untrusted && command.seen_as.is_some() => {
                Fault::new(format!("user namespace in which you are yourself: {e}"))
                    .hint("the kernel must allow one more user namespace (user.max_user_namespaces)")
                    .into()
            }
            NotStarted::Untrusted(e) => Fault::new(format!("confinement of an untrusted program: {e}"))
                .hint("the kernel needs CONFIG_SECCOMP_FILTER and must allow one more user namespace (user.max_user_namespaces)")
                .into(),
            NotStarted::Limits(e) => {
                let limits = command.limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                Fault::new(format!("resource limits {limits}: {e}"))
                    .hint("no limit may be above your hard limit: `ulimit -Ha`")
                    .into()
            }
            NotStarted::Directory(e) => {
                let (mount, elsewhere) = (NamedOption::Mount.with("DIR"), NamedOption::WorkingDir.with("DIR"));
                let hint = match command.cwd.starts_with("/home") {
                    true => format!(
                        "your home hides what an image has in /home: {} shows that, {elsewhere} starts elsewhere",
                        NamedOption::NoHome
                    ),
                    false => format!(
                        "it must exist inside, and be open to the one who works there: {mount} mounts a directory, {elsewhere} starts in another"
                    ),
                };
                Fault::new(format!("working directory {}: {e}", command.cwd.display())).hint(hint).into()
            }
        }
    }

    /// For the maker of this process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Command(_, errno) => [b"X", &errno.to_le_bytes()[..]].concat(),
            Self::Skiff(e) => [b"E", &e.to_bytes()[..]].concat(),
        }
    }

    /// Says it to the maker of this process.
    pub(crate) fn report(&self, reporter: &OwnedFd) {
        rustix::io::write(reporter, &self.to_bytes())
            .ignore_error("if the maker is gone there is nobody to tell");
    }

    /// What was said of `command`; nothing, by the end of the pipe, when it has become the program.
    #[must_use]
    pub fn reported(word: &[u8], command: &CommandSpec) -> Option<Self> {
        match word.split_first()? {
            (b'X', errno) => {
                let errno = errno.try_into().map_or(0, i32::from_le_bytes);
                Some(Self::Command(command.argv.first().cloned().unwrap_or_default(), errno))
            }
            (_, text) => Some(Self::Skiff(Fault::from_bytes(text))),
        }
    }

    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Command(_, errno) => exit_code(&io::Error::from_raw_os_error(*errno)),
            Self::Skiff(_) => 125,
        }
    }
}

impl From<Fault> for Failed {
    fn from(e: Fault) -> Self {
        Self::Skiff(e)
    }
}
