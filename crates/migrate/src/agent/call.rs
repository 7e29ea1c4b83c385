//! `skiff agent-call`: a launcher, as ssh and srun are. What is said to it goes to the agent of another host, sealed by munge so that only
//! root can open it, and only on that host; what that says comes out again, marked as said there. Whoever holds the agent's port on that
//! host may say anything.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;

use crate::agent::{BUSY, request};

/// How long the agent of another host may take to be reached.
const PATIENCE: Duration = Duration::from_secs(10);
/// For how long whom it has no room for comes back, and how often.
const PERSISTENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// No call is longer, in bytes.
const LONGEST: u64 = 8 << 10;
/// So much of what is said there is shown, in bytes, in lines of so many at most.
const MOST_SHOWN: usize = 8 << 10;
const LONGEST_LINE: usize = 1 << 10;

/// Does it; the exit code.
pub fn call(node: &str, port: u16) -> Result<i32> {
    let about = || format!("the agent of {node} at port {port}");
    let mut call = vec![];
    std::io::stdin().lock().take(LONGEST).read_to_end(&mut call).context(|| "standard input")?;
    let mut sealed = Sealed { node, call, last: None };
    let mut heard = [0; 4096];
    let until = Instant::now() + PERSISTENCE;
    loop {
        let (mut agent, credential) = connect(&mut sealed, port)?;
        let answer = agent.write_all(credential).and_then(|()| agent.read(&mut heard));
        let is_busy = match &answer {
            Ok(n) => heard[..*n].starts_with(BUSY.as_bytes()),
            // Those words can be lost where it has not read ours.
            Err(e) => matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        };
        if is_busy && Instant::now() < until {
            std::thread::sleep(PAUSE);
            continue;
        }
        let first = &heard[..answer.context(about)?];
        show(node, &mut first.chain(agent), &mut std::io::stderr()).context(about)?;
        return Ok(0);
    }
}

/// A call, sealed for the host that it goes to. Beforehand: of those who have nothing to say, an agent has least patience with.
struct Sealed<'a> {
    node: &'a str,
    call: Vec<u8>,
    last: Option<(IpAddr, Vec<u8>)>,
}

impl Sealed<'_> {
    fn for_machine_at(&mut self, address: IpAddr) -> Result<()> {
        if self.last.as_ref().is_none_or(|(of, _)| *of != address) {
            let request = request::bind(self.node, address, &self.call)
                .ok_or_else(|| Error::new(format!("{}: the call is too long", self.node)))?;
            self.last = Some((address, seal(&request)?));
        }
        Ok(())
    }

    fn credential(&self) -> &[u8] {
        self.last.as_ref().map_or(&[], |(_, credential)| credential)
    }
}

fn seal(request: &[u8]) -> Result<Vec<u8>> {
    let mut munge = Command::new("munge")
        .args(["--restrict-uid=0", "--ttl=60"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context(|| "munge")?;
    if let Some(mut input) = munge.stdin.take() {
        input.write_all(request).ignore_error("if it does not read all of it, it says why");
    }
    let sealed = munge.wait_with_output().context(|| "munge")?;
    match sealed.status.success() {
        true => Ok(sealed.stdout),
        false => {
            Err(Error::new(format!("munge: {}", sealed.status)).hint("check that munged is running here"))
        }
    }
}

/// A connection to the agent, and what is to be said there.
fn connect<'a>(sealed: &'a mut Sealed<'_>, port: u16) -> Result<(TcpStream, &'a [u8])> {
    let node = sealed.node;
    let about = || format!("the agent of {node} at port {port}");
    let mut last = Error::new(format!("{}: its name has no address", about()));
    for address in (node, port).to_socket_addrs().context(about)? {
        sealed.for_machine_at(address.ip())?;
        match TcpStream::connect_timeout(&address, PATIENCE).context(about) {
            Ok(agent) => return Ok((agent, sealed.credential())),
            Err(e) => {
                last = e.hint("check that skiff-agent runs there, with the same port in its configuration")
            }
        }
    }
    Err(last)
}

/// Shows what is said, until that ends, line by line as text: nothing of it is to steer a terminal, or to pass for what is said here.
fn show(node: &str, said: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let (mut line, mut room) = (vec![], MOST_SHOWN);
    for byte in std::io::BufReader::new(said).bytes() {
        let byte = byte?;
        if room == 0 {
            continue;
        }
        room -= 1;
        let is_whole = byte == b'\n';
        if !is_whole {
            line.push(byte);
        }
        if is_whole || line.len() == LONGEST_LINE {
            show_line(node, &line, to)?;
            line.clear();
        }
        if room == 0 {
            show_line(node, &line, to)?;
            line.clear();
            writeln!(to, "{node} says more than is shown")?;
        }
    }
    show_line(node, &line, to)
}

fn show_line(node: &str, line: &[u8], to: &mut impl Write) -> std::io::Result<()> {
    // Marks of direction reverse what is around them; they are no control characters.
    let is_text = |c: &char| {
        !c.is_control()
            && !matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let text: String = String::from_utf8_lossy(line).chars().filter(is_text).collect();
    match text.trim() {
        "" => Ok(()),
        text => writeln!(to, "{node} says: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(said: &[u8]) -> String {
        let mut shown = vec![];
        show("n2", &mut &said[..], &mut shown).expect("shown");
        String::from_utf8(shown).expect("text")
    }

    #[test]
    fn what_another_machine_says_is_text_and_says_whose_it_is() {
        for (said, want) in [
            (&b""[..], ""),
            (b"\n\r\n", ""),
            (b"it is locked", "n2 says: it is locked\n"),
            (b"one\r\ntwo\n", "n2 says: one\nn2 says: two\n"),
            (b"\x1b[2J\x1b]0;title\x07ok\n", "n2 says: [2J]0;titleok\n"),
            ("\u{9b}1m\u{202e}x\u{2066}\n".as_bytes(), "n2 says: 1mx\n"),
            (b"\xff\xfex\n", "n2 says: \u{fffd}\u{fffd}x\n"),
        ] {
            assert_eq!(shown(said), want, "{said:?}");
        }
    }

    #[test]
    fn it_is_not_endless() {
        for said in [vec![b'x'; 1 << 20], b"x\n".repeat(1 << 19), vec![b'\n'; 1 << 20]] {
            let shown = shown(&said);
            assert!(shown.len() < 8 * MOST_SHOWN, "{}", shown.len());
            assert!(shown.lines().all(|line| line.starts_with("n2 says") && line.len() < LONGEST_LINE + 10));
            assert!(shown.ends_with("n2 says more than is shown\n"));
        }
    }
}
