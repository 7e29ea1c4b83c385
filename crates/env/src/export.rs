//! An environment's changes as one file, for another site.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use skiff_image::source::temporary;
use skiff_output as output;
use skiff_plan::get;
use skiff_runtime::environments::{Environment, EnvironmentBase};
use skiff_runtime::package_database;
use skiff_snapshot::{BundleInfo, bundle};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::revision::EnvRevision;
use skiff_sys::error::show;
use skiff_user::context::UserContext;
use skiff_user::new_file::NewFile;

use crate::base_fingerprint;
use crate::base_view::{open_dir, own_view, view_of_base};
use crate::calling;
use crate::elapsed::as_root_of_ids_shown;
use crate::snapshot_copy::with_state_of;
use crate::snapshot_fault::ours;

/// The name of the list of the host's packages; those of `package_database` have others.
pub(crate) const HOST_PACKAGES: &str = "host-packages";

#[derive(Serialize, Deserialize)]
struct Exported {
    entries: u64,
    bytes: u64,
    skipped: Vec<String>,
}

/// What the host's root is that an environment stands on, and texts by which its changes are understood elsewhere.
pub(crate) fn about_host(
    context: &UserContext,
    env: &Environment,
) -> Result<(BTreeMap<String, String>, BTreeMap<String, String>)> {
    let mut texts = package_database::ancestor_texts(&env.dir);
    let here = base_fingerprint::here(&base_fingerprint::kept_in_home(context))?;
    texts.insert(HOST_PACKAGES.into(), here.list());
    Ok((here.described(), texts))
}

/// Standard output, or input, in the place of a file.
pub(crate) const DASH: &str = "-";

/// Writes an environment's changes to a file that is not there yet, or to standard output: those that it has, or had in a snapshot.
pub fn export(context: &UserContext, of: &EnvRevision, file: &Path, json: bool) -> Result<()> {
    if file.as_os_str() == DASH {
        return to_output(context, of, json);
    }
    let new = NewFile::create(file)?;
    let name = new.path().display().to_string();
    let exported = with_state_of(context, of, |env| write(context, env, (new.as_fd(), &name)))?;
    new.publish()?;
    note_needed_image(context, of);
    if json {
        return output::json(&exported);
    }
    tell(&exported);
    Ok(())
}

/// To standard output. The end of the file is written by its place, so it goes into a file first.
fn to_output(context: &UserContext, of: &EnvRevision, json: bool) -> Result<()> {
    if json {
        return Err(Error::new("env export: --json and the file would both go to standard output")
            .hint("name a file in the place of -"));
    }
    let mut terminal = std::io::stdout().lock();
    if terminal.is_terminal() {
        return Err(Error::new("env export: standard output is a terminal, and the file is not text")
            .hint("`skiff env export NAME FILE`, or `skiff env export NAME - >FILE`"));
    }
    let (mut file, ..) = temporary().map_err(skiff_store::ours)?;
    let exported = with_state_of(context, of, |env| write(context, env, (file.as_fd(), "standard output")))?;
    file.rewind().context(|| "temporary file")?;
    match std::io::copy(&mut file, &mut terminal).and_then(|_| terminal.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => {
            return Err(Error::new("standard output: its reader has ended before the file was whole"));
        }
        done => done.context(|| "standard output")?,
    }
    tell(&exported);
    note_needed_image(context, of);
    Ok(())
}

/// Says so where the file is of no use without an image that no registry has.
fn note_needed_image(context: &UserContext, of: &EnvRevision) {
    let base = calling::named_or_own(of.name.as_ref())
        .and_then(|name| Environment::existing(context, name))
        .and_then(|env| Ok((env.base()?, env.name)));
    let Ok((EnvironmentBase::Image(image), name)) = base else { return };
    if get::is_local(&image.reference) {
        output::note(&format!(
            "environment {name}: the file can be imported only where image {} is, which no registry has; `skiff commit --full {of} IMAGE` makes an image of all of it",
            image.reference
        ));
    }
}

fn tell(exported: &Exported) {
    for path in &exported.skipped {
        output::note(&format!("left out: /{path} (a socket or device)"));
    }
    let entries = output::count(exported.entries, "entry", "entries");
    output::note(&format!("{entries}, {}", output::size(exported.bytes)));
}

fn write(context: &UserContext, env: &Environment, (file, name): (BorrowedFd<'_>, &str)) -> Result<Exported> {
    let below = env.base()?;
    let (base, texts) = match below.image() {
        Some(entry) => {
            let base = base_fingerprint::of_image(entry.id, &entry.reference);
            (base, package_database::ancestor_texts(&env.dir))
        }
        None => about_host(context, env)?,
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let info = BundleInfo { environment: env.name.to_string(), base, created, texts };
    let own = own_view(context, below.for_plan())?;
    let upper = env.dir.join("upper");
    let what = format!("exporting environment {}", env.name);
    as_root_of_ids_shown(context, below.for_plan(), what, |view| {
        let (upper, base) = (open_dir(&upper)?, view_of_base(view, &own)?);
        let done = bundle(upper.as_fd(), base.as_fd(), (file, name), &info).map_err(ours)?;
        let skipped = done.skipped.iter().map(|path| show(path)).collect();
        Ok(Exported { entries: done.entries, bytes: done.bytes, skipped })
    })
}
