//! Another file system's files into an image of ours: the kernel never mounts what anyone else may have written.

pub(crate) mod erofs;

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use skiff_erofs::finish;
use skiff_erofs::tree::{
    Attributes, BLOCK, BlockRun, Content, FileKind, Inode, InodeId, Sparse, Tree, Xattrs, XattrsId,
};
use skiff_sys::positional::write_all_at;

use crate::assemble::{ImageLimits, WrittenImage};
use crate::layer::is_kept;
use crate::spill::Spill;
use crate::sum::{DataSum, of_copies};
use crate::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// Blocks are written in pieces of this size.
const GATHER: usize = 1 << 20;

/// A file system that is read.
pub(crate) trait Foreign {
    /// What it needs to read a file.
    type File;

    /// Whether there may be somebody who changes it meanwhile: then what is gone when its turn comes is left out.
    fn may_change(&self) -> bool {
        false
    }
    /// Root directory of the file system.
    fn root(&self) -> Result<ForeignFile<Self::File>>;
    /// What is in a directory, without `.` and `..`.
    fn children(&self, directory: &Self::File) -> Result<Children<Self::File>>;
    /// A file's content from its start to its end.
    fn pieces(&self, file: &Self::File, each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>) -> Result<()>;
    /// How many of its bytes have been read for that, where so many were unpacked.
    fn bytes_read(&self, unpacked: u64) -> u64 {
        unpacked
    }
}

/// Names in a directory, and what they name.
pub(crate) type Children<F> = Vec<(Box<[u8]>, ForeignFile<F>)>;

/// A file of it.
pub(crate) struct ForeignFile<F> {
    pub file: F,
    /// The same for all names of one file.
    pub number: u64,
    /// How many names it says it has.
    pub links: u32,
    pub attributes: Attributes,
    pub xattrs: Xattrs,
    pub kind: ForeignFileType,
}

/// What it is.
pub(crate) enum ForeignFileType {
    Directory,
    File,
    Symlink(Box<[u8]>),
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
    Socket,
}

/// Some of a file's bytes, which follow those before.
pub(crate) enum FilePiece<'a> {
    Data(&'a [u8]),
    /// So many zeros.
    Hole(u64),
}

/// Where to, and how much at most.
pub struct ConversionJob<'a> {
    /// An empty file, open for reading and writing.
    pub image: BorrowedFd<'a>,
    /// Name of the image, for messages.
    pub name: &'a str,
    /// The name of what is read.
    pub source: &'a str,
    /// A directory for a temporary file, which has no name there.
    pub scratch: BorrowedFd<'a>,
    /// Name of that directory, for messages.
    pub scratch_name: &'a str,
    /// What is too much.
    pub limits: ImageLimits,
    /// Told of each piece how many bytes of the source have been read; gives whether to go on.
    pub watch: &'a mut dyn FnMut(u64) -> bool,
    /// Asked before the metadata is written, which takes so many bytes more: gives whether to go on.
    pub room: &'a dyn Fn(u64) -> bool,
}

/// Makes the image. Nothing is synced.
///
/// # Errors
/// The file system cannot be read, holds what ours cannot, or too much. The file is of no use then.
pub(crate) fn convert<F: Foreign>(foreign: &F, job: ConversionJob<'_>) -> Result<WrittenImage> {
    let ConversionJob { image, name, room, .. } = job;
    let gathered = Vec::with_capacity(GATHER);
    let spill = Spill::new(job.scratch, job.scratch_name)?;
    let mut converter =
        Converter { job, spill, next_block: 1, gathered, sum: DataSum::default(), placed: 0, texts: 0 };
    let mut tree = converter.tree(foreign)?;
    tree.remove_devices();
    converter.flush()?;
    converter.spill.flush()?;
    let Converter { spill, next_block, sum, .. } = converter;
    let mut tails = |_: u32, at: u64, buffer: &mut [u8]| spill.read_at(buffer, at);
    let mut room = |bytes| if room(bytes) { Ok(()) } else { Err(Error::Cancelled) };
    let summary = finish(&tree, &mut tails, &mut room, image, name, next_block)?;
    let copies = of_copies(image, name, next_block, &summary)?;
    Ok(WrittenImage { summary, data_sum: sum.total().wrapping_add(copies) })
}

struct Converter<'a> {
    job: ConversionJob<'a>,
    spill: Spill,
    /// Where the next block goes, those gathered counted.
    next_block: u32,
    gathered: Vec<u8>,
    sum: DataSum,
    /// Bytes of files so far, holes not counted.
    placed: u64,
    /// Bytes of names, targets and attributes so far.
    texts: u64,
}

