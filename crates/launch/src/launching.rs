//! A program on each of several hosts: what starts them, and how they call back.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use skiff_sys::IgnoreError;
use skiff_sys::kernel::host_name;

use crate::address;
use crate::error::{OfSystem as _, Result};
use crate::handshake::Call;
use crate::hosts::Host;
use crate::listener::CallbackListener;
use crate::manager::{ConnectMethod, Launch, Manager, Surroundings};

/// A program that is to run on other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteProgram {
    /// Arguments, the program first.
    pub argv: Vec<OsString>,
    /// The option by which it is told to call back: a file follows, or `-` for standard input.
    pub call_option: &'static str,
    /// A file that all hosts share and nobody else reads, for managers that hand no input on. It is written when it is needed.
    pub call_file: PathBuf,
}

/// Hosts, and a program that is to run on each.
#[derive(Clone, Debug, Serialize)]
pub struct Launching {
    /// Who manages the hosts.
    pub manager: Manager,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The name that this host gives itself.
    #[serde(skip)]
    pub here: String,
    /// Whether they come from a list, and are not just this host, as often as one likes.
    #[serde(skip)]
    pub is_elsewhere: bool,
    #[serde(skip)]
    program: RemoteProgram,
}

/// The way in for programs that call back, as long as it is open.
pub struct CallbackSetup {
    /// Where they call; nothing where nobody does.
    pub listener: Option<CallbackListener>,
    /// What they need to know for that.
    pub call: Call,
    _file: Option<CallFile>,
}

impl Launching {
    /// `program` on these hosts.
    #[must_use]
    pub fn new(manager: Manager, hosts: Vec<Host>, program: RemoteProgram) -> Self {
        Self { manager, hosts, here: host_name(), is_elsewhere: true, program }
    }

    /// `program` on this host, so many times.
    #[must_use]
    pub fn here(times: u16, program: RemoteProgram) -> Self {
        let here = host_name();
        let hosts = vec![Host { name: here.clone(), slots: None }; times.into()];
        Self { manager: Manager::Ssh, hosts, here, is_elsewhere: false, program }
    }

    /// The file for managers that hand no input on. Its directory must be there, and the user's alone, before [`Launching::open`].
    #[must_use]
    pub fn call_file(&self) -> &Path {
        &self.program.call_file
    }

    /// What starts all programs.
    #[must_use]
    pub fn launches(&self) -> Vec<Launch> {
        let argv = self.argv(self.manager);
        self.manager.launches(&Surroundings::of_this_process(), &self.hosts, &argv)
    }

    /// What starts the program on one of the hosts.
    #[must_use]
    pub fn launch(&self, at: usize) -> Vec<Launch> {
        let (host, argv) = (&self.hosts[at..=at], self.argv(self.manager));
        let mut launches = self.manager.launches(&Surroundings::of_this_process(), host, &argv);
        launches.iter_mut().for_each(|launch| launch.hosts = vec![at]);
        launches
    }

    /// What starts one more program on this host, after all of these.
    #[must_use]
    pub fn one_more_here(&self) -> Launch {
        let (argv, hosts) = (self.argv(Manager::Ssh), vec![self.hosts.len()]);
        Launch { argv, without: vec![], way: ConnectMethod::Pipes, hosts }
    }

    /// Opens the way in that programs started so need.
    ///
    /// # Errors
    /// When no port is free, or the file cannot be written.
    pub fn open(&self, launches: &[Launch]) -> Result<CallbackSetup> {
        let calls = launches.iter().any(|launch| launch.way != ConnectMethod::Pipes);
        let listener = if calls { Some(CallbackListener::open()?) } else { None };
        let call = match &listener {
            Some(listener) => listener.call(address::of_this_host(&self.hosts))?,
            None => Call { hosts: vec![], port: 0, secret: None, word: String::new() },
        };
        let by_file = launches.iter().any(|launch| launch.way == ConnectMethod::CallBackByFile);
        let _file = by_file.then(|| CallFile::write(&self.program.call_file, &call)).transpose()?;
        Ok(CallbackSetup { listener, call, _file })
    }

