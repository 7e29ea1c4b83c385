//! The image `pagemap-PID.img`, which says where the pages in `pages-N.img` belong; for programs that receive pages
//! ([`page_protocol`](crate::page_protocol)) and write the images of a restore themselves.

use prost::Message;

use crate::image_format;

/// The type of `pagemap-PID.img`. Source: `criu/include/magic.h`.
const PAGEMAP: u32 = 0x5608_4025;

/// The first entry (`pagemap_head`).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Head {
    /// N of `pages-N.img`.
    #[prost(uint32, required, tag = "1")]
    pages: u32,
}

/// A run of pages (`pagemap_entry`). Those that are [present](crate::page_protocol::PRESENT) follow each other in `pages-N.img`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Entry {
    #[prost(uint64, required, tag = "1")]
    address: u64,
    /// Always 0: the number had too few bits here.
    #[prost(uint32, required, tag = "2")]
    old_pages: u32,
    #[prost(uint32, optional, tag = "4")]
    flags: Option<u32>,
    #[prost(uint64, optional, tag = "5")]
    pages: Option<u64>,
}

/// A run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntry {
    /// Address of the first, in bytes.
    pub address: u64,
    /// Number of pages.
    pub pages: u64,
    /// As in [`PageServerCommand::Add`](crate::page_protocol::PageServerCommand::Add).
    pub flags: u16,
}

/// The bytes of one such image.
#[derive(Clone, Debug)]
pub struct Pagemap(Vec<u8>);

impl Pagemap {
    /// An image without entries, for the pages in `pages-{pages}.img`.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        let mut image = Self(image_format::empty(PAGEMAP));
        image.append(&Head { pages });
        image
    }

    /// Adds a run of `pages` pages from `address`, with flags as in [`PageServerCommand::Add`](crate::page_protocol::PageServerCommand::Add).
    pub fn add(&mut self, address: u64, pages: u64, flags: u16) {
        self.append(&Entry { address, old_pages: 0, flags: Some(flags.into()), pages: Some(pages) });
    }

    /// The image so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads an image: N of its `pages-N.img`, and the runs; nothing if the bytes are not one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(u32, Vec<PageEntry>)> {
        let bodies = image_format::entry_bytes(PAGEMAP, bytes)?;
        let (head, runs) = bodies.split_first()?;
        let run = |body: &&[u8]| {
            let Entry { address, old_pages, flags, pages } = Entry::decode(*body).ok()?;
            let flags = u16::try_from(flags?).ok()?;
            Some(PageEntry { address, pages: pages.unwrap_or(old_pages.into()), flags })
        };
        Some((Head::decode(*head).ok()?.pages, runs.iter().map(run).collect::<Option<_>>()?))
    }

    fn append(&mut self, message: &impl Message) {
        image_format::append(&mut self.0, &message.encode_to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_as_criu_writes_it() {
        let mut image = Pagemap::new(1);
        image.add(0x1000, 2, 4);
        image.add(0x9000, 5, 2);
        let expected = [
            &[0x19, 0x43, 0x56, 0x54, 0x25, 0x40, 0x08, 0x56, 2, 0, 0, 0, 8, 1][..],
            &[9, 0, 0, 0, 8, 0x80, 0x20, 0x10, 0, 0x20, 4, 0x28, 2],
            &[10, 0, 0, 0, 8, 0x80, 0xa0, 2, 0x10, 0, 0x20, 2, 0x28, 5],
        ];
        assert_eq!(image.bytes(), expected.concat());
        let entries = [(0x1000, 2, 4), (0x9000, 5, 2)];
        let entries = entries.map(|(address, pages, flags)| PageEntry { address, pages, flags });
        assert_eq!(Pagemap::parse(image.bytes()), Some((1, entries.to_vec())));
        for length in 0..image.bytes().len() {
            let read = Pagemap::parse(&image.bytes()[..length]);
            assert!(read.is_none_or(|(_, read)| read.len() < entries.len()), "{length}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_take_the_reader_down(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let image = [Pagemap::new(1).bytes(), &bytes].concat();
            drop((Pagemap::parse(&bytes), Pagemap::parse(&image)));
        }
    }
}
