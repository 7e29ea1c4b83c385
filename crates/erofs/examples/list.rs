//! Verifies an image and lists its files: `cargo run -p skiff-erofs --example list FILE`.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write, stdout};

use skiff_erofs::{InodeKind, Reader, verify};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: list FILE")?;
    let reader = Reader::open(File::open(&path)?, path.to_string_lossy())?;
    let verified = verify(&reader)?;
    let mut out = BufWriter::new(stdout().lock());
    for file in reader.files() {
        let file = file?;
        let target = match file.inode.kind {
            InodeKind::Symlink => format!(" -> {}", reader.target(&file.inode)?.escape_ascii()),
            _ => String::new(),
        };
        let inode = &file.inode;
        let name = file.path.escape_ascii();
        writeln!(out, "{:04o} {}:{} {:>12} /{name}{target}", inode.mode, inode.uid, inode.gid, inode.size)?;
    }
    writeln!(out, "{} files under {} names", verified.inodes, verified.names)?;
    out.flush()?;
    Ok(())
}
