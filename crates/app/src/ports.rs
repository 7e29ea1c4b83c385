//! Who listens on a port of this host's own addresses, as the kernel says.

use std::io::ErrorKind;

use skiff_spec::fault::{Context as _, Fault as Error, Result};

/// The sockets of this network namespace: proc(5). A browser that is told `localhost` may try either family first.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// In the column of states.
const LISTENS: &str = "0A";

/// Whether anybody listens there.
pub fn is_taken(port: u16) -> Result<bool> {
    Ok(!users(port)?.is_empty())
}

/// Whether this user listens there; an error if anybody else does, too: the token would be sent to them.
pub fn is_served_by(port: u16, uid: u32) -> Result<bool> {
    let users = users(port)?;
    match users.iter().find(|user| **user != uid) {
        Some(other) => Err(Error::new(format!("port {port}: user {other} listens on it")).hint(
            "without --port a free one is chosen; without --tcp there is no port that others could take",
        )),
        None => Ok(!users.is_empty()),
    }
}

/// The users who listen there, of both address families.
fn users(port: u16) -> Result<Vec<u32>> {
    let mut users = vec![];
    for table in TABLES {
        match std::fs::read_to_string(table) {
            Ok(text) => users.extend(listeners(&text, port)),
            // A kernel without IPv6.
            Err(e) if e.kind() == ErrorKind::NotFound && table != TABLES[0] => {}
            Err(e) => return Err(e).context(|| table),
        }
    }
    Ok(users)
}

/// The uids of those in one table who listen on loopback addresses or on all.
fn listeners(table: &str, port: u16) -> Vec<u32> {
    let of_line = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (address, local) = fields.next()?.split_once(':')?;
        // The other end, the state, queues, timer, retransmissions, the uid.
        let state = fields.nth(1)?;
        let uid: u32 = fields.nth(3)?.parse().ok()?;
        let here = is_local(address) && u16::from_str_radix(local, 16).ok()? == port;
        (here && state == LISTENS).then_some(uid)
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

/// Whether an address, in words of 32 bits as a little-endian machine stores them, is a loopback address or all of them.
fn is_local(address: &str) -> bool {
    const MAPPED: &str = "0000000000000000FFFF0000";
    match address.strip_prefix(MAPPED).unwrap_or(address) {
        "00000000000000000000000001000000" => true,
        address => {
            address.bytes().all(|byte| byte == b'0') || (address.len() == 8 && address.ends_with("7F"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::listeners;

    #[test]
    fn listeners_are_found_in_the_kernels_tables() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 15 1 0 100 0 0 10 0
   1: 0100007F:0050 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 16 1 0 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17 1 0 100 0 0 10 0
   3: 0B4D000A:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 18 1 0 100 0 0 10 0
   4: 0200007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1004        0 19 1 0 100 0 0 10 0
   5: 00000000000000000000000001000000:1F92 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1005        0 20 1 0 100 0 0 10 0
   6: 00000000000000000000000000000000:1F93 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1006        0 21 1 0 100 0 0 10 0
   7: 0000000000000000FFFF00000100007F:1F94 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1007        0 22 1 0 100 0 0 10 0
   8: 000080FE00000000FF005450B6CF3AFE:1F95 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1008        0 23 1 0 100 0 0 10 0
";
        for (port, uids) in [
            (8888, &[1001, 1004][..]),
            (80, &[]),
            (22, &[0]),
            (8081, &[]),
            (1, &[]),
            (8082, &[1005]),
            (8083, &[1006]),
            (8084, &[1007]),
            (8085, &[]),
        ] {
            assert_eq!(listeners(table, port), uids, "{port}");
        }
    }
}
