//! What is kept of an instance: a directory of the user's state with its name, which holds what it was started as, what its command has
//! written, how it ended, and what a running one needs.

use std::fs::{self};
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::{End, Ended, Started};
use skiff_spec::name::EnvName;
use skiff_store::index::ImageName;
use skiff_sys::clock::now;
use skiff_sys::small_file;
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, own_dir};
use skiff_user::named;

use crate::control::{ControlRequest, Live, SupervisorStatus};
use crate::lock;

pub(crate) const STARTED: &str = "instance.json";
const ENDED: &str = "ended.json";
pub(crate) const OUTPUT: &str = "output";
const ADDRESS: &str = "address.json";
pub(crate) const IMAGE: &str = "image.json";

/// What is in front of an environment's name, so that it is no image's.
pub const ENV: &str = "env:";

/// For how many milliseconds one is waited for that neither runs nor has gone.
const SOON: u32 = 2000;

/// One instance.
#[derive(Clone, Debug)]
pub struct InstanceDir {
    /// Name of the instance.
    pub name: EnvName,
    /// Directory of the instance.
    pub dir: PathBuf,
}

/// How an instance fares.
pub enum State {
    /// The instance runs.
    Running(Live),
    /// The instance has ended, and it is known how.
    Ended(Ended),
    /// The instance has ended, and nobody has noted how: its supervisor was killed, or the machine.
    Lost,
}

/// Where all of them are.
pub fn home(context: &UserContext) -> Result<PathBuf> {
    own_dir(context, "instance")
}

impl InstanceDir {
    /// By name, whether there is one or not.
    pub fn named(context: &UserContext, name: &EnvName) -> Result<Self> {
        Ok(Self { name: name.clone(), dir: home(context)?.join(name.as_str()) })
    }

    /// By name; there must be one.
    pub fn existing(context: &UserContext, name: &EnvName) -> Result<Self> {
        let record = Self::named(context, name)?;
        if record.is_there() {
            return Ok(record);
        }
        Err(named::no_such("instance", name, Self::all(context)?.iter().map(|record| &record.name), None))
    }

    /// All, by name.
    pub fn all(context: &UserContext) -> Result<Vec<Self>> {
        let dir = home(context)?;
        let record = |name: EnvName| Self { dir: dir.join(name.as_str()), name };
        Ok(named::all(&dir, STARTED)?.into_iter().map(record).collect())
    }

    /// Whether it is there, whole.
    pub fn is_there(&self) -> bool {
        dirs::is_whole(&self.dir, STARTED)
    }

    /// Refuses if the name is a running one's.
    pub fn refuse_taken(&self) -> Result<()> {
        match self.is_there() && self.lock_ended()?.is_none() {
            true => Err(self.taken()),
            false => Ok(()),
        }
    }

    /// The lock of one that has ended; nothing if it runs. Its supervisor goes, and with that its lock, a moment after everybody is told of
    /// its end, and one that is being started cannot be asked yet: those are waited for.
    pub fn lock_ended(&self) -> Result<Option<OwnedFd>> {
        for _ in 0..SOON {
            if let Some(lock) = lock::try_lock(&self.dir)? {
                return Ok(Some(lock));
            }
            if Live::connect(&self.dir, ControlRequest::Status)?.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    pub(crate) fn taken(&self) -> Error {
        Error::new(format!("instance {} is already running", self.name))
            .hint(format!("`skiff instance stop {}` ends it; or choose another name", self.name))
    }

    /// What it was started as.
    pub fn started(&self) -> Result<Started> {
        read(&self.dir.join(STARTED))?
            .ok_or_else(|| Error::new(format!("instance {} no longer exists", self.name)))
    }

    /// The image below it, with how its programs are run.
    pub fn image(&self) -> Result<Option<ImageName>> {
        Ok(ImageName::read(&self.dir.join(IMAGE))?)
    }

    /// How it fares.
    pub fn state(&self) -> Result<State> {
        match Live::connect(&self.dir, ControlRequest::Status)? {
            Some(live) => Ok(State::Running(live)),
            None => self.end(),
        }
    }

    /// How it fares, for a list of many; nothing if its supervisor does not answer soon.
    pub fn state_for_list(&self) -> Result<Option<State>> {
        match Live::status(&self.dir)? {
            SupervisorStatus::Running(live) => Ok(Some(State::Running(live))),
            SupervisorStatus::NotRunning => self.end().map(Some),
            SupervisorStatus::Silent => Ok(None),
        }
    }

    /// How one fares that does not run.
    fn end(&self) -> Result<State> {
        Ok(read(&self.dir.join(ENDED))?.map_or(State::Lost, State::Ended))
    }

    /// The file that its command writes to.
    pub fn output(&self) -> PathBuf {
        self.dir.join(OUTPUT)
    }

    /// How many bytes its command has written to that.
    pub fn written(&self) -> Result<u64> {
        let path = self.output();
        fs::metadata(&path).map(|about| about.len()).context(|| path.display().to_string())
    }

    /// Writes down its address on a network of the site's.
    pub fn note_address(&self, address: Ipv4Addr) -> Result<()> {
        write(&self.dir.join(ADDRESS), &address)
    }

    /// That address.
    pub fn address(&self) -> Result<Ipv4Addr> {
        let none = || Error::new(format!("instance {}: it has no address", self.name));
        read(&self.dir.join(ADDRESS))?.ok_or_else(none)
    }

    /// Whether it is written down how it ended, or why it is about to.
    pub fn end_is_noted(&self) -> bool {
        self.dir.join(ENDED).exists()
    }

    /// Writes down how its command ended.
    pub fn note_end(&self, end: Option<End>) -> Result<()> {
        let new = self.dir.join(".ended");
        write(&new, &Ended { end, at: now() })?;
        fs::rename(&new, self.dir.join(ENDED)).context(|| self.dir.display().to_string())
    }
}

pub(crate) fn write(path: &Path, data: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(data).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    small_file::write(path, &text).context(|| path.display().to_string())
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match small_file::read(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        text => {
            serde_json::from_slice(&text.context(|| path.display().to_string())?).map(Some).map_err(|e| {
                Error::new(format!("{}: {e}", path.display())).hint("`skiff instance rm` removes it")
            })
        }
    }
}
