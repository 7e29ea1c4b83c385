//! Layers of environments among the images: copies of what the users' depots have, so the first to go where a user's quota is full.

use skiff_spec::image::ImageId;

use super::Store;
use crate::error::Result;

/// So many layers one user has at most: they count as images, and are not to keep this user from having some.
const MOST_LAYERS: usize = 200;

impl Store {
    /// Sees to it that a user may have so many bytes more, if need be instead of layers that are not among these; says how many went.
    ///
    /// # Errors
    /// [`Error::Quota`](crate::Error::Quota) where all of them are not enough: then all stay. The store cannot be read or written to.
    pub(crate) fn make_room_for_layer(&self, uid: u32, bytes: u64, but_for: &[ImageId]) -> Result<usize> {
        self.make_room(uid, bytes, but_for)
    }

    /// Takes from a user the layers used longest ago, until at least so many bytes and layers are gone. Says how many went: none, if all that
    /// may go are not enough.
    pub(super) fn give_up_layers(
        &self,
        uid: u32,
        (bytes, count): (u64, usize),
        but_for: &[ImageId],
    ) -> Result<usize> {
        let layers: Vec<_> =
            self.layers_of(uid)?.into_iter().filter(|(id, _)| !but_for.contains(id)).collect();
        let all: u64 = layers.iter().map(|(_, size)| size).sum();
        if all < bytes || layers.len() < count {
            return Ok(0);
        }
        let (mut freed, mut gone) = (0, 0);
        for (id, size) in layers {
            if freed >= bytes && gone >= count {
                break;
            }
            self.forbid(uid, id)?;
            freed += size;
            gone += 1;
        }
        Ok(gone)
    }

    /// Takes from a user the layers used longest ago, until the rest takes no more than `budget` bytes; but for those of one snapshot, which
    /// stay however large it is. Says how many went.
    ///
    /// # Errors
    /// The store cannot be read or written to.
    pub(crate) fn keep_layers_within(&self, uid: u32, budget: u64, but_for: &[ImageId]) -> Result<usize> {
        let layers = self.layers_of(uid)?;
        let mut bytes: u64 = layers.iter().map(|(_, bytes)| bytes).sum();
        let (all, mut gone) = (layers.len(), 0);
        for (id, size) in layers {
            if bytes <= budget && all - gone <= MOST_LAYERS {
                break;
            }
            if !but_for.contains(&id) {
                self.forbid(uid, id)?;
                bytes -= size;
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// A user's layers, the one used longest ago first, and how much each takes on the disk.
    fn layers_of(&self, uid: u32) -> Result<Vec<(ImageId, u64)>> {
        let mut layers = vec![];
        for id in self.images_of(uid)? {
            // One that cannot be read is for `skiff store verify` to complain of.
            if self.find(id).is_ok_and(|found| found.is_some_and(|record| record.layer)) {
                layers.push((self.used_by(uid, id), id));
            }
        }
        layers.sort();
        Ok(layers.into_iter().map(|(_, id)| (id, self.image_bytes(id))).collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::error::Error;
    use crate::store::{Begun, ImageLayer, ImageMetadata, Patience, Quota};

    pub(in crate::store) fn add(store: &Store, number: u8, layer: bool) -> ImageId {
        add_with(store, number, (7, layer), vec![])
    }

    pub(in crate::store) fn add_with(
        store: &Store,
        number: u8,
        (uid, layer): (u32, bool),
        layers: Vec<ImageLayer>,
    ) -> ImageId {
        let id = ImageId([number; 32]);
        let begun = store.begin((id, uid), Patience::default(), &mut || ()).expect("begun");
        let Begun::New(making) = begun else { panic!("it is not there") };
        rustix::io::pwrite(making.file(), &vec![number; 256 << 10], 0).expect("written");
        let config = serde_json::json!({});
        let record = ImageMetadata {
            size: 256 << 10,
            data_sum: None,
            layers,
            origins: vec![],
            layer,
            files: 1,
            config,
        };
        store.permit(uid, id).expect("permitted");
        making.publish(&record).expect("published");
        id
    }

    fn left(store: &Store) -> Vec<u8> {
        let mut left: Vec<u8> = store.images().expect("images").iter().map(|id| id.0[0]).collect();
        left.sort();
        left
    }

    #[test]
    fn layers_make_room_the_oldest_first_and_images_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store").with_quota(Quota::Bytes(1 << 20));
        add(&store, 1, false);
        for number in [2, 3, 4] {
            add(&store, number, true);
        }
        assert_eq!(store.make_room_for_layer(7, 200 << 10, &[ImageId([2; 32])]).expect("room"), 1);
        assert_eq!(left(&store), [1, 2, 4], "the oldest but for those of the snapshot");
        assert!(matches!(store.make_room_for_layer(7, 900 << 10, &[]), Err(Error::Quota { .. })));
        assert_eq!(left(&store), [1, 2, 4], "in vain nothing goes");
        store.check_room(7, 400 << 10).expect("layers make room for images, too");
        assert_eq!(left(&store), [1, 4]);
        store.check_room(7, 700 << 10).expect("the last one");
        assert_eq!(left(&store), [1], "an image is never taken for a layer");
    }

    #[test]
    fn layers_are_kept_within_their_budget_but_for_the_one_that_is_wanted() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store");
        add(&store, 1, false);
        let wanted = add(&store, 2, true);
        for number in [3, 4, 5] {
            add(&store, number, true);
        }
        let keep = |budget| store.keep_layers_within(7, budget, &[wanted]).expect("kept");
        assert_eq!(keep(4 << 20), 0);
        assert_eq!(keep(700 << 10), 2);
        assert_eq!(left(&store), [1, 2, 5]);
        assert_eq!(keep(0), 1);
        assert_eq!(left(&store), [1, 2]);
    }
}
