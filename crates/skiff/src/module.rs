//! `skiff module`: what of this site's fabric, MPI and software containers can have, and whether its descriptions hold.

use std::path::{Path, PathBuf};

use serde::Serialize;
use skiff_cli::ModuleCommand;
use skiff_modules::{
    HostLinker, ModuleCatalog, ModuleFile, ModuleNeeds, Provided, SiteModule, WantedModule, When,
};
use skiff_output::{self as output, ListFormat};
use skiff_plan::modules;
use skiff_spec::fault::Result;
use skiff_user::context::UserContext;

use crate::checked_files;

/// Does what was asked; the exit code.
pub fn run(command: &ModuleCommand) -> Result<i32> {
    let dirs = modules::dirs(&UserContext::load()?.config);
    match command {
        ModuleCommand::List(format) => list(&dirs, &format.format()).map(|()| 0),
        ModuleCommand::Check { files, output } => check(&dirs, files, output.json),
    }
}

/// A module, as it is listed.
#[derive(Serialize)]
struct ListedModule {
    name: String,
    description: String,
    when: When,
    #[serde(skip_serializing_if = "Option::is_none")]
    provides: Option<Provided>,
    /// Whether this host has what it requires.
    usable: bool,
    file: PathBuf,
}

fn list(dirs: &[PathBuf], format: &ListFormat<'_>) -> Result<()> {
    let catalog = ModuleCatalog::read(dirs);
    let sound = catalog.modules.iter().filter_map(|module| Some((module, module.file.as_ref().ok()?)));
    let listed: Vec<ListedModule> = sound.map(|(module, file)| listed(module, file)).collect();
    output::list(
        format,
        &listed,
        |module| module.name.clone(),
        || output::table(&["MODULE", "FOR", "DESCRIPTION"], &listed.iter().map(row).collect::<Vec<_>>()),
    )?;
    let broken = catalog.modules.len() - listed.len();
    if broken > 0 {
        let files = output::count(broken as u64, "file is", "files are");
        output::note(&format!("{files} not used: skiff module check"));
    } else if listed.is_empty() {
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        output::note(&format!("no module is described in {}", dirs.join(" or ")));
    }
    Ok(())
}

fn listed(module: &SiteModule, file: &ModuleFile) -> ListedModule {
    ListedModule {
        name: module.name.clone(),
        description: file.description.clone(),
        when: file.when,
        provides: file.provides,
        usable: file.requires.iter().all(|path| Path::new(path).exists()),
        file: module.path.clone(),
    }
}

fn row(module: &ListedModule) -> Vec<String> {
    let who = match (module.usable, module.when, module.provides) {
        (false, _, _) => "not this host",
        (true, When::Always, _) => "every container",
        (true, When::Asked, Some(Provided::Mpi)) => "--mpi, --module",
        (true, When::Asked, None) => "--module",
    };
    vec![module.name.clone(), who.into(), module.description.clone()]
}

/// How a module is found.
#[derive(Serialize)]
struct CheckedModule {
    file: PathBuf,
    ok: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
    /// The libraries that it brings, with those that they need.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    libraries: Vec<PathBuf>,
    /// What is no mistake, and good to know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

fn check(dirs: &[PathBuf], files: &[PathBuf], json: bool) -> Result<i32> {
    let catalog = match files {
        [] => ModuleCatalog::read(dirs),
        files => ModuleCatalog { modules: files.iter().map(|file| SiteModule::read(file)).collect() },
    };
    let linker = HostLinker::of_host();
    let checked: Vec<CheckedModule> =
        catalog.modules.iter().map(|module| checked(module, &catalog, &linker)).collect();
    if json {
        output::json(&checked)?;
    } else {
        checked.iter().try_for_each(show)?;
        if checked.is_empty() {
            output::note("no file describes a module on this host");
        }
    }
    Ok(i32::from(!checked.iter().all(|module| module.ok)))
}

fn show(checked: &CheckedModule) -> Result<()> {
    let libraries = checked.libraries.iter().map(|library| format!("brings {}", library.display()));
    let details = checked.problems.iter().cloned().chain(libraries);
    checked_files::show((checked.ok, &checked.file), details, &checked.notes)
}

fn checked(module: &SiteModule, catalog: &ModuleCatalog, linker: &HostLinker) -> CheckedModule {
    let (mut problems, mut libraries, mut notes) = (vec![], vec![], vec![]);
    match &module.file {
        Err(wrong) => problems.clone_from(wrong),
        Ok(file) => {
            let missing = file.requires.iter().find(|path| !Path::new(path).exists());
            let wanted = WantedModule { module, file, is_asked: true };
            match (missing, ModuleNeeds::of(&[wanted], &|| linker.clone())) {
                (Some(missing), _) => notes.push(format!("not used on this host, which has no {missing}")),
                (None, Err(e)) => problems.push(e.message),
                (None, Ok(needs)) => {
                    let found = needs.modules.into_iter().flat_map(|parts| parts.found.libraries);
                    libraries = found.map(|library| library.path).collect();
                }
            }
            let is_known = |name: &&String| catalog.modules.iter().any(|known| known.name == **name);
            let unknown = file.conflicts.iter().filter(|name| !is_known(name));
            notes.extend(unknown.map(|name| format!("conflicts: no module here is called {name}")));
        }
    }
    CheckedModule { file: module.path.clone(), ok: problems.is_empty(), problems, libraries, notes }
}
