//! Who listens on a port of the loopback address, as the kernel says.

use std::net::{Ipv4Addr, TcpListener};

use skiff_sandbox::{Context as _, Result};

/// The sockets of this network namespace: proc(5).
const SOCKETS: &str = "/proc/net/tcp";
/// In the column of states.
const LISTENS: &str = "0A";

/// A port that nobody listens on. Somebody else may take it before we do; then what we start fails, as it must not look for another
/// one, and nobody is told of it.
pub fn free_port() -> Result<u16> {
    let what = || "a free port of the loopback address";
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(what)?;
    Ok(socket.local_addr().context(what)?.port())
}

/// Whether anybody listens there.
pub fn is_taken(port: u16) -> Result<bool> {
    Ok(listener(&read()?, port).is_some())
}

/// Whether it is this user who listens there: another one would get his token.
pub fn is_ours(port: u16, uid: u32) -> Result<bool> {
    Ok(listener(&read()?, port) == Some(uid))
}

fn read() -> Result<String> {
    std::fs::read_to_string(SOCKETS).context(|| SOCKETS)
}

/// The uid of the one who listens, on the loopback address or on all.
fn listener(table: &str, port: u16) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (address, local) = fields.next()?.split_once(':')?;
        let here =
            ["0100007F", "00000000"].contains(&address) && u16::from_str_radix(local, 16).ok()? == port;
        // The other end, the state, queues, timer, retransmissions, the uid.
        let state = fields.nth(1)?;
        let uid = fields.nth(3)?.parse().ok()?;
        (here && state == LISTENS).then_some(uid)
    })
}

#[cfg(test)]
mod tests {
    use super::listener;

    #[test]
    fn the_kernels_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 15 1 0 100 0 0 10 0
   1: 0100007F:0050 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 16 1 0 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17 1 0 100 0 0 10 0
   3: 0B4D000A:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 18 1 0 100 0 0 10 0
";
        for (port, uid) in [(8888, Some(1001)), (80, None), (22, Some(0)), (8081, None), (1, None)] {
            assert_eq!(listener(table, port), uid, "{port}");
        }
    }
}
