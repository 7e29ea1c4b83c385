//! `RUN --mount`: what a command sees beside the files of its stage.

/// A mount, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInstruction {
    /// What is seen.
    pub kind: MountKind,
    /// Where.
    pub target: String,
}

/// What a mount shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountKind {
    /// Files of the context, a stage or an image.
    Bind {
        /// The stage or image; nothing: the context.
        from: Option<String>,
        /// Which of them.
        source: String,
        /// Whether they may be changed. What is changed is not kept.
        is_writable: bool,
    },
    /// A directory that later builds find again.
    Cache {
        /// What it is called; the target if nothing else is said.
        id: Option<String>,
        /// Whether no other command has it at the same time.
        is_exclusive: bool,
        /// Permission bits of a new one.
        mode: u16,
        /// Whose a new one is.
        owner: (u32, u32),
    },
    /// An empty file system in memory.
    Memory {
        /// The size, as written.
        size: Option<String>,
    },
    /// A file that the user gives and that is not kept.
    Secret {
        /// What `--secret` calls it.
        id: String,
        /// The variable that has it instead of a file.
        variable: Option<String>,
        /// Whether the build fails without it.
        is_required: bool,
    },
    /// The way to an ssh agent that the user gives.
    Agent {
        /// What `--ssh` calls it.
        id: String,
        /// Whether the build fails without it.
        is_required: bool,
        /// Permission bits of the socket.
        mode: u16,
        /// User and group of its owner.
        owner: (u32, u32),
    },
    /// A program with this text.
    Script(String),
}

/// A fault and its hint.
pub type MountFault = (String, &'static str);

const TYPES: &str = "bind, cache, secret, ssh and tmpfs are supported";
/// The agent that is meant if none is named.
const DEFAULT_AGENT: &str = "default";

/// Reads what is behind `--mount=`.
///
/// # Errors
/// The options contradict each other, or ask for what is not supported.
pub fn parse(text: &str) -> Result<MountInstruction, MountFault> {
    let options = options(text)?;
    let kind = options.last("type").unwrap_or("bind").to_ascii_lowercase();
    match &*kind {
        "bind" => options.bind(),
        "cache" => options.cache(),
        "tmpfs" => options.memory(),
        "secret" => options.secret(),
        "ssh" => options.agent(),
        other => Err((format!("--mount=type={other}: not known"), TYPES)),
    }
}

/// Keys and values.
struct MountOptions<'a>(Vec<(String, Option<&'a str>)>);

fn options(text: &str) -> Result<MountOptions<'_>, MountFault> {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let option = |part| match str::split_once(part, '=') {
        Some((key, value)) => (key.to_ascii_lowercase(), Some(value)),
        None => (part.to_ascii_lowercase(), None),
    };
    let options: Vec<_> = text.split(',').map(option).collect();
    match options.iter().find(|(key, value)| value.is_none_or(str::is_empty) && !is_switch(key)) {
        Some((key, _)) => Err((format!("--mount={text}: {key} has no value"), "write KEY=VALUE,KEY=VALUE")),
        None => Ok(MountOptions(options)),
    }
}

fn is_switch(key: &str) -> bool {
    matches!(key, "ro" | "readonly" | "rw" | "readwrite" | "required")
}

