//! The command that runs inside: its words, its variables, its directory.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use skiff_edf::Template;
use skiff_runtime::proxy::MPI_OF_ROOT;
use skiff_sandbox::command::{CommandSpec, DEFAULT_PATH, own_env, own_variable};
use skiff_spec::caller::ONLY_INSIDE;
use skiff_spec::plan::{Identity, Route};
use skiff_user::context::UserContext;

use crate::named_file;

/// How a command runs inside.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessArgs {
    /// Run as root inside (the default over the host's root)
    #[arg(long, visible_alias = "fakeroot", conflicts_with = "me")]
    pub root: bool,
    /// Run as yourself, unprivileged (the default over an image)
    #[arg(long)]
    pub me: bool,
    /// Set a variable, or pass on your own: NAME[=VALUE]
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = setting())]
    pub env: Vec<OsString>,
    /// Set the variables of a file: lines of NAME=VALUE or NAME; a # begins a comment
    #[arg(long = "env-file", value_name = "FILE", value_parser = env_file())]
    pub env_files: Vec<EnvFile>,
    /// Pass on no variables except TERM, the proxy variables and those named by --env
    #[arg(long)]
    pub cleanenv: bool,
    /// The variables of an environment definition file, in which the image's may stand.
    #[arg(skip)]
    pub templates: Vec<(String, Template)>,
    /// Whether nobody trusts what runs there.
    #[arg(skip)]
    pub untrusted: bool,
    /// Whom root inside becomes first, as `USER[:GROUP]`.
    #[arg(skip)]
    pub user: Option<String>,
    /// Working directory inside [default: the image's if it has one, else the current one]
    #[arg(short = 'w', long = "workdir", visible_alias = "pwd", value_name = "DIR")]
    pub workdir: Option<PathBuf>,
}

/// Root inside, as `USER[:GROUP]`.
pub const ROOT: [&str; 6] = ["root", "0", "root:root", "0:0", "root:0", "0:root"];

/// The variables of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvFile(Vec<OsString>);

impl EnvFile {
    /// Docker's format: a line is a variable as it stands, without quotes or escapes.
    fn parse(text: &[u8]) -> Result<Self, String> {
        let mut found = vec![];
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
            let name = line.split(|byte| *byte == b'=').next().unwrap_or_default();
            let is_name = !name.is_empty() && !name.contains(&0) && !name.iter().any(u8::is_ascii_whitespace);
            match line.first() {
                None | Some(b'#') => {}
                Some(_) if is_name && !line.contains(&0) => found.push(OsString::from_vec(line.to_vec())),
                Some(_) => return Err(format!("line {}: not NAME=VALUE", number + 1)),
            }
        }
        Ok(Self(found))
    }
}

/// Reads the file at once: what is wrong with it shows before anything is done.
fn env_file() -> impl TypedValueParser<Value = EnvFile> {
    OsStringValueParser::new()
        .try_map(|file| EnvFile::parse(&named_file::read(file.as_ref()).map_err(|e| e.to_string())?))
}

/// Reads `NAME[=VALUE]`: any bytes, but a name there must be.
fn setting() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|word| match word.as_bytes().first() {
        None | Some(b'=') => Err("a variable without a name"),
        _ => Ok(word),
    })
}

impl ProcessArgs {
    /// Who the user is to be inside.
    pub fn identity(&self) -> Identity {
        if self.me { Identity::Me } else { Identity::Root }
    }

    /// Who the user is to be inside an image, where there is seldom anything to install. (Without the helper there is only root.)
    pub fn identity_in_image(&self, route: Route) -> Identity {
        if self.root || (route == Route::Rootless && !self.me) { Identity::Root } else { Identity::Me }
    }

    /// The same as `USER[:GROUP]`: root inside, the user themselves, or somebody whom the root knows.
    #[must_use]
    pub fn as_user(self, context: &UserContext, user: String) -> Self {
        if ROOT.contains(&&*user) {
            return Self { root: true, ..self };
        }
        match user == context.user() || user == context.uid.to_string() {
            true => Self { me: true, ..self },
            false => Self { root: true, user: Some(user), ..self },
        }
    }

    /// Has a command run as another user inside, whose name and home are known only there.
    pub fn become_other(&self, command: &mut CommandSpec, user: &str) {
        let asked = self.settings();
        for name in ["HOME", "USER", "LOGNAME"] {
            if !asked.iter().any(|(asked, _)| asked == name) {
                command.env.retain(|(known, _)| known != name);
            }
        }
        command.user = Some(user.into());
    }

    /// The command to run; the user's shell if they named none.
    pub fn command(&self, context: &UserContext, argv: &[OsString]) -> CommandSpec {
        self.command_as(context, self.identity(), argv)
    }

