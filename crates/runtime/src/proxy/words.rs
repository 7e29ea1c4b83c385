//! What client and server of the host's commands say to each other, by a stream: the request as lists of byte strings, then how the command
//! fares. Meanwhile the client may send signals, each as the letter `k` and its number.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;

use skiff_ipc::{Codec, Framing, Protocol};

/// Where the host's commands are, and so the shims.
pub const SHIM_DIRS: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

/// What stands before the names of variables that are for tasks, and not for what starts them on the host.
pub const LATER: &str = "SKIFF_LATER_";

/// Variables by which MPI programs work for root inside. munge tells of the real uid, ranks of root inside claim 0: PMIx would wait for ever
/// for the two to agree. And `mpirun` refuses root, who can break a host, but inside has only the user's rights.
pub const MPI_OF_ROOT: [(&str, &str); 3] =
    [("PMIX_MCA_psec", "native"), ("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];

/// What the client wants run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandRequest {
    /// The command's name and its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Environment variables, `NAME=VALUE`.
    pub env: Vec<Vec<u8>>,
    /// Where it starts.
    pub cwd: Vec<u8>,
    /// The identity of that directory, unless it is on the environment's own root, which is no file system of the host's.
    pub directory: Option<DirectoryId>,
    /// Which of the three standard descriptors are terminals.
    pub terminals: [bool; 3],
    /// Rows and columns of that terminal.
    pub size: [u16; 2],
    /// What permissions it takes from the files it makes.
    pub umask: u16,
}

/// The identity of a directory among all that this kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryId {
    /// The number of its file system.
    pub device: u64,
    /// The number of its inode.
    pub inode: u64,
}

/// As a command's name: not one of the host's, but Skiff itself.
pub const OURSELVES: &str = "skiff";

/// More than this is no command line.
const MOST: u32 = 8 << 20;

/// Client to server: send this signal (one byte follows).
pub const SIGNAL: u8 = b'k';

/// How the command fares, as the server tells the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// The command runs; the other end of its terminal comes along, if it has one.
    Started,
    /// The command has stopped.
    Stopped,
    /// The command exited with this code.
    Exited(i32),
    /// This signal ended the command.
    Killed(i32),
}

impl CommandState {
    /// How many bytes a state has that begins with this one.
    pub fn length(first: u8) -> usize {
        if [b'x', b'd'].contains(&first) { 5 } else { 1 }
    }

    /// As bytes.
    pub fn encode(self) -> Vec<u8> {
        match self {
            Self::Started => vec![b'm'],
            Self::Stopped => vec![b's'],
            Self::Exited(code) => [&b"x"[..], &code.to_le_bytes()].concat(),
            Self::Killed(signal) => [&b"d"[..], &signal.to_le_bytes()].concat(),
        }
    }
}

impl Codec for CommandState {
    const LONGEST: usize = 5;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        Some(self.encode())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.try_into().ok().map(i32::from_le_bytes);
        match bytes {
            b"m" => Some(Self::Started),
            b"s" => Some(Self::Stopped),
            [b'x', code @ ..] => number(code).map(Self::Exited),
            [b'd', signal @ ..] => number(signal).map(Self::Killed),
            _ => None,
        }
    }
}

impl Codec for CommandRequest {
    const LONGEST: usize = MOST as usize;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        self.body().ok().filter(|body| body.len() <= <Self as Codec>::LONGEST)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= <Self as Codec>::LONGEST).then(|| Self::parse(bytes)).flatten()
    }
}