impl MountOptions<'_> {
    fn last(&self, key: &str) -> Option<&str> {
        self.any(&[key])
    }

    fn any(&self, keys: &[&str]) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| keys.contains(&&**key)).and_then(|(_, value)| *value)
    }

    /// Refuses all keys but these and `type`.
    fn only(&self, known: &[&str]) -> Result<(), MountFault> {
        match self.0.iter().find(|(key, _)| key != "type" && !known.contains(&&**key)) {
            Some((key, _)) => Err((
                format!("--mount: {key}: not supported for this type"),
                "docs/build.md lists what each type of mount takes",
            )),
            None => Ok(()),
        }
    }

    fn switch(&self, keys: &[&str]) -> Result<Option<bool>, MountFault> {
        let Some((key, value)) = self.0.iter().rev().find(|(key, _)| keys.contains(&&**key)) else {
            return Ok(None);
        };
        match value.map(str::to_ascii_lowercase).as_deref() {
            None | Some("true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(other) => Err((format!("--mount: {key}={other}: not a boolean"), "true or false")),
        }
    }

    fn is_writable(&self) -> Result<Option<bool>, MountFault> {
        let read_only = self.switch(&["ro", "readonly"])?;
        Ok(self.switch(&["rw", "readwrite"])?.or(read_only.map(|read_only| !read_only)))
    }

    fn target(&self) -> Option<String> {
        self.any(&["target", "dst", "destination"]).map(String::from)
    }

    fn needed_target(&self) -> Result<String, MountFault> {
        let target = self.target().filter(|target| !target.trim_matches('/').is_empty());
        target.ok_or_else(|| ("--mount: no target".into(), "target=DIR says where it is seen"))
    }

    fn bind(&self) -> Result<MountInstruction, MountFault> {
        self.only(&[
            "from",
            "source",
            "src",
            "target",
            "dst",
            "destination",
            "ro",
            "readonly",
            "rw",
            "readwrite",
        ])?;
        let kind = MountKind::Bind {
            from: self.last("from").map(String::from),
            source: self.any(&["source", "src"]).unwrap_or("/").into(),
            is_writable: self.is_writable()?.unwrap_or(false),
        };
        Ok(MountInstruction { kind, target: self.needed_target()? })
    }

    fn cache(&self) -> Result<MountInstruction, MountFault> {
        self.only(&[
            "id",
            "target",
            "dst",
            "destination",
            "sharing",
            "mode",
            "uid",
            "gid",
            "rw",
            "readwrite",
            "ro",
            "readonly",
        ])?;
        if self.is_writable()? == Some(false) {
            return Err(("--mount=type=cache: not supported read-only".into(), "leave readonly out"));
        }
        let is_exclusive = match self.last("sharing").unwrap_or("shared") {
            "shared" => false,
            "locked" | "private" => true,
            other => {
                return Err((format!("--mount: sharing={other}: not known"), "shared, private or locked"));
            }
        };
        let kind = MountKind::Cache {
            id: self.last("id").map(String::from),
            is_exclusive,
            mode: self.mode(0o755)?,
            owner: (self.number("uid")?, self.number("gid")?),
        };
        Ok(MountInstruction { kind, target: self.needed_target()? })
    }

    fn memory(&self) -> Result<MountInstruction, MountFault> {
        self.only(&["target", "dst", "destination", "size"])?;
        let kind = MountKind::Memory { size: self.last("size").map(String::from) };
        Ok(MountInstruction { kind, target: self.needed_target()? })
    }

    fn secret(&self) -> Result<MountInstruction, MountFault> {
        self.only(&["id", "target", "dst", "destination", "env", "required", "mode", "uid", "gid"])?;
        if self.number("uid")? != 0 || self.number("gid")? != 0 {
            return Err((
                "--mount=type=secret: not supported for another owner".into(),
                "the file belongs to root: run the command as root",
            ));
        }
        if self.mode(0o444)? & 0o044 == 0 {
            return Err((
                "--mount=type=secret: not supported with a mode that keeps others from reading".into(),
                "everybody inside can read the file: leave out mode=, or say mode=0444",
            ));
        }
        let target = self.target();
        let named = target.as_deref().and_then(|target| target.rsplit('/').next());
        let id = self.last("id").or(named).filter(|id| !id.is_empty() && !id.contains('/'));
        let id =
            id.ok_or_else(|| ("--mount=type=secret: no id".into(), "id=NAME is what --secret calls it"))?;
        let kind = MountKind::Secret {
            id: id.into(),
            variable: self.last("env").map(String::from),
            is_required: self.switch(&["required"])?.unwrap_or(false),
        };
        // Into a variable alone, where no file is asked for.
        let file = match (&target, self.last("env")) {
            (None, Some(_)) => String::new(),
            (None, None) => format!("/run/secrets/{id}"),
            (Some(target), _) => target.clone(),
        };
        Ok(MountInstruction { kind, target: file })
    }

    /// Without a target it is seen where no other agent of the same command is: that is not known here.
    fn agent(&self) -> Result<MountInstruction, MountFault> {
        self.only(&["id", "target", "dst", "destination", "required", "mode", "uid", "gid"])?;
        let kind = MountKind::Agent {
            id: self.last("id").unwrap_or(DEFAULT_AGENT).into(),
            is_required: self.switch(&["required"])?.unwrap_or(false),
            mode: self.mode(0o600)?,
            owner: (self.number("uid")?, self.number("gid")?),
        };
        Ok(MountInstruction { kind, target: self.target().unwrap_or_default() })
    }

    fn number(&self, key: &str) -> Result<u32, MountFault> {
        let Some(text) = self.last(key) else { return Ok(0) };
        let number = text.parse().ok().filter(|number| *number != u32::MAX);
        number.ok_or_else(|| (format!("--mount: {key}={text}: not a number"), "uid and gid are numbers"))
    }

    fn mode(&self, otherwise: u16) -> Result<u16, MountFault> {
        let Some(text) = self.last("mode") else { return Ok(otherwise) };
        let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
        mode.ok_or_else(|| (format!("--mount: mode={text}: not an octal number up to 07777"), "mode=0755"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(from: Option<&str>, source: &str, is_writable: bool) -> MountKind {
        MountKind::Bind { from: from.map(String::from), source: source.into(), is_writable }
    }

    /// The facts are those of Docker's reference.
    #[test]
    fn mounts_are_buildkits() {
        let cache = |id: Option<&str>, is_exclusive| MountKind::Cache {
            id: id.map(String::from),
            is_exclusive,
            mode: 0o755,
            owner: (0, 0),
        };
        let secret = |id: &str, variable: Option<&str>, is_required| MountKind::Secret {
            id: id.into(),
            variable: variable.map(String::from),
            is_required,
        };
        let agent =
            |id: &str, is_required, mode, owner| MountKind::Agent { id: id.into(), is_required, mode, owner };
        for (text, kind, target) in [
            ("type=ssh", agent("default", false, 0o600, (0, 0)), ""),
            ("type=ssh,id=work,dst=/s,required=true", agent("work", true, 0o600, (0, 0)), "/s"),
            ("type=ssh,mode=741,uid=100,gid=102", agent("default", false, 0o741, (100, 102)), ""),
            ("target=/src", bind(None, "/", false), "/src"),
            ("type=bind,source=a,target=b,rw", bind(None, "a", true), "b"),
            ("type=bind,from=x,src=/a,dst=/b,readonly", bind(Some("x"), "/a", false), "/b"),
            ("type=bind,target=/b,rw=false", bind(None, "/", false), "/b"),
            ("type=bind,target=/b,ro=false", bind(None, "/", true), "/b"),
            ("TYPE=Cache,Target=/c", cache(None, false), "/c"),
            ("type=cache,target=/c,id=i,sharing=locked", cache(Some("i"), true), "/c"),
            ("type=tmpfs,destination=/t,size=1m", MountKind::Memory { size: Some("1m".into()) }, "/t"),
            ("type=secret,id=s", secret("s", None, false), "/run/secrets/s"),
            ("type=secret,target=/root/.key", secret(".key", None, false), "/root/.key"),
            ("type=secret,id=s,env=S,required", secret("s", Some("S"), true), ""),
            ("type=secret,id=s,env=S,target=/s,required=false", secret("s", Some("S"), false), "/s"),
        ] {
            let read = parse(text).unwrap_or_else(|(why, _)| panic!("{text}: {why}"));
            assert_eq!(read, MountInstruction { kind, target: target.into() }, "{text}");
        }
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for (text, part) in [
            ("", "has no value"),
            ("type=bind", "no target"),
            ("type=bind,target=/", "no target"),
            ("type=bind,target", "target has no value"),
            ("type=bind,target=/a,size=1", "size: not supported"),
            ("type=cache,target=/c,sharing=odd", "sharing=odd"),
            ("type=cache,target=/c,from=x", "from: not supported"),
            ("type=cache,target=/c,mode=9", "mode=9"),
            ("type=cache,target=/c,ro", "read-only"),
            ("type=cache,target=/c,uid=x", "uid=x"),
            ("type=secret", "no id"),
            ("type=secret,id=a/b", "no id"),
            ("type=secret,id=s,uid=7", "another owner"),
            ("type=secret,id=s,required=maybe", "required=maybe"),
            ("type=ssh,source=/x", "source: not supported"),
            ("type=ssh,mode=8", "mode=8"),
            ("type=odd,target=/x", "type=odd"),
        ] {
            let (why, hint) = parse(text).expect_err(text);
            assert!(why.contains(part) && !hint.is_empty(), "{text}: {why}");
        }
    }
}
