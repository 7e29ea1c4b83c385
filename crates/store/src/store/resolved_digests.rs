//! Resolved digests: which image a digest in a registry has led to, so that a pull of what is there asks its registry one question only.
//!
//! Each user has one file of them, `meanings/UID`: a line for each digest, the newest last. It is bounded and counts in the user's quota. Nobody else's
//! work reads it: a line whose image the user has no more counts for nothing, and goes when the file is written the next time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;

use rustix::fs::{Mode, OFlags, openat, renameat};
use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;
use skiff_spec::image::ImageId;

use super::{Store, unique};
use crate::error::Result;
use skiff_sys::{IgnoreError as _, SystemContext};

/// Directory of resolved digests in the store.
pub(super) const DIR: &str = "meanings";
/// So many are kept of one user: two for each image that this one may have, since an index and a manifest both lead to it.
const MOST: usize = 2000;
/// No digest with its platform is longer, in bytes, or it is not kept.
const LONGEST: usize = 255;
/// No file is longer than its lines can make it.
const LONGEST_FILE: u64 = MOST as u64 * (LONGEST as u64 + 80);

impl Store {
    /// The image that a digest in a registry, of an index perhaps, stands for on such machines; as far as this user has pulled it and has it still.
    #[must_use]
    pub fn known(&self, uid: u32, digest: &Digest, platform: &Platform) -> Option<ImageId> {
        let key = key(digest, platform);
        let lines = self.resolved_digests(uid).default_on_error("then the registry is asked");
        lines
            .into_iter()
            .rev()
            .find(|(of, _)| *of == key)
            .map(|(_, id)| id)
            .filter(|id| self.permitted(uid, *id))
    }

    /// Notes that a digest has led to an image. Of two processes that do so at once one may be in vain: that only costs its registry another question.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn remember(&self, uid: u32, digest: &Digest, platform: &Platform, id: ImageId) -> Result<()> {
        let key = key(digest, platform);
        if key.len() > LONGEST
            || key.contains(char::is_whitespace)
            || self.known(uid, digest, platform) == Some(id)
        {
            return Ok(());
        }
        let mut lines = self.resolved_digests(uid)?;
        lines.retain(|(of, _)| *of != key);
        lines.push((key, id));
        self.write_resolved_digests(uid, lines, Some(id))
    }

    /// An image is not this user's any more.
    pub(super) fn forget(&self, uid: u32, id: ImageId) {
        let forgotten = self.resolved_digests(uid).and_then(|mut lines| {
            let before = lines.len();
            lines.retain(|(_, of)| *of != id);
            if lines.len() == before { Ok(()) } else { self.write_resolved_digests(uid, lines, None) }
        });
        forgotten.ignore_error(
            "without its permit a line means nothing, and whoever frees a full disk has no room to write",
        );
    }

    /// How much of the disk the resolved digests of a user take.
    pub(super) fn resolved_digests_bytes(&self, uid: u32) -> u64 {
        self.bytes_of(&name_of(uid))
    }

    /// Files of resolved digests that nobody needs: of users who have no image, and those of earlier versions, which had one for each digest.
    pub(super) fn lost_resolved_digests(&self) -> Result<BTreeSet<String>> {
        let is_needed = |name: &str| match name.parse() {
            Ok(uid) => self.images_of(uid).map(|images| !images.is_empty()),
            Err(_) => Ok(false),
        };
        let mut lost = BTreeSet::new();
        for name in self.list(DIR)? {
            if !is_needed(&name)? {
                lost.insert(name);
            }
        }
        Ok(lost)
    }

    /// Writes those down whose images the user has, and `new`; the newest, if there are too many.
    fn write_resolved_digests(
        &self,
        uid: u32,
        lines: Vec<(String, ImageId)>,
        new: Option<ImageId>,
    ) -> Result<()> {
        let images: BTreeSet<ImageId> = self.images_of(uid)?.into_iter().chain(new).collect();
        let lines: Vec<_> = lines.into_iter().filter(|(_, id)| images.contains(id)).collect();
        let name = name_of(uid);
        if lines.is_empty() {
            return self.remove(&name);
        }
        let newest = &lines[lines.len().saturating_sub(MOST)..];
        let text: String = newest.iter().map(|(key, id)| format!("{key} {id}\n")).collect();
        let made = unique("tmp/resolved-digests");
        if let Err(e) = self.write_new(&made, text.as_bytes()) {
            self.remove(&made).ignore_error("then a later collection removes it");
            return Err(e);
        }
        Ok(renameat(&self.dir, &made, &self.dir, &name).on("rename", self.shown(&name))?)
    }

    /// A user's resolved digests, the newest last.
    fn resolved_digests(&self, uid: u32) -> Result<Vec<(String, ImageId)>> {
        let name = name_of(uid);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match openat(&self.dir, &name, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(vec![]),
            opened => File::from(opened.on("open", self.shown(&name))?),
        };
        let mut bytes = vec![];
        file.take(LONGEST_FILE).read_to_end(&mut bytes).on("read", self.shown(&name))?;
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().filter_map(|line| {
            let (key, id) = line.split_once(' ')?;
            Some((key.to_owned(), id.parse().ok()?))
        });
        Ok(lines.collect())
    }
}

