//! For fuzz targets.

use crate::{Catalog, CdiDescription, CdiFile, DeviceRequest, Granted, Needs, elf, ld_cache};

/// Takes bytes for each of the foreign formats: a description in JSON and in YAML, a library, a cache of the linker's.
///
/// # Panics
/// When what was written cannot be read.
pub fn cdi(bytes: &[u8]) {
    elf::read(bytes);
    ld_cache::check(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for is_json in [false, true] {
        let (description, problems) = CdiDescription::parse(text, is_json);
        problems.iter().for_each(|problem| drop(problem.text()));
        if !problems.is_empty() {
            continue;
        }
        let files = vec![CdiFile { path: "/etc/cdi/x.yaml".into(), priority: 0, description, problems }];
        let catalog = Catalog { files };
        let requests: Vec<DeviceRequest> =
            text.lines().take(8).filter_map(|line| DeviceRequest::gpus(line).ok()).collect();
        for granted in [Granted::Everything, Granted::Only(vec!["0".into()])] {
            if let Ok(needs) = catalog.resolve(&requests, &granted).and_then(|found| Needs::of(&found)) {
                assert!(requests.is_empty() || !needs.devices.is_empty());
            }
        }
    }
}
