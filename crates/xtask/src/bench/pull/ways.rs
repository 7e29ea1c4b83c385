//! The ways from a registry to something that runs.

use std::path::Path;

use anyhow::Context;

use crate::bench::people::{self, RunAs};

/// The trusted store of the test bed.
pub struct TrustedStore {
    pub path: &'static str,
    /// A system user; any will do that is nobody's login.
    pub user: &'static str,
}

pub const STORE: TrustedStore = TrustedStore { path: "/var/lib/skiff/store", user: "daemon" };

/// How an image gets from a registry to something that runs: what is timed.
pub struct PullMethod<'a> {
    pub name: &'static str,
    pub who: RunAs<'a>,
    /// Makes that nothing is there, as root; also what clears up at the end.
    pub before: String,
    /// What is timed.
    pub script: String,
    pub ours: bool,
    /// What users would take instead.
    pub peer: bool,
    /// Seconds.
    pub samples: Vec<f64>,
}

/// What `docker save` would write of the image, where every user can read it.
const SAVED: &str = "/var/lib/skiff/bench-saved.tar";

/// What the ways have left, but for what they clear up themselves.
pub fn clean_up() -> anyhow::Result<()> {
    RunAs::Root.bash(&format!("rm -f {SAVED}")).map(drop)
}

/// All that this machine has the programs for; `import` is wanted besides, which takes the disk once more.
pub fn ways<'a>(
    user: RunAs<'a>,
    skiff: &str,
    reference: &str,
    image: &Path,
    import: bool,
) -> anyhow::Result<Vec<PullMethod<'a>>> {
    let image = std::path::absolute(image)?;
    let scratch = image.join("scratch");
    let (image, scratch) =
        (image.to_str().context("--image is not UTF-8")?, scratch.to_str().context("--image is not UTF-8")?);
    let mut ways = vec![ours(user, skiff, reference), limit(image, scratch)];
    if import {
        people::require(&["skopeo"])?;
        ways.push(saved(user, skiff, reference));
    }
    for (way, programs) in [
        (podman(reference, scratch), vec!["podman"]),
        (sarus(reference, scratch), vec!["skopeo", "umoci", "mksquashfs"]),
    ] {
        match people::require(&programs) {
            Ok(()) => ways.push(way),
            Err(e) => eprintln!("without {}: {e}", way.name),
        }
    }
    Ok(ways)
}

/// What makes the store anew. An image that ran is mounted, and its room not free before it is let go of.
pub fn empty_store() -> String {
    let TrustedStore { path, user } = STORE;
    format!(
        "umount -l /run/skiff/images/* 2>/dev/null; rm -rf {path} && install -d -m 755 -o {user} -g {user} {path}"
    )
}

fn ours<'a>(user: RunAs<'a>, skiff: &str, reference: &str) -> PullMethod<'a> {
    PullMethod {
        name: "skiff pull",
        who: user,
        before: empty_store(),
        script: format!("{skiff} pull -q {reference}"),
        ours: true,
        peer: false,
        samples: vec![],
    }
}

/// An image from `docker save`, whose layers are not compressed, so there is more to read and hash, and nothing to inflate.
fn saved<'a>(user: RunAs<'a>, skiff: &str, reference: &str) -> PullMethod<'a> {
    let copy = format!(
        "skopeo --insecure-policy copy -q --src-tls-verify=false docker://{reference} docker-archive:{SAVED}"
    );
    PullMethod {
        name: "skiff import of a docker save",
        who: user,
        before: format!(
            "{}; [ -e {SAVED} ] || {copy}; chmod 644 {SAVED}; cat {SAVED} >/dev/null",
            empty_store()
        ),
        script: format!("{skiff} import -q {SAVED} saved:1"),
        ours: false,
        peer: false,
        samples: vec![],
    }
}

/// Every byte hashed and inflated once, by the quickest program for it, on all processors; then as many bytes written to the disk, past
/// the page cache, which here is quicker than through it.
fn limit<'a>(image: &str, scratch: &str) -> PullMethod<'a> {
    let layers =
        format!("find {image}/registry -name data -size +1M -printf '%s %p\\n' | sort -rn | cut -d' ' -f2");
    let layer = "openssl dgst -sha256 $1 >/dev/null && igzip -dc <$1 >/dev/null";
    // A gzip stream ends with its length.
    let size = "xargs -n 1 tail -c 4 | od -A n -t u4 -w4 | awk '{s += $1} END {print int(s / 1048576) + 1}'";
    PullMethod {
        name: "limit: hash, inflate, write",
        who: RunAs::Root,
        before: format!("rm -rf {scratch} && mkdir {scratch}"),
        script: format!(
            "{layers} | xargs -P $(nproc) -n 1 sh -ec '{layer}' layer && \
             dd if=/dev/zero of={scratch}/image bs=1M count=$({layers} | {size}) oflag=direct conv=fsync status=none"
        ),
        ours: false,
        peer: false,
        samples: vec![],
    }
}

fn podman<'a>(reference: &str, scratch: &str) -> PullMethod<'a> {
    let podman = format!("podman --root {scratch}/root --runroot {scratch}/run --storage-driver overlay");
    PullMethod {
        name: "podman pull",
        who: RunAs::Root,
        before: format!("umount -l {scratch}/root/overlay 2>/dev/null; rm -rf {scratch} && mkdir {scratch}"),
        script: format!("{podman} pull -q --tls-verify=false {reference}"),
        ours: false,
        peer: true,
        samples: vec![],
    }
}

/// With the quickest compression that mksquashfs has.
fn sarus<'a>(reference: &str, scratch: &str) -> PullMethod<'a> {
    PullMethod {
        name: "skopeo, umoci, mksquashfs",
        who: RunAs::Root,
        before: format!("rm -rf {scratch} && mkdir {scratch}"),
        script: format!(
            "cd {scratch} && skopeo --insecure-policy copy -q --src-tls-verify=false docker://{reference} oci:oci:big && \
             umoci unpack --image oci:big bundle && mksquashfs bundle/rootfs squashfs -comp lz4 -quiet -no-progress"
        ),
        ours: false,
        peer: true,
        samples: vec![],
    }
}
