use super::*;

/// A header with this name, `VERSION-RELEASE`, time of installation, and what it provides and requires.
pub(in crate::rpm) fn header(name: &str, version: &str, time: u32, texts: [&[&str]; 2]) -> Vec<u8> {
    let (version, release) = version.split_once('-').unwrap_or((version, "1"));
    let (epoch, version) = version.split_once(':').map_or((None, version), |(e, v)| (Some(e), v));
    let text = |text: &str| [text.as_bytes(), b"\0"].concat();
    let mut entries = vec![
        (tag::NAME, kind::STRING, 1, text(name)),
        (tag::VERSION, kind::STRING, 1, text(version)),
        (tag::RELEASE, kind::STRING, 1, text(release)),
        (1008, 4, 1, time.to_be_bytes().to_vec()),
    ];
    if name != KEY_PACKAGE {
        entries.push((tag::ARCH, kind::STRING, 1, text("noarch")));
    }
    if let Some(epoch) = epoch {
        entries.push((tag::EPOCH, 4, 1, epoch.parse::<u32>().unwrap().to_be_bytes().to_vec()));
    }
    for (tag, texts) in [tag::PROVIDES, tag::REQUIRES].into_iter().zip(texts) {
        if !texts.is_empty() {
            let data = texts.iter().flat_map(|each| text(each)).collect();
            entries.push((tag, kind::STRINGS, texts.len() as u32, data));
        }
    }
    encode(&entries)
}

fn encode(entries: &[(u32, u32, u32, Vec<u8>)]) -> Vec<u8> {
    let (mut index, mut data) = (vec![], vec![]);
    for (tag, kind, count, bytes) in entries {
        for number in [*tag, *kind, data.len() as u32, *count] {
            index.extend(number.to_be_bytes());
        }
        data.extend(bytes);
    }
    let lengths = [entries.len() as u32, data.len() as u32].map(u32::to_be_bytes).concat();
    [&MAGIC[..], &[0; 4], &lengths, &index, &data].concat()
}

fn read(bytes: &[u8]) -> Result<Vec<RpmHeader>, String> {
    HeaderReader::new(bytes).collect::<Result<_, _>>().map_err(|e| e.to_string())
}

#[test]
fn headers_are_read_one_after_the_other() {
    let list =
        [header("a", "1:2-3", 7, [&["a", "cap"], &["b"]]), header("gpg-pubkey", "ab-cd", 8, [&[], &[]])]
            .concat();
    let headers = read(&list).unwrap();
    let [a, key] = &headers[..] else { panic!("{} headers", headers.len()) };
    assert_eq!([&a.bytes[..], &key.bytes[..]].concat(), list);
    let a = &a.package;
    assert_eq!((&a.key[..], &a.label[..], &a.version[..]), ("a.noarch", "a-2-3.noarch", "1:2-3"));
    assert_eq!((&a.provides[..], &a.requires[..]), (&["a".into(), "cap".into()][..], &["b".into()][..]));
    let key = &key.package;
    assert_eq!((&key.key[..], &key.label[..], key.is_install_only), ("gpg-pubkey", "gpg-pubkey-ab-cd", true));
    assert!(!a.is_install_only);
    assert!(
        read(&header("k", "1-1", 1, [&["installonlypkg(kernel)"], &[]])).unwrap()[0].package.is_install_only
    );
}

#[test]
fn a_hash_is_of_what_is_said_not_of_how() {
    let hash = |list: &[u8]| read(list).unwrap()[0].package.hash;
    let text = |text: &str| [text.as_bytes(), b"\0"].concat();
    let mut entries = vec![
        (tag::NAME, kind::STRING, 1, text("a")),
        (tag::VERSION, kind::STRING, 1, text("1")),
        (tag::RELEASE, kind::STRING, 1, text("1")),
    ];
    let first = hash(&encode(&entries));
    entries.swap(0, 2);
    entries.insert(0, (LAST_REGION, 7, 16, vec![0; 16]));
    assert_eq!(hash(&encode(&entries)), first, "order and regions");
    entries[1].3 = text("2");
    assert_ne!(hash(&encode(&entries)), first);
    let installed = |time| hash(&header("a", "1-1", time, [&[], &[]]));
    assert_ne!(installed(1), installed(2), "installed again");
}

#[test]
fn what_is_no_list_is_refused() {
    let whole = header("a", "1-1", 7, [&["a"], &["b"]]);
    for length in 1..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} bytes of it");
    }
    assert!(read(&[&whole[..], b"x"].concat()).is_err());
    let mut magic = whole.clone();
    magic[0] = 0;
    assert_eq!(read(&magic).unwrap_err(), "header 1: not a header");
    for (at, value) in [(8, 0x7fff_ffffu32), (12, 0x7fff_ffff)] {
        let mut large = whole.clone();
        large[at..at + 4].copy_from_slice(&value.to_be_bytes());
        assert_eq!(read(&large).unwrap_err(), "header 1: too large");
    }
    // Offset and count of the first entry.
    for at in [16 + 8, 16 + 12] {
        let mut beyond = encode(&[(tag::NAME, kind::STRINGS, 1, b"a\0".to_vec())]);
        beyond[at..at + 4].copy_from_slice(&9u32.to_be_bytes());
        assert_eq!(read(&beyond).unwrap_err(), "header 1: data beyond the end");
    }
    for name in ["", "-e", "../x", "a b", "a\n", "(none)"] {
        assert!(read(&header(name, "1-1", 1, [&[], &[]])).is_err(), "{name:?}");
    }
    for version in ["1 0-1", "1\u{1b}-1", "-1"] {
        assert!(read(&header("a", version, 1, [&[], &[]])).is_err(), "{version:?}");
    }
}

#[test]
fn data_that_overlaps_takes_no_more_than_there_is() {
    let mut entries: Vec<_> = (0..100).map(|n| (2000 + n, 7, 0, vec![])).collect();
    entries[0] = (2000, 7, 10_000, vec![0; 10_000]);
    let mut list = encode(&entries);
    for entry in 0..100 {
        let at = 16 + entry * ENTRY;
        list[at + 8..at + 12].copy_from_slice(&0u32.to_be_bytes());
        list[at + 12..at + 16].copy_from_slice(&10_000u32.to_be_bytes());
    }
    assert_eq!(read(&list).unwrap_err(), "header 1: overlapping data");
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(seed in proptest::collection::vec(0u8..4, 0..400), at in 0usize..200, byte: u8) {
        crate::fuzz::rpm_headers(&seed);
        let texts: [&[&str]; 2] = [&["a", "kernel"], &["b"]];
        let mut list = [header("a", "1-1", 1, texts), header("a", "2-1", 2, texts), header("b", "1-1", 1, texts)].concat();
        let at = at.min(list.len() - 1);
        list[at] = byte;
        crate::fuzz::rpm_headers(&list);
    }
}
