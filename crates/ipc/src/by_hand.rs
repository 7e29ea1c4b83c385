//! Protocols of `spec`, which knows nothing of processes.

use skiff_spec::job::JobSpec;
use skiff_spec::wire::{MOST_BYTES, Reply, Request};

use crate::{Codec, Framing, Protocol, Unanswered};

impl Codec for Request {
    const LONGEST: usize = MOST_BYTES;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        Some(self.encode()).filter(|bytes| bytes.len() <= MOST_BYTES)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= MOST_BYTES).then(|| Self::decode(bytes)).flatten()
    }
}

impl Codec for Reply {
    const LONGEST: usize = MOST_BYTES;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        Some(self.encode()).filter(|bytes| bytes.len() <= MOST_BYTES)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= MOST_BYTES).then(|| Self::decode(bytes)).flatten()
    }
}

impl Protocol for Request {
    type Answer = Reply;
    const NAME: &'static str = "Helper";
    const SIDES: [&'static str; 2] = ["`skiff`, as the user", "the setuid helper"];
    const FRAMING: Framing = Framing::Own(
        "The helper reads it with root's rights: some bytes by hand need no parser of documents. Each message is one packet.",
    );
}

impl Codec for JobSpec {
    const LONGEST: usize = LONGEST_DESCRIPTOR;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        self.to_line().ok().map(String::into_bytes).filter(|line| line.len() <= LONGEST_DESCRIPTOR)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(bytes).ok().filter(|line| line.len() <= LONGEST_DESCRIPTOR)?;
        Self::from_line(line).ok()
    }
}

/// The kernel starts no program with a longer variable (`MAX_ARG_STRLEN`).
const LONGEST_DESCRIPTOR: usize = 128 << 10;

impl Protocol for JobSpec {
    type Answer = Unanswered;
    const NAME: &'static str = "Job spec";
    const SIDES: [&'static str; 2] = ["`skiff slurm submit`", "`skiff slurm` on each node"];
    const FRAMING: Framing =
        Framing::Own("Slurm carries it as the value of a variable, so it is one line of JSON.");
}
