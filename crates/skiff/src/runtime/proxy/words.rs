//! What client and server of the proxy say to each other, over a stream: the request as lists of byte strings, then single
//! letters.

use std::io::{self, Read, Write};

/// Where the host's commands are, and so the shims.
pub const SHIM_DIRS: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

/// What stands before the names of variables that are for tasks, and not for what starts them on the host.
pub const LATER: &str = "SKIFF_LATER_";

/// By what the ranks of an MPI program prove who they are.
pub const PSEC: &str = "PMIX_MCA_psec";
/// What root inside has to give for that.
pub const PSEC_OF_ROOT: &str = "native";

/// What the client wants run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The command's name and its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Environment variables, `NAME=VALUE`.
    pub env: Vec<Vec<u8>>,
    /// Where it starts.
    pub cwd: Vec<u8>,
    /// Which of the three standard descriptors are terminals.
    pub terminals: [bool; 3],
    /// Rows and columns of that terminal.
    pub size: [u16; 2],
    /// What permissions it takes from the files it makes.
    pub umask: u16,
}

/// As a command's name: not one of the host's, but Skiff's own `slurm submit`.
pub const OURSELVES: &str = "skiff";

/// More than this is no command line.
const MOST: u32 = 8 << 20;

/// Client to server: send this signal (one byte follows).
pub const SIGNAL: u8 = b'k';
/// Server to client: the terminal's other end comes with this byte (or none, where there is no terminal).
pub const STARTED: u8 = b'm';
/// Server to client: the command has stopped.
pub const STOPPED: u8 = b's';
/// Server to client: it ended with this code (four bytes follow).
pub const EXITED: u8 = b'x';
/// Server to client: it was ended by this signal (four bytes follow).
pub const KILLED: u8 = b'd';

impl Request {
    /// Writes it.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut body = vec![];
        let flags: Vec<u8> = self
            .terminals
            .iter()
            .map(|t| u8::from(*t))
            .chain(self.size.iter().chain([&self.umask]).flat_map(|n| n.to_le_bytes()))
            .collect();
        for list in [&self.argv, &self.env, &vec![self.cwd.clone()], &vec![flags]] {
            body.extend(length(list.len())?);
            for item in list {
                body.extend(length(item.len())?);
                body.extend(item);
            }
        }
        to.write_all(&length(body.len())?)?;
        to.write_all(&body)
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
        let cwd = list(&mut body)?.into_iter().next()?;
        let flags = list(&mut body)?.into_iter().next()?;
        let [a, b, c, r0, r1, c0, c1, u0, u1] = flags[..] else { return None };
        let size = [u16::from_le_bytes([r0, r1]), u16::from_le_bytes([c0, c1])];
        (!argv.is_empty() && body.is_empty()).then_some(Self {
            argv,
            env,
            cwd,
            terminals: [a, b, c].map(|f| f == 1),
            size,
            umask: u16::from_le_bytes([u0, u1]),
        })
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
    use super::*;

    fn sample() -> Request {
        Request {
            argv: vec![b"srun".to_vec(), b"-N2".to_vec(), vec![0xff, 0x80]],
            env: vec![b"A=b".to_vec(), vec![]],
            cwd: b"/x".to_vec(),
            terminals: [true, false, true],
            size: [50, 132],
            umask: 0o027,
        }
    }

    #[test]
    fn requests_come_back_as_they_went() {
        let mut bytes = vec![];
        sample().write(&mut bytes).expect("to memory");
        assert_eq!(Request::read(&mut &bytes[..]).expect("our own"), sample());
    }

    #[test]
    fn no_damaged_request_is_taken_or_panics() {
        let mut good = vec![];
        sample().write(&mut good).expect("to memory");
        for cut in 0..good.len() {
            let refused = Request::read(&mut &good[..cut]).expect_err("cut");
            assert_eq!(refused.kind(), io::ErrorKind::UnexpectedEof, "cut at {cut}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            // Whatever it says, it is an answer.
            Request::read(&mut &bad[..]).map(drop).unwrap_or_default();
        }
        let too_long = Request::read(&mut &u32::MAX.to_le_bytes()[..]).expect_err("too long");
        assert_eq!(too_long.kind(), io::ErrorKind::InvalidData);
    }
}
