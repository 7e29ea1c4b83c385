//! Files, and what comes of them.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use skiff_cdi::HostMount;
use skiff_spec::device::LibraryRole;

use crate::file::parse_mount;
use crate::{
    AskedModules, HostLinker, ModuleCatalog, ModuleFile, ModuleNeeds, Provided, SiteModule, WantedModule,
    When,
};

fn catalog(files: &[(&str, &str)]) -> (tempfile::TempDir, ModuleCatalog) {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("a file");
    }
    let catalog = ModuleCatalog::read(&[dir.path().into(), "/nonexistent".into()]);
    (dir, catalog)
}

fn names(catalog: &ModuleCatalog, asked: &[&str], mpi: Option<bool>) -> Result<Vec<String>, String> {
    let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
    let asked = AskedModules { provided: mpi.map(|must_fit| (Provided::Mpi, must_fit)), ..by_name(&asked) };
    let chosen = catalog.wanted(&asked).map_err(|e| e.message)?;
    Ok(chosen.wanted.iter().map(|wanted| wanted.module.name.clone()).collect())
}

fn by_name(names: &[String]) -> AskedModules<'_> {
    let has_path = &|path: &str| Some(Path::new(path).exists());
    AskedModules { names, provided: None, takes_always: true, has_path }
}

#[test]
fn files_are_read_whole_or_refused() {
    let file = ModuleFile::parse(
        "description = 'x'\nwhen = 'always'\nprovides = 'mpi'\nmounts = ['/a', '/b:/c:ro']\nenv = { A = '1' }\n",
    )
    .expect("a module");
    assert_eq!((file.when, file.provides), (When::Always, Some(Provided::Mpi)));
    for (text, problem) in [
        ("", "missing field `description`"),
        ("description = 'x'\nlibrary = []", "line 2: unknown field `library`: \"libraries\" may be meant"),
        (
            "description = 'x'\nwhen = 'never'",
            "line 2: unknown variant `never`, expected `asked` or `always`",
        ),
        ("description = 'x'\nwhen = 'allways'", "line 2: unknown variant `allways`: \"always\" may be meant"),
        (
            "description = 'x'\nblubberblase = 1",
            "line 2: unknown field `blubberblase`, expected one of `desc",
        ),
        ("description = 'x'\nReplace = 1", "line 2: unknown field `Replace`: \"replaces\" may be meant"),
        ("description = 'x'\ncompatibility = 'ful'", "line 2: unknown variant `ful`: \"full\" may be meant"),
        ("description = 'x'\nmounts = ['a']", "mounts: \"a\" is not PATH"),
        ("description = 'x'\nmounts = ['/a:/']", "mounts: \"/a:/\" is not PATH"),
        ("description = 'x'\nmounts = ['/a/../b']", "mounts: \"/a/../b\" is not PATH"),
        ("description = 'x'\ndevices = ['/etc/passwd']", "devices: \"/etc/passwd\" is not below /dev"),
        ("description = 'x'\nlibraries = ['lib']", "libraries: \"lib\" is not the name"),
        ("description = 'x'\nreplaces = ['/a.so:b']", "replaces: \"/a.so:b\" is not the name"),
        ("description = 'x'\nplugins = ['a']", "plugins: \"a\" is not an absolute path"),
        ("description = 'x'\nenv = { '1A' = '' }", "env: \"1A\" is no name of a variable"),
    ] {
        let problems = ModuleFile::parse(text).expect_err(text);
        assert!(problems[0].contains(problem), "{text}: {problems:?}");
    }
}

#[test]
fn mounts_are_paths() {
    assert_eq!(parse_mount("/a"), Some(("/a", "/a", false)));
    assert_eq!(parse_mount("/a:ro"), Some(("/a", "/a", true)));
    assert_eq!(parse_mount("/a:/b:ro"), Some(("/a", "/b", true)));
    for bad in ["", "a", "/a:b", "/a:/b:/c", "/a:rw", "/a:", ":/a"] {
        assert_eq!(parse_mount(bad), None, "{bad}");
    }
}

