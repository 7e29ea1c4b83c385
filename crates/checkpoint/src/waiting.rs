//! A process inside an instance that has entered before it is needed: so what that takes is over when the instance's processes stand still.

use std::io::{PipeWriter, Read as _, Write as _};
use std::marker::PhantomData;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_ipc::ReportingChild;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

/// The process, in messages.
const NAME: &str = "process that waits in the instance";

/// How long one may take to end that nobody has asked.
const ENDING: Duration = Duration::from_secs(10);

/// A process that waits inside until it is asked for something. One that is not asked ends as this is dropped.
pub struct WaitingProcess<R, T: Serialize + DeserializeOwned> {
    child: Option<ReportingChild<T>>,
    request: Option<PipeWriter>,
    asked: PhantomData<fn(R)>,
}

impl<R: Serialize + DeserializeOwned, T: Serialize + DeserializeOwned> WaitingProcess<R, T> {
    /// Starts it; it runs `act` with the request. `keep` are the descriptors that it needs.
    ///
    /// # Errors
    /// When there are no processes or descriptors to be had.
    pub fn begin(
        inside: EnterTarget<'_>,
        keep: &[BorrowedFd<'_>],
        act: impl FnOnce(R) -> Result<T>,
    ) -> Result<Self> {
        let (asked, request) = std::io::pipe().context(|| NAME)?;
        let kept = [keep, &[asked.as_fd()]].concat();
        let child = enter::begin_continued(EnterTarget { number: None, ..inside }, &kept, || {
            let mut text = vec![];
            (&asked).read_to_end(&mut text).context(|| NAME)?;
            // If nobody has asked, nobody hears of this.
            act(serde_json::from_slice(&text).map_err(|e| Fault::new(format!("{NAME}: {e}")))?)
        })?;
        Ok(Self { child: Some(child), request: Some(request), asked: PhantomData })
    }

    /// Asks it; what it gave.
    ///
    /// # Errors
    /// Its own, or that the environment is gone.
    pub fn ask(mut self, request: &R) -> Result<T> {
        let text = serde_json::to_vec(request).map_err(|e| Fault::new(format!("{NAME}: {e}")))?;
        if let Some(mut pipe) = self.request.take() {
            pipe.write_all(&text).ignore_error("it has ended, and says why");
        }
        let unsaid = || Fault::new(format!("{NAME}: it has been asked already"));
        self.child.take().ok_or_else(unsaid)?.end()
    }
}

impl<R, T: Serialize + DeserializeOwned> Drop for WaitingProcess<R, T> {
    fn drop(&mut self) {
        self.request = None;
        if let Some(child) = self.child.take() {
            child.end_by(Instant::now() + ENDING).ignore_error("it was not asked");
        }
    }
}
