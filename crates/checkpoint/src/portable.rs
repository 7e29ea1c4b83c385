//! A checkpoint as one compressed file, for another site.
//!
//! ```text
//! skiff-checkpoint-file 1 NAME\n      NAME: what it was called
//! a frame of zstd:
//!     8 bytes, little-endian          length of the record
//!     the record
//!     each file that it names         in its order, as long as it says
//! ```
//!
//! Whoever imports one checks each file by its digest, and all of it is there only once all of it is right.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, statvfs, syncfs};
use skiff_cli::Retention;
use skiff_output as output;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::name::EnvName;
use skiff_user::checkpoints::{all, home};
use skiff_user::context::UserContext;
use skiff_user::new_file::NewFile;

use crate::place::{self, NewCheckpoint};
use crate::record::{self, Checkpoint, FileDigest, LONGEST};
use crate::stored;

/// What such a file begins with.
const HEAD: &str = "skiff-checkpoint-file 1 ";
/// No first line is longer.
const LONGEST_HEAD: u64 = 512;
/// As fast as disks; higher levels make memory hardly smaller.
const LEVEL: i32 = 1;
/// One in so many parts of a file system stays free.
const KEPT_FREE: u64 = 50;

/// Standard output, or input, in the place of a file.
const DASH: &str = "-";
const ALTERED: &str =
    "it was cut or altered on its way: export it again, and see what the commands say that it came through";

/// Writes a checkpoint to a file that is not there yet, or to standard output.
///
/// # Errors
/// The checkpoint is damaged, or the file cannot be written.
pub fn export(context: &UserContext, name: &CheckpointName, path: &Path) -> Result<()> {
    if place::is_of_job(context, name)? {
        return Err(Fault::new(format!("checkpoint {name}: it is a whole job's, which cannot be exported"))
            .hint(format!("`skiff job restore {name}` restores it wherever its directory is seen")));
    }
    let (held, checkpoint) = place::existing(context, name)?;
    if path.as_os_str() == DASH {
        let mut terminal = std::io::stdout().lock();
        if terminal.is_terminal() {
            return Err(Fault::new(
                "checkpoint export: standard output is a terminal, and the file is not text",
            )
            .hint(format!(
                "`skiff checkpoint export {name} FILE`, or `skiff checkpoint export {name} - >FILE`"
            )));
        }
        return write(name, (&held.path(), &checkpoint), &mut terminal)
            .and_then(|()| terminal.flush().context(|| "standard output"))
            .map_err(|e| e.about("checkpoint export"));
    }
    let about = || path.display().to_string();
    let new = NewFile::create(path)?;
    let mut file = File::from(new.as_fd().try_clone_to_owned().context(about)?);
    write(name, (&held.path(), &checkpoint), &mut file)?;
    file.sync_all().context(about)?;
    let length = file.metadata().context(about)?.len();
    new.publish()?;
    output::note(&format!("{}, {} as a file", output::size(checkpoint.size()), output::size(length)));
    Ok(())
}

/// Writes all of a checkpoint, which is in `dir`.
fn write(
    name: &CheckpointName,
    (dir, checkpoint): (&Path, &Checkpoint),
    file: &mut impl Write,
) -> Result<()> {
    let about = || format!("write checkpoint {name}");
    file.write_all(format!("{HEAD}{}\n", name.name).as_bytes()).context(about)?;
    let mut packed = zstd::Encoder::new(file, LEVEL).context(about)?;
    let whole = whole(dir, checkpoint)?;
    let bytes = whole.bytes()?;
    packed.write_all(&(bytes.len() as u64).to_le_bytes()).context(about)?;
    packed.write_all(&bytes).context(about)?;
    // What is in the store comes last, in its order there.
    let in_store = |file: &&FileDigest| checkpoint.stored.iter().any(|stored| stored.path == file.path);
    for wanted in whole.files.iter().filter(|file| !in_store(file)) {
        let mut from = record::open(dir, &wanted.path)?;
        if FileDigest::of_copy(&wanted.path, &mut from, &mut packed).context(about)? != *wanted {
            return Err(Fault::new(format!("checkpoint {name}: {} is damaged", wanted.path)));
        }
    }
    stored::each(dir, checkpoint, |_, bytes| bytes.write_to(&mut packed))?;
    packed.finish().map(drop).context(about)
}

/// The record of the same checkpoint if all its files were in its directory, as they are in the file: no store goes along.
fn whole(dir: &Path, checkpoint: &Checkpoint) -> Result<Checkpoint> {
    let mut whole = Checkpoint { stored: vec![], ..checkpoint.clone() };
    whole.files.retain(|file| file.path != record::CHUNKS);
    stored::each(dir, checkpoint, |file, bytes| {
        let mut hasher = blake3::Hasher::new();
        bytes.write_to(&mut hasher)?;
        let (path, digest) = (file.path.clone(), hasher.finalize().to_hex().to_string());
        whole.files.push(FileDigest { path, size: file.size, digest });
        Ok(())
    })?;
    Ok(whole)
}