#[test]
fn modules_are_chosen() {
    let (_dir, catalog) = catalog(&[
        ("always.toml", "description = ''\nwhen = 'always'"),
        ("elsewhere.toml", "description = ''\nwhen = 'always'\nrequires = ['/nonexistent']"),
        ("mpich.toml", "description = ''\nprovides = 'mpi'\nconflicts = ['openmpi']"),
        ("openmpi.toml", "description = ''\nprovides = 'mpi'"),
        ("plain.toml", "description = ''"),
        ("rival.toml", "description = ''\nconflicts = ['plain']"),
        ("wrong.toml", "what = 1"),
        (".hidden.toml", "description = ''\nwhen = 'always'"),
        ("notes.txt", "description = ''\nwhen = 'always'"),
    ]);
    assert_eq!(names(&catalog, &[], None).expect("chosen"), ["always"]);
    assert_eq!(names(&catalog, &["plain"], None).expect("chosen"), ["always", "plain"]);
    assert_eq!(names(&catalog, &[], Some(false)).expect("alternatives"), ["always", "mpich", "openmpi"]);
    for (asked, message) in [
        (&["plain", "rival"][..], "module plain: cannot be used with module rival"),
        (&["mpich", "openmpi"], "module mpich: cannot be used with module openmpi"),
        (&["plane"], "module plane: not on this host"),
        (&["elsewhere"], "module elsewhere: this host has no /nonexistent"),
    ] {
        assert_eq!(names(&catalog, asked, None).expect_err("refused"), message);
    }
    let wrong = names(&catalog, &["wrong"], None).expect_err("refused");
    assert!(wrong.contains("wrong.toml: line 1: unknown field `what`"), "{wrong}");
}

#[test]
fn an_mpi_must_be_described() {
    let (_dir, catalog) = catalog(&[]);
    assert_eq!(names(&catalog, &[], Some(false)).expect("none"), Vec::<String>::new());
    assert!(names(&catalog, &[], Some(true)).is_err());
}

#[test]
fn the_later_directory_counts() {
    let dirs = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    for (dir, text) in dirs.iter().zip(["one", "two"]) {
        fs::write(dir.path().join("a.toml"), format!("description = '{text}'")).expect("a file");
    }
    let paths: Vec<PathBuf> = dirs.iter().map(|dir| dir.path().into()).collect();
    let catalog = ModuleCatalog::read(&paths);
    assert_eq!(catalog.modules.len(), 1);
    assert_eq!(catalog.modules[0].file.as_ref().expect("read").description, "two");
}

/// This test's own program needs libraries that the host has; those of glibc stay behind.
#[test]
fn libraries_come_with_what_they_need() {
    let linker = HostLinker::of_host();
    let own = std::env::current_exe().expect("this program").display().to_string();
    let libraries = |words: &[&str]| {
        let libraries = words.iter().map(|word| (*word).to_owned()).collect();
        linker.of_module(&ModuleFile { libraries, ..ModuleFile::default() }, "test")
    };
    let found = libraries(&[&own]).expect("libraries").libraries;
    assert_eq!(found[0].path, fs::canonicalize(&own).expect("a path"));
    assert!(found.iter().all(|library| !library.name.starts_with("libc.so")), "{found:?}");
    let renamed = libraries(&[&format!("{own}:libother.so.1")]).expect("libraries").libraries;
    assert_eq!((renamed[0].name.as_str(), renamed[0].role), ("libother.so.1", LibraryRole::Named));
    let compilers = renamed.iter().filter(|library| library.name.starts_with("libgcc_s"));
    assert!(compilers.clone().all(|library| library.role == LibraryRole::Compilers), "{renamed:?}");
    let missing = libraries(&["libnothing.so.1"]).expect_err("not there");
    assert!(missing.message.contains("module test: library libnothing.so.1"), "{}", missing.message);
    let text = libraries(&["/etc/passwd"]).expect_err("no library");
    assert!(text.message.contains("/etc/passwd: not a 64-bit library"), "{}", text.message);
}

