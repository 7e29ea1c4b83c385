//! A proxy before a registry that lets some answers about blobs go wrong, as networks and servers let them.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::web::{Head, Listener, answer, read_exactly};

/// What goes wrong with one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The connection is reset before an answer.
    Reset,
    /// The answer ends after so many bytes, its connection closed in good order.
    Truncate(usize),
    /// Nothing more comes after so many bytes, for as long as the test lasts.
    Stall(usize),
    /// Another status, with a header.
    Status(&'static str, &'static str, &'static str),
    /// One byte of the answer is another one.
    Flip(usize),
    /// The server has never heard of ranges.
    IgnoreRange,
    /// The token is forgotten on the way: the registry asks for one again.
    LoseToken,
    /// The answer claims to be about other bytes.
    WrongRange,
    /// Leads to another address of this proxy.
    Redirect(String),
}

#[derive(Default)]
struct State {
    faults: VecDeque<Fault>,
    /// For every request about a blob that no fault of the list is left for.
    always: Option<Fault>,
    /// What was asked for about blobs: the range, or nothing; and whether with a token.
    seen: Vec<(Option<String>, bool)>,
    /// Wait before each piece of a blob: a slow network.
    pace: Option<Duration>,
    /// How many bytes may still come; then all wait.
    left: Option<usize>,
    over: bool,
}

pub struct FaultProxy {
    upstream: SocketAddr,
    listener: Option<Listener>,
    shared: Arc<(Mutex<State>, Condvar)>,
    pub server: String,
}

impl FaultProxy {
    pub fn before(upstream: &str) -> FaultProxy {
        let upstream = upstream.parse().expect("an address");
        let mut proxy =
            FaultProxy { upstream, listener: None, shared: Arc::default(), server: "127.0.0.1:0".into() };
        proxy.up();
        proxy
    }

    /// Listens (again), at the same address.
    pub fn up(&mut self) {
        let (shared, upstream) = (Arc::clone(&self.shared), self.upstream);
        let serve = move |connection| {
            // What goes wrong here is what the test is about.
            serve(connection, upstream, &shared).ok();
        };
        let listener = Listener::start(&self.server, serve);
        self.server = listener.address.to_string();
        self.listener = Some(listener);
    }

    /// Connections are refused from now on.
    pub fn down(&mut self) {
        self.listener = None;
    }

    /// The next requests about blobs go wrong, one after the other.
    pub fn faults(&self, faults: &[Fault]) {
        self.state().faults.extend(faults.iter().cloned());
    }

    /// All requests about blobs go wrong.
    pub fn always(&self, fault: Fault) {
        self.state().always = Some(fault);
    }

    pub fn never(&self) {
        let mut state = self.state();
        state.always = None;
        state.faults.clear();
    }

    pub fn pace(&self, pace: Duration) {
        self.state().pace = Some(pace);
    }

    /// Lets this many bytes come, and holds those behind them back until told otherwise.
    pub fn allow(&self, bytes: Option<usize>) {
        self.state().left = bytes;
        self.shared.1.notify_all();
    }

    /// What was asked about blobs since the last call.
    pub fn seen(&self) -> Vec<(Option<String>, bool)> {
        std::mem::take(&mut self.state().seen)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.0.lock().expect("no panic in the proxy")
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.state().over = true;
        self.shared.1.notify_all();
    }
}

fn serve(connection: TcpStream, upstream: SocketAddr, shared: &(Mutex<State>, Condvar)) -> io::Result<()> {
    let mut peek = [0];
    // A client that tries TLS first: this is not TLS.
    if connection.peek(&mut peek)? == 1 && peek[0] == 0x16 {
        return Ok(());
    }
    connection.set_nodelay(true)?;
    let mut to = connection.try_clone()?;
    let mut from = BufReader::new(connection);
    while let Some(head) = Head::read(&mut from)? {
        let body = read_exactly(&mut from, head.length())?;
        let is_blob = head.path().contains("/blobs/");
        let fault = is_blob.then(|| next_fault(&head, shared)).flatten();
        if matches!(fault, Some(Fault::Reset)) {
            // Bytes that nobody has read make the kernel send a reset.
            return reset(&to);
        }
        pass_on(head, &body, upstream, &mut to, fault, shared)?;
    }
    Ok(())
}

fn next_fault(head: &Head, shared: &(Mutex<State>, Condvar)) -> Option<Fault> {
    let mut state = shared.0.lock().expect("no panic");
    state.seen.push((head.get("range").map(String::from), head.get("authorization").is_some()));
    let always = state.always.clone();
    state.faults.pop_front().or(always)
}

fn reset(connection: &TcpStream) -> io::Result<()> {
    rustix::net::sockopt::set_socket_linger(connection, Some(Duration::ZERO))?;
    Ok(())
}

fn pass_on(
    mut request: Head,
    body: &[u8],
    upstream: SocketAddr,
    to: &mut TcpStream,
    fault: Option<Fault>,
    shared: &(Mutex<State>, Condvar),
) -> io::Result<()> {
    match &fault {
        Some(Fault::Status(status, name, value)) => return answer(to, status, &[(name, value)], b"{}"),
        Some(Fault::Redirect(server)) => {
            let location = format!("http://{server}{}", request.path());
            return answer(to, "307 Temporary Redirect", &[("location", &location)], b"");
        }
        Some(Fault::IgnoreRange) => request.remove("range"),
        Some(Fault::LoseToken) => request.remove("authorization"),
        _ => {}
    }
    let is_head = request.line.starts_with("HEAD");
    request.remove("connection");
    request.headers.push(("connection".into(), "close".into()));
    let mut server = TcpStream::connect(upstream)?;
    request.write(&mut server)?;
    server.write_all(body)?;
    let mut from = BufReader::new(server);
    let Some(mut head) = Head::read(&mut from)? else { return Ok(()) };
    head.remove("connection");
    if matches!(fault, Some(Fault::WrongRange)) {
        head.remove("content-range");
        head.headers.push(("content-range".into(), "bytes 1-2/3".into()));
    }
    let length = if is_head { 0 } else { head.length() };
    // Registries announce more than they send when they refuse a range.
    let mut bytes = vec![];
    from.take(length as u64).read_to_end(&mut bytes)?;
    let length = bytes.len();
    head.write(to)?;
    match fault {
        Some(Fault::Truncate(after)) => {
            to.write_all(&bytes[..after.min(length)])?;
            to.shutdown(std::net::Shutdown::Both)
        }
        Some(Fault::Stall(after)) => {
            to.write_all(&bytes[..after.min(length)])?;
            let state = shared.0.lock().expect("no panic");
            drop(shared.1.wait_while(state, |state| !state.over).expect("no panic"));
            Ok(())
        }
        Some(Fault::Flip(at)) if at < length => {
            bytes[at] ^= 0x10;
            to.write_all(&bytes)
        }
        _ => {
            for piece in bytes.chunks(64 << 10) {
                wait_for_turn(piece.len(), shared);
                to.write_all(piece)?;
            }
            Ok(())
        }
    }
}

fn wait_for_turn(bytes: usize, (state, changed): &(Mutex<State>, Condvar)) {
    let pace = state.lock().expect("no panic").pace;
    pace.into_iter().for_each(std::thread::sleep);
    let held = |state: &mut State| state.left.is_some_and(|left| left < bytes) && !state.over;
    let mut state = changed.wait_while(state.lock().expect("no panic"), held).expect("no panic");
    state.left = state.left.map(|left| left.saturating_sub(bytes));
}
