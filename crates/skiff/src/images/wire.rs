//! What the user's `skiff` and the store's writer say to each other: JSON texts, each behind its length (4 bytes, little
//! endian), and open files behind some of them. Neither trusts the other: what the writer gets it checks as it checks what comes from a network.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use skiff_image::registry::Certificates;
use skiff_image::source::Description;
use skiff_image::store::{Collected, Record, Usage};
use skiff_sandbox::{Context, Error, Result};
use skiff_spec::image::ImageId;
use skiff_sys::fdpass;

/// An image consists of no more files: layers, and the documents that lead to them.
const MOST_FILES: usize = 200;
/// No text is longer, in bytes: a configuration of 4 MiB with all around it fits.
const LONGEST: u32 = 16 << 20;

/// What the writer is asked for: once, then it ends.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Pull an image.
    Pull {
        /// Its name, as the user wrote it.
        reference: String,
        /// The machine it is for: `linux/amd64`.
        platform: String,
        /// The texts of registries.conf that count, with their files' names, the weakest first.
        registries: Vec<(String, String)>,
        /// The user's credentials for the servers concerned.
        logins: Vec<Login>,
        /// The user's own certificates.
        certificates: Certificates,
    },
    /// Import an image from files that the user has opened, and which follow.
    Import {
        /// What they are.
        source: Description,
        /// The machine it is for.
        platform: String,
    },
    /// An image that the user may use: its file, to be read.
    Open(ImageId),
    /// What is known of an image that the user may use.
    Find(ImageId),
    /// The user does not want an image any more.
    Forget(ImageId),
    /// How much room the store takes.
    Usage,
    /// Make room.
    Collect {
        /// How many bytes may stay; nothing: all that somebody may use.
        budget: Option<u64>,
        /// Only say what would go.
        dry_run: bool,
    },
    /// Check images: this one, or all.
    Verify(Option<ImageId>),
    /// The names of an image's files, below a directory.
    Files(ImageId),
}

/// Who the user is to a server.
#[derive(Serialize, Deserialize)]
pub struct Login {
    /// The server and the beginning of a path there, as in `auth.json`.
    pub place: String,
    /// Name and password.
    pub basic: Option<(String, String)>,
    /// Or a token that others are had for.
    pub identity_token: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Login({})", self.place)
    }
}

/// What the writer says: any number of words on how it goes, then the last one.
#[derive(Debug, Serialize, Deserialize)]
pub enum Say {
    /// Another process makes the same image.
    Waiting,
    /// How far the layers are, the lowest first.
    Layers(Vec<Layer>),
    /// It is pulled.
    Pulled {
        /// The name in full.
        name: String,
        /// The image.
        id: ImageId,
        /// What the name means in the registry.
        digest: String,
        /// What is known of it.
        record: Box<Record>,
        /// Whether it was there already.
        there: bool,
    },
    /// What is known of the image whose file, open, follows.
    Opened(Box<Record>),
    /// What is known of the image; nothing if it is not there.
    Found(Option<Box<Record>>),
    /// It is done.
    Done,
    /// The room that the store takes.
    Usage(Usage),
    /// What went.
    Collected(Collected),
    /// What was checked.
    Verified(Vec<Checked>),
    /// Some lines of text.
    Lines(Vec<String>),
    /// It is not done.
    Failed {
        /// What, on which object, why.
        message: String,
        /// How to mend it; may be empty.
        hint: String,
    },
}

/// A layer on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its digest.
    pub digest: String,
    /// Its size as it is sent, in bytes.
    pub size: u64,
    /// How many are here.
    pub fetched: u64,
    /// How many of them are unpacked.
    pub unpacked: u64,
}

/// An image that was checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// The image.
    pub id: ImageId,
    /// What is wrong with it; nothing if it is sound.
    pub fault: Option<String>,
}

/// Sends one text.
pub fn send<T: Serialize>(to: &mut impl Write, word: &T) -> Result<()> {
    let text = serde_json::to_vec(word).map_err(super::json)?;
    let length = u32::try_from(text.len()).ok().filter(|l| *l <= LONGEST);
    let length = length.ok_or_else(|| Error::new("a word too long for the store's writer"))?;
    to.write_all(&[&length.to_le_bytes()[..], &text].concat()).context(|| "the store's writer")
}

/// Takes one text; nothing at the end.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>> {
    receive_text(from)?.map(|text| serde_json::from_slice(&text).map_err(super::json)).transpose()
}

/// The same, as it came.
pub fn receive_text(from: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let what = || "the store's writer";
    let mut length = [0; 4];
    match from.read(&mut length[..1]).context(what)? {
        0 => return Ok(None),
        _ => from.read_exact(&mut length[1..]).context(what)?,
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(Error::new("a word too long from the other side"));
    }
    let mut text = vec![0; length as usize];
    from.read_exact(&mut text).context(what)?;
    Ok(Some(text))
}

/// Sends open files.
pub fn send_files(to: &UnixStream, files: &[OwnedFd]) -> Result<()> {
    let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    files
        .chunks(fdpass::MOST_FDS)
        .try_for_each(|some| fdpass::send(to.as_fd(), &[0], some))
        .context(|| "the store's writer")
}

/// Takes so many open files.
pub fn receive_files(from: &UnixStream, count: usize) -> Result<Vec<OwnedFd>> {
    let mut files = vec![];
    while files.len() < count.min(MOST_FILES) {
        let (bytes, some) = fdpass::receive(from.as_fd(), 1).context(|| "the store's writer")?;
        if bytes.is_empty() || some.is_empty() {
            return Err(Error::new("a file is missing from the other side"));
        }
        files.extend(some);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_went() {
        let mut bytes = vec![];
        let asks = [Ask::Usage, Ask::Find(ImageId([7; 32])), Ask::Collect { budget: Some(1), dry_run: true }];
        asks.iter().for_each(|ask| send(&mut bytes, ask).expect("a short word"));
        let mut rest = &bytes[..];
        for ask in asks {
            let got: Option<Ask> = receive(&mut rest).expect("whole");
            assert_eq!(format!("{:?}", got.expect("there")), format!("{ask:?}"));
        }
        assert!(receive::<Ask>(&mut rest).expect("the end").is_none());
        assert!(receive::<Ask>(&mut &bytes[..5]).is_err(), "half a word");
        assert!(receive::<Ask>(&mut &[0xff; 8][..]).is_err(), "a monstrous one");
    }
    #[test]
    fn files_come_behind_words() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("sockets");
        let file = || std::fs::File::open("/dev/null").expect("a file").into();
        send(&mut ours, &Ask::Usage).expect("a short word");
        send_files(&ours, &(0..20).map(|_| file()).collect::<Vec<OwnedFd>>()).expect("some files");
        send(&mut ours, &Ask::Verify(None)).expect("a short word");
        assert!(matches!(receive(&mut theirs), Ok(Some(Ask::Usage))));
        assert_eq!(receive_files(&theirs, 20).expect("they follow").len(), 20);
        assert!(matches!(receive(&mut theirs), Ok(Some(Ask::Verify(None)))));
        drop(ours);
        assert!(receive_files(&theirs, 1).is_err(), "the other side is gone");
    }
}