#[test]
fn plug_ins_bring_what_they_need() {
    let dir = tempfile::tempdir().expect("a directory");
    let own = std::env::current_exe().expect("this program");
    std::os::unix::fs::symlink(&own, dir.path().join("plugin.so")).expect("a link");
    fs::write(dir.path().join("notes.txt"), "").expect("a file");
    let dir = dir.path().display().to_string();
    let file = ModuleFile { plugins: vec![dir.clone()], ..ModuleFile::default() };
    let found = HostLinker::of_host().of_module(&file, "test").expect("found");
    // The plug-ins themselves are in the directory, which is mounted.
    assert!(found.libraries.iter().all(|library| library.path != own), "{found:?}");
    assert!(found.of_plugins.is_none_or(|(_, path)| path == own));
    let module = SiteModule { name: "test".into(), path: "test.toml".into(), file: Ok(file.clone()) };
    let wanted = WantedModule { module: &module, file: &file, is_asked: true };
    let needs = ModuleNeeds::of(&[wanted], &HostLinker::default).expect("found");
    assert_eq!(needs.mounts(), [HostMount { host: dir.clone(), inside: dir, read_only: true }]);
}

#[test]
fn what_is_missing_counts_for_those_who_asked() {
    let (dir, catalog) = catalog(&[(
        "a.toml",
        "description = ''\nwhen = 'always'\nmounts = ['/nonexistent']\nenv = { A = '1' }",
    )]);
    let needs = |asked: &[String]| {
        let chosen = catalog.wanted(&by_name(asked)).expect("chosen");
        ModuleNeeds::of(&chosen.wanted, &HostLinker::default)
    };
    let left_out = needs(&[]).expect("left out");
    assert_eq!((left_out.modules.len(), left_out.left_out.len()), (0, 1));
    let refused = needs(&["a".into()]).expect_err("refused");
    assert!(refused.message.starts_with("module a: /nonexistent: "), "{}", refused.message);
    assert!(
        refused.hint.contains(&Path::new(dir.path()).join("a.toml").display().to_string()),
        "{}",
        refused.hint
    );
}

#[test]
fn modules_that_a_root_does_not_get_conflict_with_none() {
    let (_dir, catalog) = catalog(&[
        ("fabric.toml", "description = ''\nwhen = 'always'"),
        ("rival.toml", "description = ''\nconflicts = ['fabric']"),
    ]);
    let rival = ["rival".to_owned()];
    let why = catalog.wanted(&by_name(&rival)).expect_err("a conflict");
    assert_eq!(why.message, "module fabric: cannot be used with module rival");
    let chosen = catalog.wanted(&AskedModules { takes_always: false, ..by_name(&rival) }).expect("chosen");
    assert_eq!(chosen.wanted.iter().map(|wanted| &*wanted.module.name).collect::<Vec<_>>(), ["rival"]);
}

#[test]
fn a_broken_module_may_have_been_the_one_for_mpi() {
    let (_dir, catalog) = catalog(&[("openmpi.toml", "provides = 'mpi'")]);
    let why = names(&catalog, &[], Some(true)).expect_err("none");
    assert!(why.contains("no module of this site provides an MPI for this host; not used: "), "{why}");
    assert!(why.contains("openmpi.toml: line 1: missing field `description`"), "{why}");
    assert_eq!(names(&catalog, &[], Some(false)), Ok(vec![]));
}

#[test]
fn a_server_that_does_not_answer_takes_its_modules_away() {
    let (_dir, catalog) = catalog(&[
        ("far.toml", "description = ''\nwhen = 'always'\nrequires = ['/far/away']"),
        ("mpi.toml", "description = ''\nprovides = 'mpi'\nrequires = ['/far/mpi']"),
    ]);
    let wanted = |names: &[String], provided| {
        let asked = AskedModules { has_path: &|_| None, provided, ..by_name(names) };
        let left_out = |why: (String, crate::ModuleError)| why.1.message;
        let chosen = catalog.wanted(&asked).map_err(|e| e.message)?;
        Ok::<_, String>((chosen.wanted.len(), chosen.left_out.into_iter().map(left_out).collect()))
    };
    let of =
        |name: &str, path: &str| format!("module {name}: {path}: its file server has not answered in time");
    let (far, mpi) = (of("far", "/far/away"), of("mpi", "/far/mpi"));
    assert_eq!(wanted(&[], None), Ok((0, vec![far.clone()])));
    assert_eq!(wanted(&["far".into()], None), Err(far));
    assert_eq!(wanted(&[], Some((Provided::Mpi, true))), Err(mpi));
}

proptest! {
    #[test]
    fn any_text_is_a_module_or_named(text in ".{0,300}") {
        if let Err(problems) = ModuleFile::parse(&text) {
            prop_assert!(!problems.is_empty());
        }
    }
}
