//! Files with a file system in them that are mounted as data: `FILE:TARGET:sqsh`. The store's writer reads such a file as it reads those with
//! images, and what it makes of it is mounted read-only: the kernel never sees the file itself.

use std::path::Path;

use skiff_spec::fault::{Fault, Result};
use skiff_spec::image::ImageId;
use skiff_spec::plan::{Mount, Plan, Route, Source};
use skiff_store::file::ImageFile;
use skiff_store::index::Names;
use skiff_store::unpacked;
use skiff_user::context::UserContext;

pub use crate::data_words::{DataWord, word};
use crate::data_words::{data_word, is_data, is_one};
use crate::import;
use crate::mount_words::pieces;

/// The files of words for mounts, and the words without them.
///
/// # Errors
/// A path is not absolute, or the target is not one.
pub fn split(words: &[String]) -> Result<(Vec<DataWord>, Vec<String>)> {
    let (mut data, mut others) = (vec![], vec![]);
    for text in words {
        let all = pieces(text);
        let (of_data, rest): (Vec<&str>, Vec<&str>) = all.into_iter().partition(|piece| is_one(piece));
        for piece in &of_data {
            data.extend(checked(piece)?);
        }
        match (of_data.is_empty(), rest.is_empty()) {
            (true, _) => others.push(text.clone()),
            (false, true) => {}
            (false, false) => others.push(rest.join(",")),
        }
    }
    Ok((data, others))
}

/// By the rules for all mounts.
fn checked(piece: &str) -> Result<Option<DataWord>> {
    let Some(found) = data_word(piece) else { return Ok(None) };
    let options = piece.splitn(3, ':').nth(2).unwrap_or_default();
    let others: Vec<_> = options.split([',', '+']).filter(|option| !is_data(option)).collect();
    crate::parse_mount(&format!("{}:{}:{}", found.file, found.target, others.join(",")))?;
    Ok(Some(found))
}

/// What is done with files that the store has not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadData {
    /// Import such files.
    Import,
    /// Refuse them: nothing is to be changed.
    Refuse,
    /// Show only where they would be.
    Place,
}

impl UnreadData {
    /// For what may be shown only.
    #[must_use]
    pub fn of(dry_run: bool) -> Self {
        if dry_run { Self::Refuse } else { Self::Import }
    }
}

/// The mounts of the files among these words.
///
/// # Errors
/// One is not there, or holds no file system, or is to be refused.
pub fn mounts(context: &UserContext, words: &[String], unread: UnreadData) -> Result<Vec<Mount>> {
    let (data, _) = split(words)?;
    let mount_of = |DataWord { file, target }: &DataWord| {
        let about = |e: Fault| e.about(&format!("mount of {file}"));
        let image = ImageFile::meant(file).map_err(|e| about(e.into()))?;
        let found = match unread {
            UnreadData::Import => Some(import::imported(context, &image).map_err(about)?),
            UnreadData::Refuse | UnreadData::Place => import::known(context, &image).map_err(about)?,
        };
        match (found, unread) {
            (Some(entry), _) => mount(context, entry.id, target),
            (None, UnreadData::Place) => crate::parse_mount(&format!("{file}:{target}:ro")),
            (None, _) => Err(about(Fault::new("the store has not read it yet"))
                .hint(format!("`skiff import {file}` does that, as does whatever is not a dry run"))),
        }
    };
    data.iter().map(mount_of).collect()
}

/// The mount of a file by what the store has made of it.
///
/// # Errors
/// Without the helper: it cannot be unpacked.
pub fn mount(context: &UserContext, id: ImageId, target: &str) -> Result<Mount> {
    let source = match context.route() {
        Route::Helper => Source::Image(id),
        Route::Rootless => Source::Bind(unpacked::tree(context, id, |_| ())?),
    };
    let target = Path::new(target).into();
    Ok(Mount { source, target, read_only: true, optional: false, propagation: None })
}

/// The mounts of a plan that may be anybody's: of what the user has imported, and where mounts may be.
///
/// # Errors
/// One is of something else.
pub fn of_plan(context: &UserContext, plan: &Plan) -> Result<Vec<Mount>> {
    let mut found = vec![];
    for mount in &plan.mounts {
        let Source::Image(id) = mount.source else { continue };
        let target = mount.target.display();
        if !Names::of(context)?.all()?.iter().any(|entry| entry.id == id) {
            return Err(Fault::new(format!("plan: mount {target}: you have not imported image {id}"))
                .hint("make the plan anew, with the file at hand"));
        }
        crate::parse_mount(&format!("/data:{target}:ro"))?;
        found.push(self::mount(context, id, &target.to_string())?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_data_are_told_from_other_mounts() {
        let words = ["/a.sqsh:/data:sqsh", "/b:/b:ro", "/c:/c,/d.sqsh:/d:ro,sqsh,/e:/e", "tmpfs:/x:size=1m"];
        let (data, others) = split(&words.map(String::from)).expect("sound");
        let data: Vec<_> = data.iter().map(|word| format!("{}={}", word.target, word.file)).collect();
        assert_eq!(data, ["/data=/a.sqsh", "/d=/d.sqsh"]);
        assert_eq!(others, ["/b:/b:ro", "/c:/c,/e:/e", "tmpfs:/x:size=1m"]);
        for bad in
            ["a.sqsh:/data:sqsh", "/a.sqsh:data:sqsh", "/a.sqsh:/run/skiff:sqsh", "/a.sqsh:/data:sqsh,odd"]
        {
            assert!(split(&[bad.into()]).is_err(), "{bad}");
        }
    }
}
