//! As much of HTTP/1.1 as the servers of these tests need.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The first line and the headers of a request or an answer; names of headers in lower case.
#[derive(Debug, Clone)]
pub struct Head {
    pub line: String,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// Nothing, where the other side has nothing more to say.
    pub fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Head>> {
        let mut lines = vec![];
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let mut lines = lines.into_iter();
        let line = lines.next().unwrap_or_default();
        let header =
            |l: String| l.split_once(':').map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned()));
        Ok(Some(Head { line, headers: lines.filter_map(header).collect() }))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn remove(&mut self, name: &str) {
        self.headers.retain(|(n, _)| n != name);
    }

    pub fn length(&self) -> usize {
        self.get("content-length").and_then(|l| l.parse().ok()).unwrap_or(0)
    }

    /// The path and query of a request.
    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let headers: String = self.headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        to.write_all(format!("{}\r\n{headers}\r\n", self.line).as_bytes())
    }
}

/// A whole small answer.
pub fn answer(to: &mut impl Write, status: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let mut headers: Vec<_> = headers.iter().map(owned).collect();
    headers.push(("content-length".into(), body.len().to_string()));
    Head { line: format!("HTTP/1.1 {status}"), headers }.write(to)?;
    to.write_all(body)
}

/// Listens on loopback, a thread per connection, until dropped.
pub struct Listener {
    pub address: SocketAddr,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub fn start(address: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Listener {
        let listener = TcpListener::bind(address).expect("a free port on loopback");
        let address = listener.local_addr().expect("its address");
        let closed = Arc::new(AtomicBool::new(false));
        let (is_closed, serve) = (Arc::clone(&closed), Arc::new(serve));
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if is_closed.load(Ordering::SeqCst) {
                    return;
                }
                let serve = Arc::clone(&serve);
                if let Ok(connection) = connection {
                    std::thread::spawn(move || serve(connection));
                }
            }
        });
        Listener { address, closed, thread: Some(thread) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes it up to see that.
        TcpStream::connect(self.address).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Exactly this many bytes.
pub fn read_exactly(from: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
