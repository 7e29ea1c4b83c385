//! Addresses that are kept for who had them: for saved instances, which may come back here or on another node.
//!
//! Before an address is locked it is known that the user may change its lease: else one who is stopped could hold up whose it is.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;

use skiff_spec::fault::{Fault, Result};
use skiff_spec::network::{Lease, Network, Reservation, ReservationRequest};
use skiff_sys::clock::now;

use crate::lease::{IN_USE, Leases, LockedAddress, kept_until};
use crate::lock::LockScope;
use crate::netlink::Netlink;
use crate::site_key::{KEY, SiteKey};

impl Leases {
    /// Takes an address that the user had before and that was kept for them, on this node or on another.
    pub fn take_reserved(
        &self,
        host: &mut Netlink,
        network: &Network,
        node: &str,
        lease: &Lease,
        (ReservationRequest { reservation, moves }, key): (&ReservationRequest, Option<&SiteKey>),
    ) -> Result<LockedAddress> {
        let address = reservation.address;
        let what = format!("network {}: address {address}", lease.network);
        if !network.has_member(address) {
            return Err(Fault::new(format!("{what}: none of its members' any more")));
        }
        self.check_user_limit(host, network, node, lease, Some(address))?;
        let mut check_free = || -> Result<(Option<Lease>, Option<u64>)> {
            let old = self.read(address)?;
            if let Some(old) = &old
                && self.lives(host, old, address)?
            {
                return Err(Fault::new("somebody has it, on this node").hint(IN_USE));
            }
            let until = reserved_until(network, node, lease, old.as_ref(), (reservation, key))?;
            Ok((old, until))
        };
        let mut check_free = || check_free().map_err(|e| e.about(&what));
        check_free()?;
        self.locks.take(LockScope::Address(address))?;
        let (before, until) = check_free()?;
        let new = Lease { until, ..lease.clone() };
        self.write(address, &new)?;
        // Who answers then is this user. (A node that was booted anew, or whose root has freed the address, may have given it to somebody else.)
        let moves =
            *moves && new.is_kept(now()) && key.is_some_and(|key| was_in_use(reservation, lease, key));
        Ok(LockedAddress { address, possible_holder: (!moves).then_some(new), before })
    }

    /// Keeps an address that the user has until they come back to it: their reservation, without a proof. Until when it is kept never becomes earlier: there may
    /// be one of it on another node. One that another node has given them is kept there, and so no longer here.
    pub fn keep(
        &self,
        host: &mut Netlink,
        network: &Network,
        node: &str,
        (uid, address): (u32, Ipv4Addr),
    ) -> Result<Reservation> {
        self.locks.take(LockScope::User(uid))?;
        let mut of_user = || -> Result<Lease> {
            let why = match self.read(address)? {
                Some(lease) if lease.uid != uid => "it is somebody else's",
                Some(lease) if self.is_held(host, &lease, address)? => return Ok(lease),
                Some(_) => "what had it has ended",
                None => "nobody has it",
            };
            Err(Fault::new(format!("address {address}: you do not have it on this node: {why}")))
        };
        of_user()?;
        self.locks.take(LockScope::Address(address))?;
        let lease = of_user()?;
        let until = match (lease.until, network.gives_away(node, address)) {
            (Some(until), false) => until,
            (until, _) => until.unwrap_or(0).max(kept_until(network)),
        };
        let in_use = if self.lives(host, &lease, address)? { now() } else { 0 };
        self.write(address, &Lease { until: Some(until), ..lease })?;
        Ok(Reservation { address, until, in_use, proof: None })
    }

    /// Frees an address that is kept for this user; for root, anybody's.
    ///
    /// Where addresses move between nodes, it is only root's to free: the user's reservation is good on other nodes until it is no longer kept, and
    /// somebody else would have it then.
    pub fn free(&self, host: &mut Netlink, network: &Network, address: Ipv4Addr, uid: u32) -> Result<()> {
        self.locks.take(LockScope::User(uid))?;
        let moves = uid != 0 && moves_between_nodes(network);
        let mut check = || match self.read(address)? {
            Some(lease) if moves && lease.uid == uid && lease.is_kept(now()) => Err(Fault::new(format!(
                "address {address}: it may be claimed on another node as long as it is kept"
            ))
            .hint("`skiff net show` says until when; administrator: `skiff net release` as root")),
            Some(lease) if uid != 0 && lease.uid != uid => {
                Err(Fault::new(format!("address {address}: it is not kept for you on this node")))
            }
            Some(lease) if self.lives(host, &lease, address)? => {
                Err(Fault::new(format!("address {address}: it is in use on this node")).hint(IN_USE))
            }
            Some(_) => Ok(()),
            None => Err(Fault::new(format!("address {address}: nobody has it on this node"))),
        };
        check()?;
        self.locks.take(LockScope::Address(address))?;
        check()?;
        self.restore_lease(address, None)
    }

    /// The addresses that are kept for users beyond their shares, those of who has most of them first, and of these the one that was kept first.
    pub(crate) fn reclaimable(
        &self,
        host: &mut Netlink,
        network: &Network,
        node: &str,
        known: &BTreeMap<Ipv4Addr, Lease>,
    ) -> Result<Vec<(Ipv4Addr, Lease)>> {
        let mut kept = vec![];
        if moves_between_nodes(network) {
            // Whoever an address is kept for may claim it on another node.
            return Ok(kept);
        }
        for (address, lease) in known {
            // Of those somebody unknown has, it is known that they have them.
            if lease.uid != Lease::UNKNOWN
                && lease.is_kept(now())
                && network.gives_away(node, *address)
                && !self.lives(host, lease, *address)?
            {
                kept.push((*address, lease.clone()));
            }
        }
        Ok(beyond_limit(kept, network.most_kept_each(node)))
    }
}

