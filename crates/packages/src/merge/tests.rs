use crate::{Ancestor, Conflict, Database, MergedDatabase, PackageChange, Unmet, merge, summary};

fn package(name: &str, version: &str) -> String {
    state(name, version, "install ok installed")
}

fn state(name: &str, version: &str, status: &str) -> String {
    format!(
        "Package: {name}\nStatus: {status}\nArchitecture: all\nVersion: {version}\nDescription: x\n more\n\n"
    )
}

fn run(ancestor: Option<&[String]>, user: &[String], base: &[String], users: &[&str]) -> MergedDatabase {
    let (user, base) = (user.concat(), base.concat());
    let before = ancestor.map(<[String]>::concat);
    let parse = |text: &str| Ancestor::of(&Database::parse(text.as_bytes()).unwrap(), String::new(), &[]);
    let ancestor = before.as_deref().map(parse);
    let parse = |text| Database::parse(text).unwrap();
    merge(ancestor.as_ref(), &parse(user.as_bytes()), &parse(base.as_bytes()), &|key| users.contains(&key))
}

fn text(merged: &MergedDatabase) -> String {
    String::from_utf8(merged.text.clone().unwrap()).unwrap()
}

fn change(name: &str, was: &str, now: &str) -> PackageChange {
    let version = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    PackageChange { name: name.into(), was: version(was), now: version(now) }
}

#[test]
fn what_the_base_installs_upgrades_and_removes_is_taken() {
    let ancestor = [package("gone", "1"), package("same", "1"), package("up", "1")];
    let user = [&ancestor[..], &[package("mine", "1")]].concat();
    let base = [package("new", "1"), package("same", "1"), package("up", "2")];
    let merged = run(Some(&ancestor), &user, &base, &["mine"]);
    assert_eq!(
        text(&merged),
        [package("mine", "1"), package("new", "1"), package("same", "1"), package("up", "2")].concat()
    );
    assert_eq!(merged.changes, [change("gone", "1", ""), change("new", "", "1"), change("up", "1", "2")]);
    assert_eq!(merged.conflicts, []);
    let now: Vec<_> = merged
        .ancestor
        .packages
        .iter()
        .map(|(name, known)| (&name[..], known.installed.as_deref()))
        .collect();
    assert_eq!(now, [("new", Some("1")), ("same", Some("1")), ("up", Some("2"))]);
}

#[test]
fn what_the_user_has_changed_stays_and_is_named() {
    let ancestor = [package("down", "1"), package("out", "1"), package("re", "1"), package("up", "1")];
    let user = [package("both", "1"), package("down", "1"), package("re", "1"), package("up", "3")];
    let base = [package("both", "2"), package("out", "2"), package("re", "2"), package("up", "2")];
    let merged = run(Some(&ancestor), &user, &base, &["both", "down", "out", "re", "up"]);
    assert_eq!(merged.text, None);
    let names: Vec<&str> = merged.conflicts.iter().map(|conflict| &conflict.name[..]).collect();
    // `re` is the same version, unpacked again by the user: its files are the user's.
    assert_eq!(names, ["both", "down", "out", "re", "up"]);
    let conflict = Conflict { name: "out".into(), yours: None, host: Some("2".into()) };
    assert_eq!(merged.conflicts[2], conflict);
    // It is said once, and kept.
    let parse = |text: &str| Database::parse(text.as_bytes()).map(|_| ());
    parse(&user.concat()).unwrap();
    let (user, base) = (user.concat(), base.concat());
    let (user, base) = (Database::parse(user.as_bytes()).unwrap(), Database::parse(base.as_bytes()).unwrap());
    let again = merge(Some(&merged.ancestor), &user, &base, &|_| true);
    assert_eq!(again.conflicts, []);
    assert_eq!(again.ancestor.conflicts.len(), 5);
    // Both have come to the same.
    let same = merge(Some(&again.ancestor), &base, &base, &|_| true);
    assert_eq!(same.ancestor.conflicts.len(), 0);
}

