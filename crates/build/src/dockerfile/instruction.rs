//! Single instructions: their words, and what of them is refused.

use serde::{Deserialize, Serialize};

use super::DockerfileError;
use super::command::{Command, Flag, LISTS, duration, flags, is_mixed_list, list, list_or_words, pairs};
use super::lines::{Heredoc, InstructionLine, heredoc_name, heredoc_words};
use super::mount::{self, MountInstruction, MountKind};
use super::words::split_quoted;

/// One instruction of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// Names of arguments with their defaults.
    Arg(Vec<(String, Option<String>)>),
    /// The command of the image.
    Cmd(Command),
    /// Files from the context, a stage or an image.
    Copy(CopyInstruction),
    /// The first packages of a distribution.
    Debootstrap(DebootstrapInstruction),
    /// The program of the image.
    Entrypoint(Command),
    /// Variables.
    Env(Vec<(String, String)>),
    /// Ports.
    Expose(Vec<String>),
    /// How to tell whether a container is well.
    Healthcheck(Healthcheck),
    /// Remarks.
    Label(Vec<(String, String)>),
    /// Who made it.
    Maintainer(String),
    /// An instruction for those who build on the image.
    Onbuild(String),
    /// A directory, unless it is there.
    MakeDirectory(String),
    /// A command run now.
    Run(RunInstruction),
    /// What runs commands that are not lists.
    Shell(Vec<String>),
    /// The signal that ends a container.
    StopSignal(String),
    /// Parts of the configuration that the image below has and this one has not.
    Unset(&'static [&'static str]),
    /// Who runs commands.
    User(String),
    /// Directories meant for data.
    Volume(Vec<String>),
    /// Where commands begin.
    Workdir(String),
}

/// RUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInstruction {
    /// What is run.
    pub command: Command,
    /// Whether it has no network.
    pub no_network: bool,
    /// What it sees beside the files of its stage.
    pub mounts: Vec<MountInstruction>,
    /// Variables of its own, with their values.
    pub env: Vec<(String, String)>,
    /// Whether it only tries the files: what it changes is not kept.
    pub is_test: bool,
}

impl RunInstruction {
    /// A program that is a text: where commands find it.
    pub const SCRIPT: &str = "/.skiff-build/script";

    /// A command and nothing else.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self { command, no_network: false, mounts: vec![], env: vec![], is_test: false }
    }

    /// The same with a program.
    #[must_use]
    pub fn with_script(mut self, text: String) -> Self {
        self.mounts.push(MountInstruction { kind: MountKind::Script(text), target: Self::SCRIPT.into() });
        self
    }
}

/// The first packages of a Debian, which the host's `mmdebstrap` or `debootstrap` installs. Each word is what it says, and no option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DebootstrapInstruction {
    /// The release.
    pub suite: String,
    /// Where its packages are.
    pub mirror: String,
    /// Packages beside those that each root has.
    pub packages: Vec<String>,
}

/// COPY and ADD.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyInstruction {
    /// Whether it is ADD, which fetches and unpacks.
    pub is_add: bool,
    /// The stage or image that files come from; nothing: the context.
    pub from: Option<String>,
    /// `USER[:GROUP]`, as written.
    pub chown: Option<String>,
    /// Permission bits, as written.
    pub chmod: Option<String>,
    /// The sum that a file of another server must have, or the commit of a repository, as written.
    pub checksum: Option<String>,
    /// Whether archives are unpacked, where that is said.
    pub unpack: Option<bool>,
    /// Whether a repository comes with its `.git`.
    pub keeps_git: bool,
    /// Patterns of what is not copied, as written.
    pub excludes: Vec<String>,
    /// What becomes of directories.
    pub directories: DirectoryCopy,
    /// What is copied.
    pub sources: Vec<CopySource>,
    /// Where to, as written.
    pub destination: String,
}

/// What becomes of directories that are copied, or that a source names above a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectoryCopy {
    /// What is in them is copied.
    #[default]
    Contents,
    /// As `cp -r` has it: a directory is copied itself, if the destination is there, else it becomes that.
    LikeCp,
    /// As `cp --parents` has it: what is copied keeps its path, or the part of it behind `/./`.
    WithParents,
}

/// Something to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySource {
    /// Files at a path, which may have wildcards.
    Path(String),
    /// A file with this text.
    Text(Heredoc),
}