/// Whether an address that this node gives away can be claimed on another: without a key nobody can prove whose it was.
pub(crate) fn moves_between_nodes(network: &Network) -> bool {
    network.spans_nodes() && Path::new(KEY).exists()
}

/// Seconds for which an address that was in use is taken to be the user's still: for the rest of a move, and for clocks that differ.
const MOVES_WITHIN: u64 = 15 * 60;

/// Whether another node says that the user had the address in use a moment ago.
fn was_in_use(reservation: &Reservation, lease: &Lease, key: &SiteKey) -> bool {
    now().abs_diff(reservation.in_use) <= MOVES_WITHIN && key.proves(reservation, lease.uid, &lease.network)
}

/// Until when an address is kept for the user of a new lease, as the `old` one says, or their reservation.
fn reserved_until(
    network: &Network,
    node: &str,
    lease: &Lease,
    old: Option<&Lease>,
    (reservation, key): (&Reservation, Option<&SiteKey>),
) -> Result<Option<u64>> {
    match old {
        // Of an address that another node gives away, this one knows no more than that until that time.
        Some(old)
            if old.uid == lease.uid
                && (network.gives_away(node, reservation.address) || old.is_kept(now())) =>
        {
            Ok(old.until)
        }
        Some(old) if old.is_kept(now()) && old.uid != Lease::UNKNOWN => {
            Err(Fault::new("it is kept for somebody else"))
        }
        _ => reserved_elsewhere_until(network, lease, reservation, key).map(Some),
    }
}

/// Those kept addresses that are more than so many of one user.
fn beyond_limit(kept: Vec<(Ipv4Addr, Lease)>, most: u32) -> Vec<(Ipv4Addr, Lease)> {
    let mut users: BTreeMap<u32, Vec<(Ipv4Addr, Lease)>> = BTreeMap::new();
    for (address, lease) in kept {
        users.entry(lease.uid).or_default().push((address, lease));
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut beyond: Vec<_> = users.into_values().filter(|of_user| of_user.len() > most).collect();
    beyond.sort_by_key(|of_user| std::cmp::Reverse(of_user.len()));
    beyond
        .into_iter()
        .flat_map(|mut of_user| {
            of_user.sort_by_key(|(address, lease)| (lease.until, *address));
            of_user.truncate(of_user.len() - most);
            of_user
        })
        .collect()
}

/// Until when another node keeps an address for a user, if that is proved.
fn reserved_elsewhere_until(
    network: &Network,
    lease: &Lease,
    reservation: &Reservation,
    key: Option<&SiteKey>,
) -> Result<u64> {
    if !network.spans_nodes() {
        return Err(Fault::new("it was another node's, and this network's addresses stay where they are")
            .hint("restore the checkpoint on the node where it was saved"));
    }
    let (Some(key), Some(_)) = (key, &reservation.proof) else {
        return Err(Fault::new(format!("it was another node's, and without the site's key nobody can tell whose ({KEY})"))
            .hint("restore it on the node where it was saved; administrator: the same key on all nodes, before it is saved: docs/networks.md"));
    };
    if !key.proves(reservation, lease.uid, &lease.network) {
        return Err(Fault::new("it was not yours, or another key was in use then"));
    }
    if reservation.until <= now() {
        return Err(Fault::new("it is no longer kept for you")
            .hint("administrator: `kept_hours` in the network's description"));
    }
    Ok(reservation.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_in_use_a_moment_ago_is_moved() {
        let key = SiteKey::new(&[b'a'; 32]).unwrap();
        let lease = Lease { network: "lab".parse().unwrap(), uid: 7, space: 0, until: None };
        let reservation = |in_use| {
            let reservation =
                Reservation { address: [10, 0, 0, 1].into(), until: u64::MAX, in_use, proof: None };
            key.prove(&reservation, 7, &lease.network)
        };
        assert!(was_in_use(&reservation(now()), &lease, &key));
        assert!(was_in_use(&reservation(now() + MOVES_WITHIN / 2), &lease, &key), "a clock that is ahead");
        for old in [0, now() - MOVES_WITHIN - 5, now() + MOVES_WITHIN + 5] {
            assert!(!was_in_use(&reservation(old), &lease, &key), "{old}");
            let refreshed = Reservation { in_use: now(), ..reservation(old) };
            assert!(!was_in_use(&refreshed, &lease, &key), "the user's own word");
        }
        assert!(!was_in_use(&Reservation { proof: None, ..reservation(now()) }, &lease, &key));
    }

    #[test]
    fn what_is_kept_beyond_a_users_share_goes_first() {
        let kept = |last: u8, uid, until| {
            let address = Ipv4Addr::new(10, 0, 0, last);
            (address, Lease { network: "lab".parse().unwrap(), uid, space: 0, until: Some(until) })
        };
        let all = vec![
            kept(1, 7, 300),
            kept(2, 7, 100),
            kept(3, 7, 200),
            kept(4, 8, 50),
            kept(5, 9, 90),
            kept(6, 9, 80),
        ];
        let of = |most| {
            let beyond = beyond_limit(all.clone(), most).into_iter();
            beyond.map(|(address, _)| address.octets()[3]).collect::<Vec<_>>()
        };
        assert_eq!(of(1), [2, 3, 6], "of who has most, what was kept first; never the last of one's share");
        assert_eq!(of(2), [2]);
        assert_eq!(of(3), Vec::<u8>::new());
        assert_eq!(of(0).len(), 6);
    }
}