#[test]
fn what_is_being_done_is_left_until_it_is_done() {
    let ancestor = [package("a", "1")];
    for status in
        ["install ok half-configured", "install ok triggers-pending", "install reinstreq installed", ""]
    {
        let merged = run(Some(&ancestor), &ancestor, &[state("a", "2", status)], &[]);
        assert_eq!(merged.text, None, "{status}");
        assert_eq!(merged.ancestor.packages["a"].installed.as_deref(), Some("1"));
    }
    // One that was removed, with its configuration left.
    let merged = run(Some(&ancestor), &ancestor, &[state("a", "1", "deinstall ok config-files")], &[]);
    assert_eq!(merged.changes, [change("a", "1", "")]);
}

#[test]
fn without_an_ancestor_the_files_of_the_user_decide() {
    let user = [package("a", "1"), package("b", "1"), package("mine", "1")];
    let base = [package("a", "2"), package("b", "2"), package("new", "1"), package("out", "1")];
    let merged = run(None, &user, &base, &["b", "mine", "out"]);
    assert_eq!(merged.changes, [change("a", "1", "2"), change("new", "", "1")]);
    assert_eq!(merged.conflicts, []);
    assert_eq!(merged.ancestor.packages.len(), 4);
}

#[test]
fn a_removed_package_that_one_of_the_users_needs_is_named() {
    let ancestor = [package("lib", "1")];
    let mine = package("mine", "1").replace("Version", "Depends: libc | libd, lib (>= 1), other\nVersion");
    let merged = run(Some(&ancestor), &[&ancestor[..], &[mine]].concat(), &[], &["mine"]);
    assert_eq!(merged.unmet, [Unmet { name: "mine".into(), needs: "lib".into() }]);
}

#[test]
fn the_order_of_fields_is_no_change() {
    let ancestor = [package("a", "1")];
    let user =
        ["Version: 1\nDescription: x\n more\nPackage: a\nArchitecture: all\nStatus: install ok installed\n"
            .into()];
    let merged = run(Some(&ancestor), &user, &[package("a", "2")], &[]);
    assert_eq!(merged.changes, [change("a", "1", "2")]);
}

#[test]
fn of_several_architectures_each_is_a_package() {
    let same = |arch: &str, version| {
        package("lib", version).replace(": all", &format!(": {arch}\nMulti-Arch: same"))
    };
    let merged = run(
        Some(&[same("amd64", "1")]),
        &[same("amd64", "1")],
        &[same("amd64", "2"), same("i386", "2")],
        &[],
    );
    assert_eq!(merged.changes, [change("lib:amd64", "1", "2"), change("lib:i386", "", "2")]);
}

#[test]
fn an_ancestor_is_read_as_it_was_written() {
    use crate::Records;
    let text = [package("a", "1:2-3"), state("b", "1", "deinstall ok config-files")].concat();
    let diversions = (&b"/a\n/a.x\n:\n/b\n/b.x\np\n"[..], Records::Diversions);
    let base = Database::parse(text.as_bytes()).unwrap();
    let mut ancestor = Ancestor::of(
        &base,
        "1 2 3".into(),
        &[("diversions", diversions.1, diversions.0), ("none", Records::Lines, b"")],
    );
    ancestor.conflicts.insert("a".into());
    assert_eq!(Ancestor::from_text(&ancestor.to_text()), Ok(ancestor.clone()));
    assert_eq!(Ancestor::mark_of(&ancestor.to_text()), Some("1 2 3"));
    for wrong in [
        "",
        "skiff-packages 2\n\n",
        "skiff-packages 1\nx\npackage a 00 1\n",
        "skiff-packages 1\nx\nrecord a b\n",
    ] {
        assert!(Ancestor::from_text(wrong).is_err(), "{wrong:?}");
    }
    let after = Ancestor::of(&Database::parse(b"").unwrap(), String::new(), &[]);
    assert_eq!(summary(&ancestor, &after), [change("a", "1:2-3", "")]);
}

#[test]
fn what_names_no_package_is_refused() {
    for text in [
        "Version: 1\n",
        "Package: ../x\n",
        "Package: a/b\n",
        "Package:\n",
        "Package: a b\n",
        "Multi-Arch: same\nPackage: a\n",
    ] {
        assert!(Database::parse(text.as_bytes()).is_err(), "{text:?}");
    }
    assert_eq!(Database::parse(b"\n\n").unwrap().keys().count(), 0);
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(Package: [ab]\n|Version: [12]\n|Status: install ok installed\n|\n|%\n){0,30}") {
        crate::fuzz::packages(text.as_bytes());
    }
}
