//! The options of a mount, as the specification and mount(8) have them.

use skiff_spec::fault::{Fault, Result};
use skiff_sys::mount::{MountAttr, MountPropagation};

use crate::config::OciMount;

/// What a mount's options ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// An existing file or directory is mounted; with what is mounted below it?
    pub bind: Option<bool>,
    /// Attributes of the mount that are set and taken away.
    pub set: MountAttr,
    pub clear: MountAttr,
    /// Attributes of the mount and of all mounts below it that are set and taken away.
    pub set_below: MountAttr,
    pub clear_below: MountAttr,
    /// How it takes part in others' mounts, each with whether that is so of those below it.
    pub propagation: Vec<(MountPropagation, bool)>,
    /// Whether a file system in memory is to begin with what the root has there.
    tmpcopyup: bool,
    /// What the file system itself takes.
    pub data: Vec<String>,
}

/// Attributes by the words that set them and that take them away.
const ATTRIBUTES: [(&str, &str, MountAttr); 5] = [
    ("ro", "rw", MountAttr::RDONLY),
    ("nosuid", "suid", MountAttr::NOSUID),
    ("nodev", "dev", MountAttr::NODEV),
    ("noexec", "exec", MountAttr::NOEXEC),
    ("nosymfollow", "symfollow", MountAttr::NOSYMFOLLOW),
];

/// Times of access.
const TIMES: [(&str, MountAttr); 3] = [
    ("relatime", MountAttr::RELATIME),
    ("noatime", MountAttr::NOATIME),
    ("strictatime", MountAttr::STRICTATIME),
];

const PROPAGATION: [(&str, MountPropagation); 4] = [
    ("private", MountPropagation::Private),
    ("slave", MountPropagation::Slave),
    ("shared", MountPropagation::Shared),
    ("unbindable", MountPropagation::Unbindable),
];

/// Words that change nothing here: what they say is so, or a file system's server looks at them.
const WITHOUT_EFFECT: [&str; 12] = [
    "defaults",
    "async",
    "loud",
    "nomand",
    "norelatime",
    "nostrictatime",
    "atime",
    "diratime",
    "noiversion",
    "nolazytime",
    "remount",
    "nofail",
];

/// The words that have an effect.
pub fn words() -> Vec<String> {
    let attributes = ATTRIBUTES.iter().flat_map(|(on, off, _)| [*on, *off]);
    let times = TIMES.iter().map(|(word, _)| *word);
    let propagation = PROPAGATION.iter().map(|(word, _)| *word);
    let both = |word: &str| [word.to_owned(), format!("r{word}")];
    let with_below = ["bind"].into_iter().chain(attributes).chain(times).chain(propagation).flat_map(both);
    with_below.chain(["nodiratime", "tmpcopyup"].map(String::from)).collect()
}

impl MountOptions {
    /// Understands them. What is no word of mount(8)'s is the file system's.
    ///
    /// # Errors
    /// What nobody can have without privilege.
    pub fn of(mount: &OciMount) -> Result<Self> {
        let mut options = Self::default();
        if mount.kind.as_deref() == Some("bind") {
            options.bind = Some(false);
        }
        for word in &mount.options {
            options.add(word)?;
        }
        if !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty() {
            return Err(Fault::new("id-mapped mounts need privilege")
                .hint("leave out uidMappings and gidMappings of mounts, and idmap"));
        }
        Ok(options)
    }

    /// Whether the mount begins with what the root has there. No other file system may be written to for that.
    pub fn copies_up(&self, kind: Option<&str>) -> bool {
        self.tmpcopyup && self.bind.is_none() && kind == Some("tmpfs")
    }

    /// The options that change nothing: what is bound has got its own when it was mounted.
    pub fn ineffective(&self, kind: Option<&str>) -> Vec<&str> {
        let data = self.bind.iter().flat_map(|_| self.data.iter().map(String::as_str));
        let tmpcopyup = (self.tmpcopyup && !self.copies_up(kind)).then_some("tmpcopyup");
        data.chain(tmpcopyup).collect()
    }