impl Converter<'_> {
    fn tree<F: Foreign>(&mut self, foreign: &F) -> Result<Tree> {
        let root = foreign.root()?;
        let mut tree = Tree::new(root.attributes);
        tree.inode_mut(Tree::ROOT).attributes.xattrs = intern(&mut tree, root.xattrs);
        let mut known = HashMap::from([(root.number, Tree::ROOT)]);
        let mut stack = vec![(root.file, Tree::ROOT)];
        while let Some((directory, parent)) = stack.pop() {
            let first = stack.len();
            for (name, found) in foreign.children(&directory)? {
                let is_directory = |id: &InodeId| matches!(tree.inode(*id).kind, FileKind::Directory(_));
                let id = match known.get(&found.number) {
                    // It was moved, and has been met where it was.
                    Some(id) if foreign.may_change() && is_directory(id) => continue,
                    // A tree in itself would have no end.
                    Some(id) if matches!(found.kind, ForeignFileType::Directory) || is_directory(id) => {
                        let name = name.escape_ascii();
                        return Err(self.bad(format!("the directory {name} has two names in it")));
                    }
                    Some(id) => *id,
                    None => match self.add(foreign, &mut tree, &mut known, found, &mut stack) {
                        Err(Error::Io(SystemError { source: Errno::NOENT, .. })) if foreign.may_change() => {
                            continue;
                        }
                        added => added?,
                    },
                };
                self.name(&mut tree, parent, name, id)?;
            }
            // The first one's turn comes first, so that what is read together lies together.
            stack[first..].reverse();
        }
        Ok(tree)
    }

    fn add<F: Foreign>(
        &mut self,
        foreign: &F,
        tree: &mut Tree,
        known: &mut HashMap<u64, InodeId>,
        found: ForeignFile<F::File>,
        stack: &mut Vec<(F::File, InodeId)>,
    ) -> Result<InodeId> {
        let ForeignFile { file, number, links, attributes, xattrs, kind } = found;
        if tree.len() as u64 >= self.job.limits.entries {
            return Err(self.too_large(format!("has more than {} files, the limit", self.job.limits.entries)));
        }
        let target = if let ForeignFileType::Symlink(target) = &kind { target.len() } else { 0 };
        self.count_texts(
            target + xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>(),
        )?;
        let is_directory = matches!(kind, ForeignFileType::Directory);
        let kind = match kind {
            ForeignFileType::Directory => FileKind::Directory(Default::default()),
            ForeignFileType::File => FileKind::File(self.content(foreign, &file)?),
            ForeignFileType::Symlink(target) => FileKind::Symlink(target),
            ForeignFileType::CharDevice(major, minor) => FileKind::CharDevice(major, minor),
            ForeignFileType::BlockDevice(major, minor) => FileKind::BlockDevice(major, minor),
            ForeignFileType::Fifo => FileKind::Fifo,
            ForeignFileType::Socket => FileKind::Socket,
        };
        // Linux has no permissions of symbolic links; some programs write some.
        let mode = if matches!(kind, FileKind::Symlink(_)) { 0o777 } else { attributes.mode };
        let attributes = Attributes { mode, xattrs: intern(tree, xattrs), ..attributes };
        let id = tree.add(Inode { attributes, kind, layer: 0, names: 0 });
        // Only of what may be met again a note is kept; of a directory, to notice that it is.
        if is_directory || links > 1 {
            known.insert(number, id);
        }
        if is_directory {
            stack.push((file, id));
        }
        Ok(id)
    }

    /// Refuses what is too much.
    fn count_texts(&mut self, bytes: usize) -> Result<()> {
        self.texts += bytes as u64;
        let most = self.job.limits.texts;
        if self.texts > most {
            return Err(self
                .too_large(format!("has more than {most} bytes of names, links and attributes, the limit")));
        }
        Ok(())
    }

    fn name(&mut self, tree: &mut Tree, parent: InodeId, name: Box<[u8]>, id: InodeId) -> Result<()> {
        self.count_texts(name.len())?;
        tree.inode_mut(id).names += 1;
        let shown = name.escape_ascii().to_string();
        let FileKind::Directory(children) = &mut tree.inode_mut(parent).kind else {
            unreachable!("only directories are asked for what is in them");
        };
        if children.insert(name, id).is_some() {
            return Err(self.bad(format!("the name {shown} stands twice in a directory of it")));
        }
        Ok(())
    }

    fn content<F: Foreign>(&mut self, foreign: &F, file: &F::File) -> Result<Content> {
        let mut placing = Placing::default();
        foreign.pieces(file, &mut |piece| match piece {
            FilePiece::Data(bytes) => {
                self.data(&mut placing, bytes)?;
                if (self.job.watch)(foreign.bytes_read(self.placed)) { Ok(()) } else { Err(Error::Cancelled) }
            }
            FilePiece::Hole(len) => self.hole(&mut placing, len),
        })?;
        self.end(placing)
    }

    fn data(&mut self, placing: &mut Placing, mut bytes: &[u8]) -> Result<()> {
        self.placed += bytes.len() as u64;
        if self.placed > self.job.limits.bytes {
            return Err(self.too_large(format!("has more than {} bytes of files", self.job.limits.bytes)));
        }
        if !placing.part.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK as usize - placing.part.len()));
            placing.part.extend_from_slice(now);
            bytes = rest;
            self.place_full_part(placing)?;
        }
        let (blocks, part) = bytes.split_at(bytes.len() - bytes.len() % BLOCK as usize);
        self.place(placing, blocks)?;
        placing.part.extend_from_slice(part);
        Ok(())
    }

    /// Zeros in a block that has data are stored like it.
    fn hole(&mut self, placing: &mut Placing, mut len: u64) -> Result<()> {
        if !placing.part.is_empty() {
            let now = len.min(BLOCK - placing.part.len() as u64);
            placing.part.resize(placing.part.len() + now as usize, 0);
            len -= now;
            self.place_full_part(placing)?;
        }
        let blocks = len / BLOCK;
        let end = u64::from(placing.blocks) + blocks;
        placing.blocks =
            u32::try_from(end).map_err(|_| self.too_large("has a file of more than 16 TiB".into()))?;
        placing.holes |= blocks > 0;
        placing.part.resize(placing.part.len() + (len % BLOCK) as usize, 0);
        Ok(())
    }

    fn place_full_part(&mut self, placing: &mut Placing) -> Result<()> {
        if placing.part.len() < BLOCK as usize {
            return Ok(());
        }
        let mut part = std::mem::take(&mut placing.part);
        self.place(placing, &part)?;
        part.clear();
        placing.part = part;
        Ok(())
    }

    /// Whole blocks into the image.
    fn place(&mut self, placing: &mut Placing, bytes: &[u8]) -> Result<()> {
        let full = || self.too_large("would be larger than 16 TiB, which its format does not allow".into());
        let blocks = u32::try_from(bytes.len() as u64 / BLOCK).map_err(|_| full())?;
        if blocks == 0 {
            return Ok(());
        }
        let at = placing.blocks;
        placing.blocks = at.checked_add(blocks).ok_or_else(full)?;
        match placing.runs.last_mut() {
            Some(last) if last.at + last.blocks == at => last.blocks += blocks,
            _ => placing.runs.push(BlockRun { at, block: self.next_block, blocks }),
        }
        let next = self.next_block.checked_add(blocks).ok_or_else(full)?;
        if self.gathered.len() + bytes.len() > GATHER {
            self.flush()?;
        }
        self.next_block = next;
        self.gathered.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self, mut placing: Placing) -> Result<Content> {
        let size = u64::from(placing.blocks) * BLOCK + placing.part.len() as u64;
        if !placing.holes {
            let tail = self.spill.end();
            self.spill.append(&placing.part)?;
            let block = placing.runs.first().map_or(0, |run| run.block);
            return Ok(Content::Whole { size, block, tail });
        }
        if placing.part.iter().any(|byte| *byte != 0) {
            placing.part.resize(BLOCK as usize, 0);
            self.place_full_part(&mut placing)?;
        }
        Ok(Content::Sparse(Box::new(Sparse { size, runs: placing.runs })))
    }

    fn flush(&mut self) -> Result<()> {
        let before = u64::from(self.next_block) * BLOCK - self.gathered.len() as u64;
        self.sum.add(before, &self.gathered);
        // What was never written reads as zeros, and takes no room.
        if self.gathered.iter().any(|byte| *byte != 0) {
            write_all_at(self.job.image, &self.gathered, before).on("write to", self.job.name)?;
        }
        self.gathered.clear();
        Ok(())
    }

    fn bad(&self, why: String) -> Error {
        Error::Foreign { object: self.job.source.into(), why, hint: None }
    }

    fn too_large(&self, why: String) -> Error {
        Error::TooLarge { image: self.job.source.into(), why }
    }
}

/// A file whose content is being placed.
#[derive(Default)]
struct Placing {
    /// Blocks of the file so far, holes counted.
    blocks: u32,
    /// The bytes behind them: less than a block.
    part: Vec<u8>,
    runs: Vec<BlockRun>,
    holes: bool,
}

fn intern(tree: &mut Tree, xattrs: Xattrs) -> XattrsId {
    tree.intern(xattrs.into_iter().filter(|(name, _)| is_kept(name)).collect())
}

#[cfg(test)]
mod tests;
