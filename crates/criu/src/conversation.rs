//! The course of what CRIU was asked for, however its events are waited for.

use crate::rpc::CriuResponse;

/// What CRIU says while it works on a request.
#[derive(Clone, Debug, PartialEq)]
pub enum CriuEvent {
    /// The name of a stage that CRIU has reached. CRIU waits for [`Criu::proceed`](crate::Criu::proceed).
    ///
    /// Stages of a dump: `pre-dump`, `network-lock`, `post-dump`. Of a restore: `pre-restore`, `setup-namespaces`, `post-setup-namespaces`,
    /// `post-restore`, `network-unlock`, `pre-resume`, `post-resume`.
    Stage(String),
    /// CRIU has done what it was asked for.
    Done(CriuResponse),
}

/// Sees a dump, restore or check through, once CRIU has been asked for it. `next` waits for CRIU's next event, `proceed` has it proceed from a stage or
/// take everything back, and `at` is called at each stage. If `at` fails, CRIU takes everything back.
///
/// # Errors
/// The error of `at`, else that of `next` or `proceed`.
pub fn see_through<E>(
    mut next: impl FnMut() -> Result<CriuEvent, E>,
    mut proceed: impl FnMut(bool) -> Result<(), E>,
    mut at: impl FnMut(&str) -> Result<(), E>,
) -> Result<CriuResponse, E> {
    let mut refused = None;
    loop {
        match next() {
            Ok(CriuEvent::Done(answer)) => return refused.map_or(Ok(answer), Err),
            Ok(CriuEvent::Stage(stage)) => {
                let outcome = at(&stage);
                proceed(outcome.is_ok())?;
                refused = refused.or(outcome.err());
            }
            // What CRIU says then follows from its being told to stop.
            Err(why) => return Err(refused.unwrap_or(why)),
        }
    }
}

/// Has CRIU take back what it did, and waits until that is done. CRIU may be waiting at a stage.
pub fn take_back<E>(
    mut next: impl FnMut() -> Result<CriuEvent, E>,
    mut proceed: impl FnMut(bool) -> Result<(), E>,
) {
    loop {
        // CRIU takes everything back if it does not hear that, too: what is waited for is the end.
        let (Ok(()) | Err(_)) = proceed(false);
        if !matches!(next(), Ok(CriuEvent::Stage(_))) {
            return;
        }
    }
}