    /// The program's arguments, with how it is to call back where this manager starts it.
    fn argv(&self, manager: Manager) -> Vec<OsString> {
        let RemoteProgram { argv, call_option, call_file } = &self.program;
        let from = match manager.way() {
            ConnectMethod::Pipes => None,
            ConnectMethod::CallBack => Some("-".into()),
            ConnectMethod::CallBackByFile => Some(call_file.into()),
        };
        let call = from.into_iter().flat_map(|from| [(*call_option).into(), from]);
        argv.iter().cloned().chain(call).collect()
    }
}

/// The file by which programs call back. What it says is worth nothing when all have called; then it goes.
struct CallFile(PathBuf);

impl CallFile {
    /// Writes it into a directory that is there, and nobody else's.
    fn write(path: &Path, call: &Call) -> Result<Self> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        // One of a process that was killed and had our PID.
        fs::remove_file(path).ignore_error("usually there is none");
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let guard = Self(path.into());
        let text = serde_json::to_string(call).of(|| path.display())?;
        let written = file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.of(|| path.display())?;
        Ok(guard)
    }
}

impl Drop for CallFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ignore_error("if it is gone, so much the better");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn launching(manager: Manager, call_file: &Path) -> Launching {
        let program = RemoteProgram {
            argv: vec!["/bin/program".into(), "serve".into()],
            call_option: "--call",
            call_file: call_file.into(),
        };
        let host = |name: &str| Host { name: name.into(), slots: None };
        Launching::new(manager, vec![host("n1.invalid"), host("n2.invalid")], program)
    }

    #[test]
    fn programs_are_told_how_to_call_back_as_their_manager_allows() {
        for (manager, way, words) in [
            (Manager::Slurm, ConnectMethod::CallBack, "/bin/program serve --call -"),
            (Manager::Pbs, ConnectMethod::CallBackByFile, "/bin/program serve --call /shared/call"),
            (Manager::Lsf, ConnectMethod::Pipes, "/bin/program serve"),
            (Manager::GridEngine, ConnectMethod::Pipes, "/bin/program serve"),
            (Manager::Ssh, ConnectMethod::Pipes, "/bin/program serve"),
        ] {
            let launching = launching(manager, Path::new("/shared/call"));
            let words_of = |launch: &Launch| {
                let words: Vec<_> = launch.argv.iter().map(|word| word.to_string_lossy()).collect();
                words.join(" ")
            };
            let launches = launching.launches();
            assert!(launches.iter().all(|launch| launch.way == way), "{manager:?}");
            assert!(launches.iter().all(|launch| words_of(launch).ends_with(words)), "{launches:?}");
            let hosts: Vec<usize> = launches.iter().flat_map(|launch| launch.hosts.clone()).collect();
            assert_eq!(hosts, [0, 1]);
            let [again] = &launching.launch(1)[..] else { panic!("{manager:?}: not one") };
            assert_eq!((again.way, &again.hosts[..]), (way, &[1][..]));
            let more = launching.one_more_here();
            assert_eq!(
                (words_of(&more).as_str(), more.way, &more.hosts[..]),
                ("/bin/program serve", ConnectMethod::Pipes, &[2][..])
            );
            assert_eq!(manager.leads_session(), !matches!(manager, Manager::Slurm | Manager::Ssh));
        }
    }

    #[test]
    fn a_file_tells_whom_to_call_as_long_as_the_way_in_is_open() {
        let path = std::env::temp_dir().join(format!("skiff-call.{}", std::process::id()));
        let launching = launching(Manager::Pbs, &path);
        let entrance = launching.open(&launching.launches()).expect("opened");
        let text = fs::read_to_string(&path).expect("written");
        assert_eq!(serde_json::from_str::<Call>(&text).expect("a call"), entrance.call);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(entrance.listener.is_some() && entrance.call.port != 0 && entrance.call.secret.is_some());
        drop(entrance);
        assert!(!path.exists());

        let launching = self::launching(Manager::Ssh, &path);
        let entrance = launching.open(&launching.launches()).expect("opened");
        assert!(entrance.listener.is_none() && entrance.call.secret.is_none() && !path.exists());
    }
}
