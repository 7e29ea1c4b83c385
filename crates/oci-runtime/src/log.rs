//! The log that a container engine reads: warnings and the error of a call, a line each.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use serde_json::json;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;

/// Where warnings and errors go besides standard error. Every process of a call writes whole lines to it.
pub struct Log {
    file: Option<File>,
    is_json: bool,
    verbose: bool,
}

impl Log {
    /// Opens the file, if one is named; it is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: Option<&Path>, is_json: bool, verbose: bool) -> Result<Self> {
        let open = |path: &Path| -> Result<File> {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
            let file = open(path, flags, Mode::from_raw_mode(0o644));
            Ok(File::from(file.context(|| format!("log {}", path.display()))?))
        };
        Ok(Self { file: path.map(open).transpose()?, is_json, verbose })
    }

    /// As [`Log::open`], for root, who has become the container's user: as that user, no link, and nothing that could be waited for. What is in
    /// the way of the log must not keep root from ending the container.
    pub fn open_for_owner(path: Option<&Path>, is_json: bool, verbose: bool) -> Self {
        let file = path.and_then(|path| {
            let opened = open_regular(path).inspect_err(|e| {
                skiff_output::note(&format!("log {}: {e}: errors are told here only", path.display()));
            });
            opened.ok()
        });
        Self { file, is_json, verbose }
    }

    /// Something that the configuration asks for, and that the container does without.
    pub fn warn(&self, text: &str) {
        self.write("warning", text);
        if self.file.is_none() && self.verbose {
            skiff_output::note(text);
        }
    }

    /// Why the call fails.
    pub fn error(&self, fault: &Fault) {
        let hint = if fault.hint.is_empty() { String::new() } else { format!(" (hint: {})", fault.hint) };
        self.write("error", &format!("{fault}{hint}"));
    }

    fn write(&self, level: &str, text: &str) {
        let Some(mut file) = self.file.as_ref() else { return };
        let time = skiff_output::rfc3339(now());
        let line = match self.is_json {
            true => format!("{}\n", json!({"level": level, "msg": text, "time": time})),
            false => format!("time={} level={level} msg={}\n", json!(time), json!(text)),
        };
        file.write_all(line.as_bytes())
            .ignore_error("standard error has it, too, or the container runs without");
    }
}

fn open_regular(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(open(path, flags, Mode::from_raw_mode(0o644))?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("not a regular file")),
    }
}
