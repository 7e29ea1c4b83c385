//! For fuzz targets.

use crate::{Catalog, CdiFile, Description, Granted, Needs, Request, elf, ld_cache};

/// Takes bytes for each of the foreign formats: a description in JSON and in YAML, a library, a cache of the linker's.
///
/// # Panics
/// When what was written cannot be read.
pub fn cdi(bytes: &[u8]) {
    elf::read(bytes);
    ld_cache::check(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for is_json in [false, true] {
        let (description, problems) = Description::parse(text, is_json);
        problems.iter().for_each(|problem| drop(problem.text()));
        if !problems.is_empty() {
            continue;
        }
        let files = vec![CdiFile { path: "/etc/cdi/x.yaml".into(), priority: 0, description, problems }];
        let catalog = Catalog { files };
        let requests: Vec<Request> =
            text.lines().take(8).filter_map(|line| Request::gpus(line).ok()).collect();
        for granted in [Granted::Everything, Granted::Only(vec!["0".into()])] {
            if let Ok(found) = catalog.resolve(&requests, &granted) {
                Needs::of(&found).ok();
            }
        }
    }
}
