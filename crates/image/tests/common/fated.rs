//! A layer that comes late, never, or whose reader panics.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use skiff_image::blob::{Blob, FileBlob};
use skiff_image::{Error, Result};
use skiff_oci::digest::Digest;

use super::layers::blob;

/// So long the others have to come to where they wait.
const HEAD_START: Duration = Duration::from_millis(100);

/// What becomes of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Comes,
    /// Each read of it takes so long at least.
    Slow(Duration),
    /// The layer's thread has the right to run, and panics.
    PanicsRunning,
    /// The layer's thread lets others run meanwhile, and panics.
    PanicsWaiting,
    PanicsWhenRead,
    /// The layer's bytes never come, unless it is abandoned.
    NeverComes,
}

/// A blob with a fate.
pub struct Fated {
    file: FileBlob,
    fate: Fate,
    abandoned: Mutex<bool>,
    changed: Condvar,
}

impl Fated {
    pub fn new(fate: Fate, bytes: &[u8]) -> Fated {
        let file = blob(bytes, &format!("{fate:?}"));
        Fated { file, fate, abandoned: Mutex::default(), changed: Condvar::new() }
    }
}

impl Blob for Fated {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn size(&self) -> u64 {
        self.file.size()
    }
    fn digest(&self) -> Option<Digest> {
        None
    }
    fn has(&self, _end: u64) -> bool {
        !matches!(self.fate, Fate::Slow(_) | Fate::PanicsWaiting | Fate::NeverComes)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if let Fate::Slow(pause) = self.fate {
            std::thread::sleep(pause);
        }
        // Else it is the look at its beginning or its end, before there are threads.
        if buffer.len() > 100 {
            match self.fate {
                Fate::PanicsRunning | Fate::PanicsWaiting => {
                    std::thread::sleep(HEAD_START);
                    panic!("on purpose");
                }
                Fate::NeverComes => {
                    let abandoned = self.abandoned.lock().unwrap();
                    drop(self.changed.wait_while(abandoned, |abandoned| !*abandoned).unwrap());
                    return Err(Error::Blob("it is not fetched any more".into()));
                }
                Fate::Comes | Fate::Slow(_) | Fate::PanicsWhenRead => {}
            }
        }
        self.file.read_at(buffer, offset)
    }
    fn settle(&self, _got: Option<Digest>) -> Result<()> {
        if self.fate == Fate::PanicsWhenRead {
            std::thread::sleep(HEAD_START);
            panic!("on purpose");
        }
        Ok(())
    }
    fn restart(&self) {}
    fn abandon(&self) {
        *self.abandoned.lock().unwrap() = true;
        self.changed.notify_all();
    }
}
