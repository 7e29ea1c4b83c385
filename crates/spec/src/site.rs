//! The helper's own configuration, `/etc/skiff/helper.conf`: lines `KEY = VALUE`, `#` for comments.

use crate::ids::{COUNT, Range};
use crate::image::STORE;
use crate::size;

/// The file.
pub const FILE: &str = "/etc/skiff/helper.conf";

/// What the administrator has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// `range_base`: subordinate ids by rule, where `/etc/subuid` has no entry. Each uid from `first_uid` on has its own
    /// 64 Ki from here on.
    base: Option<u32>,
    /// `range_first_uid`.
    first_uid: u32,
    /// `kept_groups`: groups whose members must not leave them inside, as their being members denies them something.
    pub kept_groups: Vec<u32>,
    /// `store`: where images are.
    pub store: String,
    /// `helpers_each`: how many helpers may work for one user at a time.
    pub helpers_each: u32,
    /// `image_format`: as what the kernel mounts them; without it as EROFS, or as squashfs where there is none.
    pub image_format: Option<ImageFormat>,
    /// `store_user_quota`: bytes that a user may have of the store; without it a part of its file system.
    pub store_user_quota: Option<u64>,
}

/// A file system that images are mounted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// What all images are.
    Erofs,
    /// What they can be made as well.
    Squashfs,
}

impl ImageFormat {
    const ALL: [Self; 2] = [Self::Erofs, Self::Squashfs];

    /// As the kernel calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Squashfs => "squashfs",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// A line of [`FILE`] that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{FILE}: invalid line {0:?}")]
pub struct BadLine(String);

impl BadLine {
    /// How to mend it.
    pub const HINT: &str = "administrator: it takes `range_base = N`, `range_first_uid = N`, `kept_groups = N ...`, `store = /PATH`, \
        `helpers_each = N`, `image_format = erofs|squashfs` and `store_user_quota = SIZE`";
}

impl Default for Site {
    fn default() -> Self {
        Self {
            base: None,
            first_uid: 1000,
            kept_groups: vec![],
            store: STORE.into(),
            helpers_each: 64,
            image_format: None,
            store_user_quota: None,
        }
    }
}

impl Site {
    /// Reads the file's text.
    ///
    /// # Errors
    /// The first line that makes no sense.
    pub fn parse(text: &str) -> Result<Self, BadLine> {
        let mut site = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                site.set(line).ok_or_else(|| BadLine(line.into()))?;
            }
        }
        Ok(site)
    }

    fn set(&mut self, line: &str) -> Option<()> {
        let (key, value) = line.split_once('=')?;
        match key.trim() {
            "range_base" => self.base = Some(value.trim().parse().ok()?),
            "range_first_uid" => self.first_uid = value.trim().parse().ok()?,
            "kept_groups" => {
                self.kept_groups = value.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
            }
            "store" if value.trim().starts_with('/') => self.store = value.trim().into(),
            "helpers_each" => self.helpers_each = value.trim().parse().ok().filter(|most| *most > 0)?,
            "image_format" => self.image_format = Some(ImageFormat::of_name(value.trim())?),
            "store_user_quota" => self.store_user_quota = Some(size::parse(value.trim())?),
            _ => return None,
        }
        Some(())
    }

    /// Whether an id is one of those that users have by rule, none of which is a person's.
    #[must_use]
    pub fn is_subordinate(&self, id: u32) -> bool {
        self.base.is_some_and(|base| id >= base)
    }

    /// The subordinate ids of a user by rule.
    #[must_use]
    pub fn range(&self, uid: u32) -> Option<Range> {
        let index = uid.checked_sub(self.first_uid)?;
        let first = self.base?.checked_add(index.checked_mul(COUNT)?)?;
        // Ids of people must stay theirs.
        (first > uid.max(65535) && first.checked_add(COUNT).is_some())
            .then_some(Range { first, count: COUNT - 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = "# by rule\nrange_base = 1000000\n\n range_first_uid=2000 # people\nkept_groups = 7000 7003\nstore = /images\nhelpers_each = 7\nimage_format = squashfs\nstore_user_quota = 50G\n";
        let site = Site {
            base: Some(1_000_000),
            first_uid: 2000,
            kept_groups: vec![7000, 7003],
            store: "/images".into(),
            helpers_each: 7,
            image_format: Some(ImageFormat::Squashfs),
            store_user_quota: Some(50 << 30),
        };
        assert_eq!(Site::parse(text), Ok(site));
        assert_eq!(Site::parse(""), Ok(Site::default()));
        for bad in [
            "nonsense",
            "store = relative",
            "range_base = x",
            "range_base = -1",
            "base = 1",
            "kept_groups = 1 x",
            "image_format = ext4",
            "helpers_each = 0",
            "store_user_quota = much",
            "range_base = 4294967296",
        ] {
            assert_eq!(Site::parse(bad), Err(BadLine(bad.into())));
        }
    }

    #[test]
    fn ranges_by_rule_never_touch_people() {
        let site = Site { base: Some(1_000_000), ..Site::default() };
        assert_eq!(site.range(1000), Some(Range { first: 1_000_000, count: 65535 }));
        assert_eq!(site.range(1002), Some(Range { first: 1_131_072, count: 65535 }));
        for uid in [0, 999, 70_000, u32::MAX] {
            assert_eq!(site.range(uid), None, "uid {uid}: too low, or past the end of the numbers");
        }
        assert_eq!(
            Site { base: Some(500), ..Site::default() }.range(1000),
            None,
            "a base among people's ids"
        );
    }
}