/// HEALTHCHECK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Healthcheck {
    /// The one of the image below does not count.
    None,
    /// A command.
    Command {
        /// What is run.
        command: Command,
        /// Times in nanoseconds, by their names in the image's configuration.
        times: Vec<(&'static str, u64)>,
        /// How often it may fail.
        retries: Option<u32>,
    },
}

const KNOWN: &str = "ADD, ARG, CMD, COPY, ENTRYPOINT, ENV, EXPOSE, FROM, HEALTHCHECK, LABEL, ONBUILD, RUN, SHELL, STOPSIGNAL, USER, VOLUME and WORKDIR are known";

/// Times of HEALTHCHECK below this, in nanoseconds, are mistaken for other units.
const SHORTEST: u64 = 1_000_000;

/// Reads an instruction other than FROM.
///
/// # Errors
/// It is not known, or asks for what is not supported.
pub fn parse(line: &InstructionLine, escape: char) -> Result<Instruction, DockerfileError> {
    let parser = Parser { line, escape };
    let rest = &*line.rest;
    if rest.is_empty() && !matches!(&*line.word, "CMD" | "ENTRYPOINT") {
        return Err(match is_known(&line.word) {
            true => parser.bad("the instruction has no arguments"),
            false => parser.unknown(),
        });
    }
    if LISTS.contains(&&*line.word) && is_mixed_list(&flags(rest, escape).1) {
        return Err(parser.bad("a list may have texts only").hint(r#"["program", "argument"]"#));
    }
    match &*line.word {
        "RUN" => parser.run().map(Instruction::Run),
        "COPY" => parser.transfer(false).map(Instruction::Copy),
        "ADD" => parser.transfer(true).map(Instruction::Copy),
        "HEALTHCHECK" => parser.healthcheck().map(Instruction::Healthcheck),
        _ => {
            parser.refuse_flags()?;
            parser.plain(rest)
        }
    }
}

fn is_known(word: &str) -> bool {
    KNOWN.split([',', ' ']).any(|known| known == word) || word == "MAINTAINER"
}

pub(super) struct Parser<'a> {
    pub(super) line: &'a InstructionLine,
    pub(super) escape: char,
}

impl Parser<'_> {
    pub(super) fn bad(&self, what: impl AsRef<str>) -> DockerfileError {
        DockerfileError::new(self.line.number, format!("{}: {}", self.line.word, what.as_ref()))
    }

    fn unknown(&self) -> DockerfileError {
        let word: String = self.line.word.chars().take(40).collect();
        DockerfileError::new(self.line.number, format!("{word}: no such instruction")).hint(KNOWN)
    }

    /// Instructions without flags.
    fn plain(&self, rest: &str) -> Result<Instruction, DockerfileError> {
        Ok(match &*self.line.word {
            "ARG" => Instruction::Arg(self.args(rest)?),
            "CMD" => Instruction::Cmd(Command::parse(rest)),
            "ENTRYPOINT" => Instruction::Entrypoint(Command::parse(rest)),
            "ENV" => Instruction::Env(pairs(rest, self.escape).map_err(|why| self.bad(why))?),
            "LABEL" => Instruction::Label(pairs(rest, self.escape).map_err(|why| self.bad(why))?),
            "EXPOSE" => Instruction::Expose(rest.split_whitespace().map(String::from).collect()),
            "MAINTAINER" => Instruction::Maintainer(rest.into()),
            "ONBUILD" => {
                super::parse_trigger(self.line.number, rest)?;
                Instruction::Onbuild(rest.into())
            }
            "SHELL" => match list(rest) {
                Some(words) if !words.is_empty() => Instruction::Shell(words),
                _ => return Err(self.bad("not a list in JSON").hint(r#"SHELL ["/bin/bash", "-c"]"#)),
            },
            "STOPSIGNAL" => Instruction::StopSignal(rest.into()),
            "USER" => Instruction::User(rest.into()),
            "VOLUME" => {
                let paths = list_or_words(rest);
                if paths.is_empty() || paths.iter().any(|path| path.trim().is_empty()) {
                    return Err(self.bad("a directory has no name"));
                }
                Instruction::Volume(paths)
            }
            "WORKDIR" => Instruction::Workdir(rest.into()),
            _ => return Err(self.unknown()),
        })
    }

    fn refuse_flags(&self) -> Result<(), DockerfileError> {
        match flags(&self.line.rest, self.escape).0.first() {
            Some(flag) if is_known(&self.line.word) => Err(self.no_such_flag(flag, "it has no flags")),
            _ => Ok(()),
        }
    }

    pub(super) fn no_such_flag(&self, flag: &Flag, hint: &str) -> DockerfileError {
        self.bad(format!("--{}: not supported", flag.name)).hint(hint)
    }

    pub(super) fn value(&self, flag: Flag) -> Result<String, DockerfileError> {
        let Flag { name, value } = flag;
        value.filter(|value| !value.is_empty()).ok_or_else(|| self.bad(format!("--{name}: no value")))
    }

    fn args(&self, rest: &str) -> Result<Vec<(String, Option<String>)>, DockerfileError> {
        let arg = |word: String| {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            match name.is_empty() || name.contains(['\'', '"', '$']) {
                true => Err(self.bad(format!("{name:?} is not a name of an argument"))),
                false => Ok((name, value)),
            }
        };
        split_quoted(rest, self.escape).into_iter().map(arg).collect()
    }

    fn run(&self) -> Result<RunInstruction, DockerfileError> {
        let (flags, rest) = flags(&self.line.rest, self.escape);
        let (mut no_network, mut mounts) = (false, vec![]);
        for flag in flags {
            let name = flag.name.clone();
            match (&*name, self.value(flag.clone())) {
                ("network", value) => match &*value? {
                    "none" => no_network = true,
                    "default" | "host" => no_network = false,
                    other => {
                        return Err(self
                            .bad(format!("--network={other}: not known"))
                            .hint("it is default, none or host"));
                    }
                },
                ("security", Ok(value)) if value == "sandbox" => {}
                ("mount", value) => {
                    mounts.push(mount::parse(&value?).map_err(|(why, hint)| self.bad(why).hint(hint))?)
                }
                _ => return Err(self.no_such_flag(&flag, "only --mount and --network are supported")),
            }
        }
        if rest.is_empty() {
            return Err(self.bad("no command"));
        }
        let mut run = self.command(&rest);
        run.mounts.extend(mounts);
        Ok(RunInstruction { no_network, ..run })
    }

    /// The command with its here-documents. One that stands alone is the command; with other words around it the shell reads it.
    fn command(&self, rest: &str) -> RunInstruction {
        let words = heredoc_words(split_quoted(rest, self.escape), self.escape);
        let is_alone = matches!(&words[..], [word] if heredoc_name(word, self.escape).is_some());
        match &self.line.heredocs[..] {
            [] => RunInstruction::new(Command::parse(rest)),
            [only] if is_alone && only.content.starts_with("#!") => {
                let command = Command::Exec(vec![RunInstruction::SCRIPT.into()]);
                RunInstruction::new(command).with_script(only.content.clone())
            }
            [only] if is_alone => RunInstruction::new(Command::Shell(only.content.clone())),
            all => {
                let bodies: String = all.iter().map(|doc| format!("\n{}{}", doc.raw, doc.name)).collect();
                RunInstruction::new(Command::Shell(format!("{rest}{bodies}")))
            }
        }
    }

    fn healthcheck(&self) -> Result<Healthcheck, DockerfileError> {
        let (flags, rest) = flags(&self.line.rest, self.escape);
        let (word, command) = rest.split_once(char::is_whitespace).unwrap_or((&rest, ""));
        let word = word.to_ascii_uppercase();
        if word == "NONE" && command.is_empty() && flags.is_empty() {
            return Ok(Healthcheck::None);
        }
        if word != "CMD" || command.trim().is_empty() {
            return Err(self.bad("write HEALTHCHECK CMD COMMAND, or HEALTHCHECK NONE"));
        }
        let (mut times, mut retries) = (vec![], None);
        for flag in flags {
            let key = match &*flag.name {
                "interval" => "Interval",
                "timeout" => "Timeout",
                "start-period" => "StartPeriod",
                "start-interval" => "StartInterval",
                "retries" => {
                    let value = self.value(flag)?;
                    retries = Some(
                        value.parse().map_err(|_| self.bad(format!("--retries={value}: not a number")))?,
                    );
                    continue;
                }
                _ => {
                    return Err(self.no_such_flag(
                        &flag,
                        "--interval, --timeout, --start-period, --start-interval and --retries are",
                    ));
                }
            };
            let name = flag.name.clone();
            let value = self.value(flag)?;
            let time = duration(&value).filter(|time| *time == 0 || *time >= SHORTEST).ok_or_else(|| {
                self.bad(format!("--{name}={value}: not a time of 1ms or more")).hint("30s, 1m30s, 500ms ...")
            })?;
            times.push((key, time));
        }
        Ok(Healthcheck::Command { command: Command::parse(command.trim()), times, retries })
    }
}
