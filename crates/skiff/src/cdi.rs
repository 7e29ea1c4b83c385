//! `skiff cdi`: the devices that vendors describe on this host, and whether their descriptions hold.

use std::collections::BTreeSet;
use std::fs::metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use skiff_cdi::{Catalog, CdiFile, Edits, FoundDevice, Needs, Problem};
use skiff_cli::CdiCommand;
use skiff_output::{self as output, ListFormat};
use skiff_plan::devices;
use skiff_spec::fault::{Fault, Result};
use skiff_user::context::UserContext;

use crate::checked_files;

/// Does what was asked; the exit code.
pub fn run(command: &CdiCommand) -> Result<i32> {
    let dirs = devices::dirs(&UserContext::load()?.config);
    match command {
        CdiCommand::List(format) => list(&dirs, &format.format()).map(|()| 0),
        CdiCommand::Check { described, output } => check(&dirs, described, output.json),
    }
}

#[derive(Serialize)]
struct ListedDevice {
    name: String,
    file: PathBuf,
    nodes: Vec<String>,
}

fn list(dirs: &[PathBuf], format: &ListFormat<'_>) -> Result<()> {
    let catalog = Catalog::read(dirs);
    let kinds = catalog.kinds();
    let found = kinds.iter().flat_map(|kind| catalog.devices(kind));
    let listed: Vec<ListedDevice> = found.map(|found| listed(&found)).collect();
    output::list(
        format,
        &listed,
        |device| device.name.clone(),
        || {
            let row = |device: &ListedDevice| {
                vec![device.name.clone(), device.file.display().to_string(), device.nodes.join(" ")]
            };
            output::table(&["DEVICE", "FILE", "NODES"], &listed.iter().map(row).collect::<Vec<_>>())
        },
    )?;
    let broken = catalog.files.iter().filter(|file| !file.problems.is_empty()).count();
    match (broken, listed.is_empty()) {
        (0, true) => {
            let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            let none = Fault::new(format!("no device is described in {}", dirs.join(" or ")));
            output::complain(&none.hint("administrator: the vendor's tool writes a file, as `nvidia-ctk cdi generate` does; `skiff cdi check` says whether it is sound"));
        }
        (0, false) => {}
        (broken, _) => {
            let files = output::count(broken as u64, "file is", "files are");
            output::note(&format!("{files} not used: skiff cdi check"));
        }
    }
    Ok(())
}

fn listed(found: &FoundDevice<'_>) -> ListedDevice {
    let FoundDevice { file, device } = found;
    ListedDevice {
        name: format!("{}={}", file.description.kind, device.name),
        file: file.path.clone(),
        nodes: device.edits.nodes.iter().map(|node| node.inside.clone()).collect(),
    }
}

/// How a file is found.
#[derive(Serialize)]
struct CheckedFile {
    file: PathBuf,
    ok: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Problem>,
    /// What is left out of it without harm.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

fn check(dirs: &[PathBuf], files: &[PathBuf], json: bool) -> Result<i32> {
    let catalog = match files {
        [] => Catalog::read(dirs),
        files => Catalog { files: files.iter().map(|file| CdiFile::read(file, 0)).collect() },
    };
    let checked: Vec<CheckedFile> = catalog.files.iter().map(|file| checked(file, &catalog)).collect();
    if json {
        output::json(&checked)?;
    } else {
        checked.iter().try_for_each(show)?;
        if checked.is_empty() {
            output::note("no file describes devices on this host");
        }
    }
    Ok(i32::from(!checked.iter().all(|file| file.ok)))
}

fn show(checked: &CheckedFile) -> Result<()> {
    let lines = |problem: &Problem| {
        let hint = Some(format!("hint: {}", problem.hint)).filter(|_| !problem.hint.is_empty());
        [Some(problem.text()), hint]
    };
    checked_files::show(
        (checked.ok, &checked.file),
        checked.problems.iter().flat_map(lines).flatten(),
        &checked.notes,
    )
}

fn checked(file: &CdiFile, catalog: &Catalog) -> CheckedFile {
    let mut problems = file.problems.clone();
    let mut notes = vec![];
    let of_file = |fault: Fault| Problem::of_file(fault.message, fault.hint);
    for device in &file.description.devices {
        // What is needed for each, as if it were asked for.
        match Needs::of(&[FoundDevice { file, device }]) {
            Ok(needs) => notes.extend(needs.left_out),
            Err(e) => problems.push(of_file(Fault::new(e.message).hint(e.hint))),
        }
    }
    let devices = file.description.devices.iter();
    let edits = devices.map(|device| &device.edits).chain([&file.description.edits]);
    let missing: BTreeSet<String> = edits.flat_map(missing).collect();
    let hint = "administrator: have the vendor's tool write the file anew, as after an update of the driver";
    problems.extend(missing.into_iter().map(|missing| Problem::of_file(missing, hint)));
    let rivals =
        catalog.conflicts().into_iter().filter(|(_, one, other)| [*one, *other].contains(&&*file.path));
    problems.extend(rivals.map(|(name, one, other)| {
        let other = if one == file.path { other } else { one };
        Problem::of_file(format!("{name}: {} describes it, too", other.display()), "remove one of the files")
    }));
    notes.sort();
    notes.dedup();
    problems.dedup();
    CheckedFile { file: file.path.clone(), ok: problems.is_empty(), problems, notes }
}

/// What these edits name and is not on this host.
fn missing(edits: &Edits) -> Vec<String> {
    let mounts = edits.mounts.iter().filter(|mount| !Path::new(&mount.host).exists());
    let mounts = mounts.map(|mount| format!("{}: not on this host", mount.host));
    let is_device = |path: &str| {
        metadata(path)
            .is_ok_and(|found| found.file_type().is_char_device() || found.file_type().is_block_device())
    };
    let nodes = edits.nodes.iter().filter(|node| !is_device(&node.host));
    mounts.chain(nodes.map(|node| format!("{}: no such device on this host", node.host))).collect()
}