fn name_of(uid: u32) -> String {
    format!("{DIR}/{uid}")
}

fn key(digest: &Digest, platform: &Platform) -> String {
    let variant = platform.variant.as_deref().map_or(String::new(), |v| format!("-{v}"));
    format!("{}.{}-{}{variant}", digest.hex(), platform.os, platform.architecture)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::layers::tests::{add, add_with};

    /// The user for whom `add` adds.
    const ALICE: u32 = 7;
    const MALLORY: u32 = 666;

    fn digest(number: u32) -> Digest {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        Digest::Sha256(bytes)
    }

    #[test]
    fn resolved_digests_go_with_their_image() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store");
        let platform = Platform::linux("amd64", None);
        let (first, second) = (add(&store, 1, false), add(&store, 2, false));
        for (number, id) in [(1, first), (2, second), (3, first)] {
            store.remember(ALICE, &digest(number), &platform, id).expect("noted");
        }
        let known = |number| store.known(ALICE, &digest(number), &platform);
        assert_eq!([known(1), known(2), known(3)], [Some(first), Some(second), Some(first)]);
        assert_eq!(store.known(MALLORY, &digest(1), &platform), None, "another's");
        assert_eq!(
            store.known(ALICE, &digest(1), &Platform::linux("arm64", None)),
            None,
            "another machine's"
        );
        store.forbid(ALICE, first).expect("removed");
        assert_eq!([known(1), known(2), known(3)], [None, Some(second), None]);
        let text = std::fs::read_to_string(dir.path().join("meanings/7")).expect("read");
        assert_eq!(text.lines().count(), 1, "{text}");
        store.forbid(ALICE, second).expect("removed");
        assert_eq!(std::fs::read_dir(dir.path().join("meanings")).expect("listed").count(), 0);
    }

    #[test]
    fn an_image_goes_although_nothing_can_be_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store");
        let platform = Platform::linux("amd64", None);
        let ids = [1, 2, 3].map(|number| add(&store, number, false));
        // Also another's, so that only her permit of it goes first.
        store.permit(MALLORY, ids[1]).expect("permitted");
        for (number, id) in (1..).zip(ids) {
            store.remember(ALICE, &digest(number), &platform, id).expect("noted");
        }
        // As where the disk is full: what is new cannot be written.
        std::fs::remove_dir_all(dir.path().join("tmp")).expect("nothing is being made");
        store.forbid(ALICE, ids[0]).expect("removed");
        store.forbid(ALICE, ids[1]).expect("hers no more");
        assert_eq!(store.images().expect("listed"), ids[1..]);
        store.take_image(ids[2], false, &mut Default::default()).expect("collected");
        assert_eq!(store.images().expect("listed"), ids[1..2]);
        for number in 1..4 {
            assert_eq!(store.known(ALICE, &digest(number), &platform), None);
        }
    }

    #[test]
    fn resolved_digests_are_bounded_and_count_for_their_user() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store");
        let platform = Platform::linux("amd64", None);
        let id = add_with(&store, 1, (MALLORY, false), vec![]);
        let before = store.usage_of(MALLORY).expect("usage").total();
        let lines = (0..MOST as u32).map(|number| (key(&digest(number), &platform), id)).collect();
        store.write_resolved_digests(MALLORY, lines, None).expect("noted");
        for number in [MOST as u32, MOST as u32 + 1] {
            store.remember(MALLORY, &digest(number), &platform, id).expect("noted");
        }
        let text = std::fs::read_to_string(dir.path().join("meanings/666")).expect("read");
        assert_eq!(text.lines().count(), MOST);
        assert_eq!(store.known(MALLORY, &digest(1), &platform), None, "the oldest has gone");
        assert_eq!(store.known(MALLORY, &digest(MOST as u32 + 1), &platform), Some(id));
        let more = store.usage_of(MALLORY).expect("usage").total() - before;
        assert!((text.len() as u64..text.len() as u64 + 8192).contains(&more), "{more} bytes more");
    }

    #[test]
    fn what_an_earlier_version_has_left_goes_with_a_collection_and_delays_nobody() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store");
        let (first, _second) = (add(&store, 1, false), add(&store, 2, false));
        let old = |number: u32| dir.path().join(format!("meanings/{}.linux-amd64", digest(number).hex()));
        for number in 0..100 {
            std::fs::write(old(number), format!("{first}\n")).expect("written");
        }
        store.forbid(ALICE, first).expect("removed");
        assert!(old(0).exists(), "whoever removes an image leaves the resolved digests of others alone");
        assert_eq!(store.collect(None, true).expect("looked").files.len(), 100);
        assert_eq!(store.collect(None, false).expect("collected").files.len(), 100);
        assert!(!old(0).exists());
    }

    #[test]
    fn whoever_removes_an_image_reads_no_records_of_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store");
        let layer = |number: u32| crate::store::ImageLayer {
            digest: digest(number).to_string(),
            size: 1,
            media_type: None,
        };
        let alices = add_with(&store, 1, (ALICE, false), vec![layer(1), layer(2)]);
        add_with(&store, 2, (ALICE, false), vec![layer(2)]);
        let mallorys = add_with(&store, 3, (MALLORY, false), vec![layer(1)]);
        let blob = |number: u32| {
            let dir = store.blobs(ALICE).expect("made");
            dir.join(digest(number).to_string().replacen(':', "-", 1))
        };
        for number in [1, 2] {
            std::fs::write(blob(number), "layer").expect("written");
        }
        // A record that nobody can read: a pipe, at which whoever reads it waits for ever.
        let record = dir.path().join(super::super::record_name(mallorys));
        std::fs::remove_file(&record).expect("removed");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &record,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        );
        made.expect("a pipe");
        let removes = std::thread::scope(|scope| {
            let removing = scope.spawn(|| store.forbid(ALICE, alices));
            let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
            while !removing.is_finished() && std::time::Instant::now() < until {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let in_time = removing.is_finished();
            // Frees whoever reads it, so that the test can fail.
            let flags = OFlags::WRONLY | OFlags::NONBLOCK;
            drop(rustix::fs::open(&record, flags, Mode::empty()));
            in_time
        });
        assert!(removes, "it reads another user's record");
        assert!(!blob(1).exists(), "mallory's image, which has this layer too, keeps none of alice's");
        assert!(blob(2).exists(), "another of alice's images has it");
    }
}
