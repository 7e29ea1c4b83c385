//! The keys that a configuration may have, to tell of those that have no effect: later versions of the specification have more of them, other
//! systems others, and one may be misspelt.

use serde_json::{Map, Value};

/// The keys of an object, by its place. `*` stands for each item of a list, and each member of an object.
const KNOWN: [(&str, &str); 20] = [
    ("", "ociVersion root process hostname domainname mounts hooks annotations linux"),
    ("root", "path readonly"),
    (
        "process",
        "terminal consoleSize user args env cwd capabilities rlimits noNewPrivileges oomScoreAdj apparmorProfile selinuxLabel scheduler ioPriority execCPUAffinity",
    ),
    ("process.consoleSize", "height width"),
    ("process.user", "uid gid umask additionalGids"),
    ("process.capabilities", "bounding effective inheritable permitted ambient"),
    ("process.rlimits.*", "type soft hard"),
    ("mounts.*", "destination type source options uidMappings gidMappings"),
    ("hooks", "prestart createRuntime createContainer startContainer poststart poststop"),
    ("hooks.*.*", "path args env timeout"),
    (
        "linux",
        "uidMappings gidMappings namespaces devices cgroupsPath resources intelRdt sysctl seccomp rootfsPropagation maskedPaths readonlyPaths mountLabel personality timeOffsets",
    ),
    ("linux.namespaces.*", "type path"),
    ("linux.devices.*", "type path major minor fileMode uid gid"),
    ("linux.resources", "devices memory cpu pids blockIO hugepageLimits network rdma unified"),
    ("linux.resources.memory", "limit reservation swap kernel kernelTCP swappiness disableOOMKiller"),
    ("linux.resources.cpu", "shares quota burst period realtimeRuntime realtimePeriod cpus mems idle"),
    ("linux.resources.pids", "limit"),
    (
        "linux.seccomp",
        "defaultAction defaultErrnoRet architectures flags listenerPath listenerMetadata syscalls",
    ),
    ("linux.seccomp.syscalls.*", "names action errnoRet args"),
    ("linux.seccomp.syscalls.*.args.*", "index value valueTwo op"),
];

/// The keys in a configuration that mean nothing here, with their places.
pub fn unknown(config: &Value) -> Vec<String> {
    KNOWN.iter().flat_map(|(place, known)| unknown_at(config, place, known)).collect()
}

fn unknown_at(config: &Value, place: &str, known: &str) -> Vec<String> {
    let of = |(at, object): (String, &Map<String, Value>)| -> Vec<String> {
        let unknown = object.keys().filter(|key| !known.split(' ').any(|known| known == *key));
        unknown.map(|key| joined(&at, key)).collect()
    };
    objects(config, place).into_iter().flat_map(of).collect()
}

/// The objects at a place.
fn objects<'a>(config: &'a Value, place: &str) -> Vec<(String, &'a Map<String, Value>)> {
    let mut found = vec![(String::new(), config)];
    for part in place.split('.').filter(|part| !part.is_empty()) {
        found = found.into_iter().flat_map(|(at, value)| below(&at, value, part)).collect();
    }
    found.into_iter().filter_map(|(at, value)| Some((at, value.as_object()?))).collect()
}

fn below<'a>(at: &str, value: &'a Value, part: &str) -> Vec<(String, &'a Value)> {
    match (part, value) {
        ("*", Value::Array(items)) => {
            items.iter().enumerate().map(|(number, item)| (format!("{at}[{number}]"), item)).collect()
        }
        ("*", Value::Object(members)) => {
            members.iter().map(|(key, value)| (joined(at, key), value)).collect()
        }
        (key, value) => value.get(key).map(|value| (joined(at, key), value)).into_iter().collect(),
    }
}

fn joined(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_keys_are_found_at_every_depth() {
        let config = json!({
            "ociVersion": "1.2.0", "windows": {},
            "annotations": {"any": "key"},
            "process": {"user": {"uid": 0, "username": "a"}, "rlimits": [{"type": "a", "softer": 1}]},
            "mounts": [{"destination": "/a"}, {"destination": "/b", "option": []}],
            "hooks": {"prestart": [{"path": "/a", "timeOut": 1}], "postend": []},
            "linux": {
                "sysctl": {"any": "key"},
                "netDevices": {},
                "resources": {"memory": {"checkBeforeUpdate": true}, "pids": {"limit": 1}, "unified": {"any": "key"}},
                "seccomp": {"syscalls": [{"names": [], "args": [{"index": 0, "valueThree": 1}]}]},
            },
        });
        let expected = [
            "windows",
            "process.user.username",
            "process.rlimits[0].softer",
            "mounts[1].option",
            "hooks.postend",
            "hooks.prestart[0].timeOut",
            "linux.netDevices",
            "linux.resources.memory.checkBeforeUpdate",
            "linux.seccomp.syscalls[0].args[0].valueThree",
        ];
        assert_eq!(unknown(&config), expected);
        assert_eq!(unknown(&json!([])), [""; 0]);
    }

    #[test]
    fn what_this_runtime_writes_has_known_keys_only() {
        let config = crate::config::BundleConfig::default();
        let value = serde_json::to_value(config).expect("a configuration");
        assert_eq!(unknown(&value), [""; 0]);
    }
}
