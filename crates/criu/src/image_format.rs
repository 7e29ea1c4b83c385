//! How CRIU writes images: two numbers that say that it is one and of which type, then entries, each with its length before it.

use prost::Message;

/// What each image begins with; the number of its type is the second one. Source: `criu/include/magic.h`.
const COMMON: u32 = 0x5456_4319;

/// An image of this type without entries.
pub(crate) fn empty(kind: u32) -> Vec<u8> {
    [COMMON, kind].iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// Appends an entry.
pub(crate) fn append(image: &mut Vec<u8>, entry: &[u8]) {
    // No entry reaches 4 GiB.
    image.extend((entry.len() as u32).to_ne_bytes());
    image.extend(entry);
}

/// The entries of an image of this type, as bytes; nothing if it is not such an image.
pub(crate) fn entry_bytes(kind: u32, image: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = image.strip_prefix(&empty(kind)[..])?;
    let mut found = vec![];
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let (body, behind) = behind.split_at_checked(usize::try_from(u32::from_ne_bytes(*length)).ok()?)?;
        found.push(body);
        rest = behind;
    }
    Some(found)
}

/// Decodes the entries of an image of this type.
pub(crate) fn entries<T: Message + Default>(kind: u32, image: &[u8]) -> Option<Vec<T>> {
    entry_bytes(kind, image)?.into_iter().map(|body| T::decode(body).ok()).collect()
}

/// An image of these messages.
#[cfg(test)]
pub(crate) fn image<T: Message>(kind: u32, entries: &[T]) -> Vec<u8> {
    let mut image = empty(kind);
    entries.iter().for_each(|entry| append(&mut image, &entry.encode_to_vec()));
    image
}