/// Makes a checkpoint of such a file, or of standard input, and gives its name.
///
/// # Errors
/// A checkpoint of this name is there, or the file is damaged.
pub fn import(context: &UserContext, path: &Path, name: Option<&EnvName>) -> Result<EnvName> {
    let is_input = path.as_os_str() == DASH;
    let about = || if is_input { "standard input".into() } else { path.display().to_string() };
    if is_input && std::io::stdin().is_terminal() {
        return Err(Fault::new("checkpoint import: standard input is a terminal")
            .hint("`skiff checkpoint import FILE`, or `skiff checkpoint import - <FILE`"));
    }
    let source: Box<dyn Read> = match is_input {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).context(about)?),
    };
    let mut file = BufReader::new(source);
    let told = told_name(&mut file).context(about)?;
    let named = || Fault::new(format!("{}: not a checkpoint that `skiff checkpoint export` wrote", about()));
    let told: EnvName = told.and_then(|name| name.parse().ok()).ok_or_else(named)?;
    let name = name.unwrap_or(&told);
    let slot = CheckpointName::newest(name);
    if all(context)?.contains(&slot) {
        return Err(Fault::new(format!("checkpoint {name} already exists"))
            .hint("give another name: `skiff checkpoint import FILE NAME`"));
    }
    let new = NewCheckpoint::make(&home(context)?, name)?;
    new.check()?;
    let mut unpacked = Source { from: zstd::Decoder::with_buffer(file).context(about)?, failed: false };
    if let Err(e) = unpack(&mut unpacked, &new.dir) {
        let e = e.about(&about());
        return Err(if unpacked.failed { e.hint(ALTERED) } else { e });
    }
    new.publish(Retention::default())?;
    Ok(name.clone())
}

/// What is read, and whether that failed: a disk that is full fails in the same step.
struct Source<R> {
    from: R,
    failed: bool,
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.from.read(out).inspect_err(|e| self.failed |= e.kind() != ErrorKind::Interrupted)
    }
}

/// The name in the first line, if it is one of such a file.
fn told_name(file: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = vec![];
    file.take(LONGEST_HEAD).read_until(b'\n', &mut line)?;
    let name = line.strip_prefix(HEAD.as_bytes()).and_then(|rest| rest.strip_suffix(b"\n"));
    Ok(name.and_then(|name| String::from_utf8(name.to_vec()).ok()))
}

/// Writes what comes out of such a file into the directory of a new checkpoint, the record last.
fn unpack(from: &mut impl Read, dir: &Path) -> Result<()> {
    let cut = || "its content";
    let mut length = [0; 8];
    from.read_exact(&mut length).context(cut)?;
    let length = Some(u64::from_le_bytes(length)).filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| Fault::new("its record is too long"))?;
    let mut bytes = vec![];
    from.take(length).read_to_end(&mut bytes).context(cut)?;
    let checkpoint = Checkpoint::parse(&bytes).map_err(Fault::new)?;
    if !checkpoint.stored.is_empty() {
        return Err(Fault::new("its memory is in the store of whoever exported it"));
    }
    refuse_without_room(dir, &checkpoint.files)?;
    for wanted in &checkpoint.files {
        let mut file = create(dir, &wanted.path)?;
        let found = FileDigest::of_copy(&wanted.path, &mut from.take(wanted.size), &mut file);
        let found = found.context(|| wanted.path.clone())?;
        if found != *wanted {
            return Err(Fault::new(format!("{} is damaged", wanted.path)).hint(ALTERED));
        }
    }
    if from.read(&mut [0]).context(cut)? != 0 {
        return Err(Fault::new("trailing data after the last file").hint(ALTERED));
    }
    let record = dir.join(record::FILE);
    let about = || record.display().to_string();
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&record).context(about)?;
    file.write_all(&bytes).context(about)?;
    // All at once: to wait for the disk with each of many small files takes most of the time.
    syncfs(&file).context(|| dir.display().to_string())
}

/// Refuses files that do not fit beside what is there; some room stays free. They may be long and come out of a short file.
fn refuse_without_room(dir: &Path, files: &[FileDigest]) -> Result<()> {
    let about = || dir.display().to_string();
    let disk = statvfs(dir).context(about)?;
    let block = disk.f_frsize.max(1);
    let on_disk = |file: &FileDigest| file.size.div_ceil(block).saturating_add(1);
    let blocks = files.iter().fold(0_u64, |all, file| all.saturating_add(on_disk(file)));
    let free = disk.f_bavail.saturating_sub(disk.f_blocks / KEPT_FREE);
    // A file system without a size or without numbered inodes says 0.
    let has_room = disk.f_blocks == 0 || blocks <= free;
    let has_inodes = disk.f_files == 0 || files.len() as u64 <= disk.f_favail;
    if has_room && has_inodes {
        return Ok(());
    }
    let bytes = |blocks: u64| output::size(blocks.saturating_mul(block));
    let what = match has_room {
        true => format!("{} files, and {} inodes are free", files.len(), disk.f_favail),
        false => format!("{}, and {} may be used", bytes(blocks), bytes(free)),
    };
    Err(Fault::new(format!("its content needs {what} in {}", about()))
        .hint("remove what is not needed there, as with `skiff checkpoint delete`"))
}

/// Creates a file of a checkpoint; it leads nowhere else.
fn create(dir: &Path, path: &str) -> Result<File> {
    let about = || dir.join(path).display().to_string();
    let top = File::open(dir).context(|| dir.display().to_string())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(&top, path, flags, Mode::RUSR | Mode::WUSR, resolve).map(File::from).context(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_fit_is_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |size| FileDigest { path: "images/pages-1.img".into(), size, digest: String::new() };
        refuse_without_room(dir.path(), &[file(1)]).expect("room for one byte");
        for files in [vec![file(1 << 60)], vec![file(u64::MAX), file(u64::MAX)]] {
            let why = refuse_without_room(dir.path(), &files).expect_err("no disk is so large").to_string();
            assert!(why.contains("may be used"), "{why}");
        }
    }
}
