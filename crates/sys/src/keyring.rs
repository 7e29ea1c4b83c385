//! Keyrings of the kernel's (`keyctl(2)`), for which no library has a function.
//!
//! A keyring's name is looked up among those that processes of the same user namespace have named.

use std::ffi::CStr;
use std::io;

/// A key or keyring, by its serial number, or by what it is to the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySerial(i32);

impl KeySerial {
    /// The session's.
    pub const SESSION: Self = Self(-3);
    /// The keyring that all processes of the user have, in this user namespace.
    pub const USER: Self = Self(-4);
    /// What is the session's where none was made.
    pub const USER_SESSION: Self = Self(-5);

    /// From the hexadecimal number in `/proc/keys`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        i32::from_str_radix(text, 16).ok().map(Self)
    }

    /// As `/proc/keys` has it.
    #[must_use]
    pub fn text(self) -> String {
        format!("{:08x}", self.0)
    }
}

/// Every right for who possesses it; to see, read and find it for the user.
const JOINABLE: u32 = 0x3f0b_0000;
/// No keyring of a user's holds more.
const LONGEST: usize = 1 << 16;

const GET_KEYRING_ID: libc::c_int = 0;
const JOIN_SESSION_KEYRING: libc::c_int = 1;
const SETPERM: libc::c_int = 5;
const DESCRIBE: libc::c_int = 6;
const LINK: libc::c_int = 8;
const UNLINK: libc::c_int = 9;
const READ: libc::c_int = 11;
const GET_PERSISTENT: libc::c_int = 22;

/// The session's keyring of the calling process becomes the one of this name; a new one if there is none that it may join.
///
/// # Errors
/// `ENOSYS` without keyrings, `EPERM` where a filter forbids them, `EDQUOT` when the user has too many.
pub fn join_session(name: &CStr) -> io::Result<KeySerial> {
    // SAFETY: the kernel reads a string, which lives through the call.
    serial(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, name.as_ptr()) })
}

/// Lets other processes of the user join a keyring by its name.
///
/// # Errors
/// `EACCES` if it is not the caller's.
pub fn make_joinable(keyring: KeySerial) -> io::Result<()> {
    // SAFETY: plain integers.
    serial(unsafe { libc::syscall(libc::SYS_keyctl, SETPERM, keyring.0, JOINABLE) }).map(drop)
}

/// The serial number of a keyring of the calling process.
///
/// # Errors
/// As [`join_session`].
pub fn resolve(keyring: KeySerial) -> io::Result<KeySerial> {
    // SAFETY: plain integers.
    serial(unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING_ID, keyring.0, 0) })
}

/// What is found in `key` is found in `keyring`, too.
///
/// # Errors
/// `EACCES` where the caller has not the right.
pub fn link(key: KeySerial, keyring: KeySerial) -> io::Result<()> {
    // SAFETY: plain integers.
    serial(unsafe { libc::syscall(libc::SYS_keyctl, LINK, key.0, keyring.0) }).map(drop)
}

/// The keyring that the user keeps between sessions, in this user namespace. A new one if there is none.
///
/// # Errors
/// `EOPNOTSUPP` where the kernel has none.
pub fn persistent() -> io::Result<KeySerial> {
    let session = KeySerial::SESSION.0;
    // SAFETY: plain integers.
    let found = serial(unsafe { libc::syscall(libc::SYS_keyctl, GET_PERSISTENT, -1, session) })?;
    // It has been linked into the session's, which was not wanted.
    // SAFETY: plain integers.
    serial(unsafe { libc::syscall(libc::SYS_keyctl, UNLINK, found.0, session) }).map(|_| found)
}

/// What is in a keyring.
///
/// # Errors
/// `EACCES` of one that the caller may not read.
pub fn keys(keyring: KeySerial) -> io::Result<Vec<KeySerial>> {
    let mut serials = vec![0_i32; LONGEST];
    let size = size_of::<i32>() * serials.len();
    // SAFETY: the kernel writes at most `size` bytes into a buffer of that size.
    let length = unsafe { libc::syscall(libc::SYS_keyctl, READ, keyring.0, serials.as_mut_ptr(), size) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    // It may have more, of which it says only how many bytes they are.
    serials.truncate(usize::try_from(length).map_err(io::Error::other)? / size_of::<i32>());
    Ok(serials.into_iter().map(KeySerial).collect())
}

/// A key's type and its own description.
///
/// # Errors
/// `EACCES` of one that the caller may not see, `ENOKEY` if it is gone.
pub fn describe(key: KeySerial) -> io::Result<(String, String)> {
    let mut text = vec![0_u8; LONGEST];
    // SAFETY: the kernel writes at most so many bytes into a buffer of that size.
    let length = unsafe { libc::syscall(libc::SYS_keyctl, DESCRIBE, key.0, text.as_mut_ptr(), text.len()) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    text.truncate(usize::try_from(length).map_err(io::Error::other)?);
    let text = String::from_utf8_lossy(&text);
    // `TYPE;UID;GID;PERMISSIONS;DESCRIPTION`
    let mut fields = text.trim_end_matches('\0').splitn(5, ';');
    let kind = fields.next().unwrap_or_default().to_owned();
    Ok((kind, fields.nth(3).unwrap_or_default().to_owned()))
}

fn serial(returned: libc::c_long) -> io::Result<KeySerial> {
    if returned < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(returned).map(KeySerial).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own: a keyring is joined by the calling thread alone.
    #[test]
    fn a_keyring_is_joined_and_read() {
        let joined = std::thread::spawn(|| {
            let keyring = match join_session(c"skiff-test") {
                Ok(keyring) => keyring,
                // A kernel without keyrings, or a container that has none.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => return,
                Err(e) => panic!("{e}"),
            };
            make_joinable(keyring).expect("its own");
            assert_eq!(resolve(KeySerial::SESSION).expect("there"), keyring);
            assert_eq!(describe(keyring).expect("seen"), ("keyring".into(), "skiff-test".into()));
            assert_eq!(keys(keyring).expect("read"), []);
            let user = resolve(KeySerial::USER).expect("every user has one");
            link(user, keyring).expect("linked");
            assert_eq!(keys(keyring).expect("read"), [user]);
            assert_eq!(KeySerial::parse(&keyring.text()), Some(keyring));
        });
        joined.join().expect("as it should be");
    }
}
