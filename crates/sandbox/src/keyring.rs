//! Keys of an environment that can be saved: a session's keyring of its own, so that what its processes put there can be seen from
//! outside. The kernel does not say which keyring a process has. One with a name can be joined in the user namespace where it was made.

use std::ffi::CStr;

use skiff_sys::IgnoreError;
use skiff_sys::keyring::{self, KeySerial};

/// Name of the keyring.
pub const NAME: &CStr = c"skiff";

/// In process 1, before anything else is in the environment: what it makes has a session's keyring of the environment's own, where what is in
/// that of its maker is found, too.
pub(crate) fn become_own() {
    let outer = keyring::resolve(KeySerial::SESSION);
    let made = keyring::join_session(NAME).and_then(|own| {
        keyring::make_joinable(own)?;
        outer.map_or(Ok(()), |outer| keyring::link(outer, own))
    });
    made.ignore_error(
        "without keyrings there are no keys; where the user has too many, it keeps its maker's",
    );
}

/// In process 1, once it is root inside: what is in the keyring of that user is found, too, as it is in a session without a keyring of its own.
pub(crate) fn link_users() {
    keyring::resolve(KeySerial::USER_SESSION)
        .and_then(|of_user| keyring::link(of_user, KeySerial::SESSION))
        .ignore_error("without keyrings there are no keys");
}

/// In a process that has joined the environment's user namespace: it gets the environment's keyring.
pub(crate) fn join() {
    keyring::join_session(NAME)
        .map(drop)
        .ignore_error("without keyrings there are no keys, and other environments have none of their own");
}