    /// The command to run, as `identity` in the place of the usual one.
    pub fn command_as(&self, context: &UserContext, identity: Identity, argv: &[OsString]) -> CommandSpec {
        let argv = if argv.is_empty() { vec![context.shell()] } else { argv.to_vec() };
        // Called in an environment, it may be for that one: there the directory is.
        let only_inside = std::env::var_os(ONLY_INSIDE).map(PathBuf::from);
        let here = || std::env::current_dir().unwrap_or_else(|_| context.home.clone());
        let mut cwd = only_inside.unwrap_or_else(here);
        cwd.extend(&self.workdir);
        let env = environment(context, identity, self.passed_on());
        let only_there = self.workdir.is_some();
        let untrusted = self.untrusted;
        let mut command = CommandSpec { argv, env, cwd, only_there, untrusted, ..CommandSpec::default() };
        for (name, value) in self.settings() {
            command.set(name, value);
        }
        if let Some(user) = &self.user {
            self.become_other(&mut command, user);
        }
        command
    }

    /// The variables that are to be set.
    pub fn settings(&self) -> Vec<(OsString, OsString)> {
        // One named without a value has the one that it has here, if any.
        let valued = |(name, value): (OsString, Option<OsString>)| {
            let value = value.or_else(|| own_variable(&name))?;
            Some((name, value))
        };
        let of_files = self.env_files.iter().flat_map(|file| &file.0);
        of_files.chain(&self.env).map(split).filter_map(valued).collect()
    }

    /// Which of the user's variables are passed on; nothing if all are.
    fn passed_on(&self) -> Option<&'static [&'static str]> {
        match (self.untrusted, self.cleanenv) {
            (true, _) => Some(&TERMINAL),
            (false, true) => Some(&PASSED_ON),
            (false, false) => None,
        }
    }
}

/// What a terminal is called says nothing about its user.
const TERMINAL: [&str; 1] = ["TERM"];
/// What Apptainer passes on in any case. (Proxies' variables may hold a password.)
const PASSED_ON: [&str; 11] = [
    "TERM",
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "ftp_proxy",
    "FTP_PROXY",
];

fn split(setting: &OsString) -> (OsString, Option<OsString>) {
    let bytes = setting.as_bytes();
    match bytes.iter().position(|b| *b == b'=') {
        Some(at) => {
            (OsString::from_vec(bytes[..at].to_vec()), Some(OsString::from_vec(bytes[at + 1..].to_vec())))
        }
        None => (setting.clone(), None),
    }
}

/// The user's variables, with what differs inside. What steers Skiff itself stays outside.
fn environment(
    context: &UserContext,
    identity: Identity,
    passed_on: Option<&[&str]>,
) -> Vec<(OsString, OsString)> {
    let mut command = CommandSpec { env: own_env(), ..CommandSpec::default() };
    command.env.retain(|(name, _)| !name.as_bytes().starts_with(b"SKIFF_"));
    command.set("HOME", context.home.clone());
    if let Some(names) = passed_on {
        command.env.retain(|(name, _)| names.iter().any(|known| name == known));
        let user = context.user();
        let login = [("HOME", context.home.clone().into()), ("PATH", DEFAULT_PATH.into())];
        login.into_iter().for_each(|(name, value): (&str, OsString)| command.set(name, value));
        command.set("USER", user.clone());
        command.set("LOGNAME", user);
    }
    if identity == Identity::Root {
        command.set("USER", "root");
        command.set("LOGNAME", "root");
        for (name, value) in MPI_OF_ROOT {
            if command.var(name).is_none() {
                command.set(name, value);
            }
        }
        // Root's programs are found, as after any login as root.
        let path = command.var("PATH").unwrap_or(OsStr::new(DEFAULT_PATH)).to_owned();
        let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        for dir in ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from) {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        if let Ok(path) = std::env::join_paths(dirs) {
            command.set("PATH", path);
        }
    }
    command.env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_variables_are_dockers() {
        let read = |text: &str| {
            EnvFile::parse(text.as_bytes()).map(|file| {
                file.0.iter().map(|line| line.to_string_lossy().into_owned()).collect::<Vec<_>>().join("|")
            })
        };
        assert_eq!(read("A=1\n# no\n\nB=x y # z\r\n  C\nD=\"q\"").as_deref(), Ok("A=1|B=x y # z|C|D=\"q\""));
        assert_eq!(read("").as_deref(), Ok(""));
        for (text, line) in [("=1", 1), ("A=1\nexport B=2", 2), ("A\0=1", 1), ("A=\0", 1)] {
            assert_eq!(read(text), Err(format!("line {line}: not NAME=VALUE")), "{text:?}");
        }
    }
}