impl Protocol for CommandRequest {
    type Answer = CommandState;
    const NAME: &'static str = "Host commands";
    const SIDES: [&'static str; 2] = ["a command of the host's, inside", "the supervisor of the environment"];
    const FRAMING: Framing = Framing::Own(
        "Arguments and variables are bytes, not text. The request is its length, 4 bytes, little endian, then its lists; before it comes a byte with the three standard descriptors.",
    );
}

impl CommandRequest {
    /// The client's variables, without what only root inside needs: what runs as the user would pass it on to jobs.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        let split = |pair: &Vec<u8>| {
            let at = pair.iter().position(|b| *b == b'=').unwrap_or(pair.len());
            let value = pair.get(at + 1..).unwrap_or_default();
            (OsString::from_vec(pair[..at].to_vec()), OsString::from_vec(value.to_vec()))
        };
        let is_for_root = |(name, value): &(OsString, OsString)| {
            MPI_OF_ROOT.iter().any(|(own, own_value)| name == own && value == own_value)
        };
        self.env.iter().map(split).filter(|pair| !is_for_root(pair)).collect()
    }

    /// Writes it.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let body = self.body()?;
        to.write_all(&length(body.len())?)?;
        to.write_all(&body)
    }

    fn body(&self) -> io::Result<Vec<u8>> {
        let mut body = vec![];
        let flags: Vec<u8> = self
            .terminals
            .iter()
            .map(|t| u8::from(*t))
            .chain(self.size.iter().chain([&self.umask]).flat_map(|n| n.to_le_bytes()))
            .collect();
        let mut place = vec![self.cwd.clone()];
        place.extend(self.directory.map(|id| [id.device.to_le_bytes(), id.inode.to_le_bytes()].concat()));
        for list in [&self.argv, &self.env, &place, &vec![flags]] {
            body.extend(length(list.len())?);
            for item in list {
                body.extend(length(item.len())?);
                body.extend(item);
            }
        }
        Ok(body)
    }

    /// Reads one.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 4];
        from.read_exact(&mut head)?;
        let size = u32::from_le_bytes(head);
        if size > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; size as usize];
        from.read_exact(&mut body)?;
        Self::parse(&body).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(mut body: &[u8]) -> Option<Self> {
        let argv = list(&mut body)?;
        let env = list(&mut body)?;
        let mut place = list(&mut body)?.into_iter();
        let cwd = place.next()?;
        let directory = match place.next() {
            Some(id) => Some(DirectoryId::parse(&id)?),
            None => None,
        };
        let flags = list(&mut body)?.into_iter().next()?;
        let [a, b, c, r0, r1, c0, c1, u0, u1] = flags[..] else { return None };
        let size = [u16::from_le_bytes([r0, r1]), u16::from_le_bytes([c0, c1])];
        (!argv.is_empty() && body.is_empty()).then_some(Self {
            argv,
            env,
            cwd,
            directory,
            terminals: [a, b, c].map(|f| f == 1),
            size,
            umask: u16::from_le_bytes([u0, u1]),
        })
    }
}

impl DirectoryId {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (device, inode) = bytes.split_first_chunk::<8>()?;
        Some(Self { device: u64::from_le_bytes(*device), inode: u64::from_le_bytes(inode.try_into().ok()?) })
    }
}

fn length(n: usize) -> io::Result<[u8; 4]> {
    u32::try_from(n).map(u32::to_le_bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn number(body: &mut &[u8]) -> Option<usize> {
    let (head, rest) = body.split_first_chunk::<4>()?;
    *body = rest;
    Some(u32::from_le_bytes(*head) as usize)
}

fn list(body: &mut &[u8]) -> Option<Vec<Vec<u8>>> {
    let count = number(body)?;
    // Each item takes four bytes at least: no count can make us allocate more than was sent.
    if count > body.len() / 4 {
        return None;
    }
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        let n = number(body)?;
        let (item, rest) = body.split_at_checked(n)?;
        *body = rest;
        items.push(item.to_vec());
    }
    Some(items)
}

#[cfg(test)]
mod tests {
    use skiff_sys::IgnoreError;

    use super::*;

    fn sample() -> CommandRequest {
        CommandRequest {
            argv: vec![b"srun".to_vec(), b"-N2".to_vec(), vec![0xff, 0x80]],
            env: vec![b"A=b".to_vec(), vec![]],
            cwd: b"/x".to_vec(),
            directory: Some(DirectoryId { device: 0x801, inode: 7 }),
            terminals: [true, false, true],
            size: [50, 132],
            umask: 0o027,
        }
    }

    #[test]
    fn requests_come_back_as_they_went() {
        let mut bytes = vec![];
        sample().write(&mut bytes).expect("to memory");
        assert_eq!(CommandRequest::read(&mut &bytes[..]).expect("our own"), sample());
    }

    #[test]
    fn no_damaged_request_is_taken_or_panics() {
        let mut good = vec![];
        sample().write(&mut good).expect("to memory");
        for cut in 0..good.len() {
            let refused = CommandRequest::read(&mut &good[..cut]).expect_err("cut");
            assert_eq!(refused.kind(), io::ErrorKind::UnexpectedEof, "cut at {cut}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            CommandRequest::read(&mut &bad[..]).ignore_error("whatever it says, it is an answer");
        }
        let too_long = CommandRequest::read(&mut &u32::MAX.to_le_bytes()[..]).expect_err("too long");
        assert_eq!(too_long.kind(), io::ErrorKind::InvalidData);
    }
}
