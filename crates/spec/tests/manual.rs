//! The manual page of the configuration has an entry for each key, and says which are the site's only.

use skiff_spec::config::{Config, SITE_ONLY};
use skiff_spec::network::Network;
use skiff_spec::site::BadLine;
use toml::{Table, Value};

const PAGE: &str = include_str!("../../../packaging/man/skiff-config.5");

/// The entry of a key: from its `.TP` to the next one or to the next section.
fn entry<'a>(section: &str, key: &str) -> Option<&'a str> {
    let section = &PAGE[PAGE.find(&format!("\n{section}\n"))? + 1..];
    let mut entries = section.split("\n.S").next()?.split("\n.TP\n").skip(1);
    entries.find(|entry| {
        let head = entry.lines().next().unwrap_or_default();
        head.starts_with(&format!(".BR {key} ")) || head.contains(&format!("\" {key} \""))
    })
}

#[test]
fn of_the_configuration() {
    let text = Config::default().to_toml().expect("all fields are plain");
    let check = |section: &str, table: &str, key: &str| {
        let entry = entry(section, key).unwrap_or_else(|| panic!("{section}: {key}: no entry"));
        let name = format!("{table}{key}");
        let is_site_only = key == "lock" || SITE_ONLY.iter().any(|(only, _)| *only == name);
        assert_eq!(entry.contains(".BR site ."), is_site_only, "{name}");
        assert!(entry.contains("Default:"), "{name}");
    };
    for (key, value) in text.parse::<Table>().expect("it was written as TOML") {
        match value {
            Value::Table(table) => {
                for inner in table.keys() {
                    check(&format!(".SS [{key}]"), &format!("{key}."), inner);
                }
            }
            _ => check(".SS Top level", "", &key),
        }
    }
}

#[test]
fn of_the_helper() {
    let keys: Vec<_> =
        BadLine::HINT.split('`').filter_map(|part| part.split_once(" = ")).map(|(key, _)| key).collect();
    assert_eq!(keys.len(), 7);
    for key in keys {
        assert!(entry(".SH HELPER.CONF", key).is_some(), "{key}: no entry");
    }
}

#[test]
fn of_networks() {
    let refusal = Network::parse("zzz = 1").expect_err("there is no such key");
    let keys: Vec<_> = refusal.split('`').skip(3).step_by(2).collect();
    assert!(keys.len() > 15, "{refusal}");
    for key in keys {
        let key = if key == "nodes" { "[nodes]" } else { key };
        let found =
            entry(".SH NETWORKS.D/NAME.TOML", key).is_some() || PAGE.contains(&format!(".BR {key} \", HOST"));
        assert!(found, "{key}: no entry");
    }
}