    fn add(&mut self, word: &str) -> Result<()> {
        let below = word.strip_prefix('r').unwrap_or("");
        if let Some((on, _, attr)) = ATTRIBUTES.iter().find(|(on, off, _)| [on, off].contains(&&word)) {
            change(&mut self.set, &mut self.clear, *attr, word == *on);
        } else if let Some((on, _, attr)) = ATTRIBUTES.iter().find(|(on, off, _)| [on, off].contains(&&below))
        {
            change(&mut self.set_below, &mut self.clear_below, *attr, below == *on);
        } else if let Some((_, attr)) = TIMES.iter().find(|(time, _)| *time == word) {
            (self.set, self.clear) = (self.set.and(*attr), self.clear.and(MountAttr::ANY_ATIME));
        } else if let Some((_, attr)) = TIMES.iter().find(|(time, _)| *time == below) {
            self.set_below = self.set_below.and(*attr);
            self.clear_below = self.clear_below.and(MountAttr::ANY_ATIME);
        } else if word == "nodiratime" {
            self.set = self.set.and(MountAttr::NODIRATIME);
        } else if let Some((_, kind)) = PROPAGATION.iter().find(|(name, _)| *name == word) {
            self.propagation.push((*kind, false));
        } else if let Some((_, kind)) = PROPAGATION.iter().find(|(name, _)| *name == below) {
            self.propagation.push((*kind, true));
        } else {
            return self.add_other(word);
        }
        Ok(())
    }

    fn add_other(&mut self, word: &str) -> Result<()> {
        match word {
            "bind" => self.bind = Some(false),
            "rbind" => self.bind = Some(true),
            "tmpcopyup" => self.tmpcopyup = true,
            "idmap" | "ridmap" => {
                return Err(Fault::new(format!("option {word}: id-mapped mounts need privilege")));
            }
            word if WITHOUT_EFFECT.contains(&word) => {}
            word => self.data.push(word.into()),
        }
        Ok(())
    }
}

/// The last word decides.
fn change(set: &mut MountAttr, clear: &mut MountAttr, attr: MountAttr, on: bool) {
    let (to, from) = if on { (set, clear) } else { (clear, set) };
    *to = to.and(attr);
    *from = from.without(attr);
}

/// How the container's root takes part in others' mounts; nothing if the configuration leaves that open.
///
/// # Errors
/// What is no such word.
pub fn propagation(word: Option<&str>) -> Result<Option<(MountPropagation, bool)>> {
    let Some(word) = word.filter(|word| !word.is_empty()) else { return Ok(None) };
    let found = PROPAGATION.iter().find_map(|(name, kind)| {
        (*name == word)
            .then_some((*kind, false))
            .or_else(|| (word.strip_prefix('r') == Some(*name)).then_some((*kind, true)))
    });
    found.map(Some).ok_or_else(|| Fault::new(format!("linux.rootfsPropagation: {word}: no such word")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, words: &str) -> Result<MountOptions> {
        let options = words.split(',').filter(|word| !word.is_empty()).map(String::from).collect();
        MountOptions::of(&OciMount { kind: Some(kind.into()), options, ..OciMount::default() })
    }

    #[test]
    fn words_of_mounts() {
        let bind = of("none", "rbind,nosuid,rro,rprivate,suid").expect("options");
        assert_eq!(bind.bind, Some(true));
        assert_eq!((bind.set, bind.clear), (MountAttr::NONE, MountAttr::NOSUID), "the last word decides");
        assert_eq!(bind.set_below, MountAttr::RDONLY);
        assert_eq!(bind.propagation, [(MountPropagation::Private, true)]);
        let tmpfs = of("tmpfs", "nosuid,noexec,size=65536k,mode=755,strictatime,tmpcopyup").expect("options");
        assert_eq!(tmpfs.data, ["size=65536k", "mode=755"]);
        assert!(tmpfs.copies_up(Some("tmpfs")) && tmpfs.bind.is_none());
        assert_eq!(tmpfs.ineffective(Some("tmpfs")), [""; 0]);
        let bind = of("tmpfs", "bind,size=1m,ro,tmpcopyup").expect("options");
        assert!(!bind.copies_up(Some("tmpfs")), "what is bound would be written to");
        assert_eq!(bind.ineffective(Some("tmpfs")), ["size=1m", "tmpcopyup"]);
        assert_eq!(tmpfs.clear, MountAttr::ANY_ATIME);
        assert_eq!(of("bind", "ro").expect("options").bind, Some(false));
        assert_eq!(of("bind", "ro,relatime,rnoatime").expect("options").clear_below, MountAttr::ANY_ATIME);
        assert!(of("bind", "idmap").is_err());
    }

    #[test]
    fn what_has_an_effect_is_understood() {
        for word in words() {
            let options = of("tmpfs", &word).expect("a word");
            assert!(options != MountOptions::default() && options.data.is_empty(), "{word}");
        }
    }

    #[test]
    fn words_of_propagation() {
        assert_eq!(propagation(None), Ok(None));
        assert_eq!(propagation(Some("rslave")), Ok(Some((MountPropagation::Slave, true))));
        assert_eq!(propagation(Some("shared")), Ok(Some((MountPropagation::Shared, false))));
        assert!(propagation(Some("rest")).is_err());
    }
}
