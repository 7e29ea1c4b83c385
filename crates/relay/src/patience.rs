//! How long a relay waits, and for what.

use std::time::Duration;

/// For so long after the last piece files and answers are kept open: the unread rest of an answer would have to be asked for again.
pub(crate) const KEPT_OPEN: Duration = Duration::from_secs(3);

/// After a connection that could not be accepted: descriptors may be free then.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long other nodes may take.
#[derive(Clone, Copy, Debug)]
pub struct RelayPatience {
    /// Until those that begin at the same time listen.
    pub to_begin: Duration,
    /// To be reached, by all their addresses and ports.
    pub to_connect: Duration,
    /// To prove that they belong to the job.
    pub to_prove: Duration,
    /// To say anything: who waits itself says so twice a second.
    pub to_answer: Duration,
    /// To send what is waited for, before it is seen whether the next node above is faster.
    pub to_send: Duration,
    /// For that next one to send something.
    pub to_try: Duration,
}

impl Default for RelayPatience {
    fn default() -> Self {
        Self {
            to_begin: Duration::from_secs(3),
            to_connect: Duration::from_secs(2),
            to_prove: Duration::from_millis(500),
            to_answer: Duration::from_secs(3),
            to_send: Duration::from_secs(2),
            to_try: Duration::from_secs(1),
        }
    }
}
