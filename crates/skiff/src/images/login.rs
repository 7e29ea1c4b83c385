//! `skiff login SERVER`, `logout`: who a user is to a registry, kept where Docker and Podman keep it.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use skiff_cli::LoginArgs;
use skiff_output as output;
use skiff_registry::auth::{self, Credential, Credentials, Secret};
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{Certificates, Client, ClientSettings};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_store::ours;
use skiff_sys::IgnoreError;
use skiff_sys::signal::{Signals, die_by};

/// What ends a program by default and comes from a terminal or from whoever wants it gone.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// `skiff login`: asks the server before it remembers anything.
pub fn login(server: &str, login: &LoginArgs) -> Result<()> {
    let user = match &login.username {
        Some(user) => user.clone(),
        None => ask("Username: ")?,
    };
    let password = match (&login.password_stdin, &login.password_file) {
        (true, _) => first_line(&mut std::io::stdin().lock())?,
        (false, Some(file)) => {
            let what = || file.display().to_string();
            first_line(&mut BufReader::new(File::open(file).context(what)?))?
        }
        (false, None) => ask_hidden("Password: ")?,
    };
    let password = Secret(password);
    let conf = RegistriesConf::load().map_err(ours)?;
    let certificates = Certificates::of_user(|_| true).map_err(ours)?;
    let settings = ClientSettings { certificates, ..ClientSettings::default() };
    let client = Client::new(settings, conf, Credentials::default());
    let server = server.trim_end_matches('/');
    let credential = Credential::Basic { user: user.clone(), password: password.clone() };
    client.check_login(server.split('/').next().unwrap_or(server), &credential).map_err(ours)?;
    let place = auth::save(server, &user, &password).map_err(ours)?;
    if login.json {
        return output::json(
            &serde_json::json!({"server": server, "username": user, "remembered_in": place}),
        );
    }
    output::note(&format!("logged in to {server} as {user}; remembered in {place}"));
    Ok(())
}

/// `skiff logout`.
pub fn logout(server: &str, json: bool) -> Result<()> {
    let places = auth::forget(server.trim_end_matches('/')).map_err(ours)?;
    if places.is_empty() {
        return Err(Error::new(format!("{server}: you are not logged in there"))
            .hint("servers are named as at login"));
    }
    if json {
        return output::json(&serde_json::json!({"server": server, "forgotten_in": places}));
    }
    output::note(&format!("forgotten in {}", places.join(", ")));
    Ok(())
}

fn first_line(from: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    from.take(1 << 16).read_line(&mut line).context(|| "password")?;
    let line = line.trim_end_matches(['\n', '\r']).to_owned();
    if line.is_empty() {
        return Err(Error::new("password: empty").hint("the first line counts"));
    }
    Ok(line)
}

/// Asks at the terminal, whatever standard input is.
fn ask(question: &str) -> Result<String> {
    let terminal = terminal()?;
    say(&terminal, question)?;
    first_line(&mut BufReader::new(&terminal))
}

/// The same, without showing what is typed. Whoever ends us instead of answering gets their terminal back as it was.
fn ask_hidden(question: &str) -> Result<String> {
    let terminal = terminal()?;
    let signals = Signals::block(&[]).context(|| "signals")?;
    let hidden = Hidden::new(&terminal)?;
    say(&terminal, question)?;
    loop {
        let mut fds = [PollFd::new(&terminal, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context(|| "terminal"),
        }
        let is_typed = !fds[0].revents().is_empty();
        let came = signals.next().context(|| "signals")?.map(|signal| signal.number);
        if let Some(number) = came.filter(|number| ENDING.map(Signal::as_raw).contains(number)) {
            drop(hidden);
            die_by(number);
        }
        if is_typed {
            break;
        }
    }
    let answer = first_line(&mut BufReader::new(&terminal));
    drop(hidden);
    signals.end();
    answer
}

fn terminal() -> Result<File> {
    let terminal = File::options().read(true).write(true).open("/dev/tty").ok().filter(File::is_terminal);
    terminal.ok_or_else(|| {
        Error::new("there is no terminal to ask at")
            .hint("--username NAME, --password-stdin or --password-file FILE")
    })
}

fn say(mut terminal: &File, text: &str) -> Result<()> {
    terminal.write_all(text.as_bytes()).context(|| "terminal")
}

/// As long as it lives, nothing that is typed is shown.
struct Hidden<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Hidden<'a> {
    fn new(terminal: &'a File) -> Result<Self> {
        let before = tcgetattr(terminal).context(|| "terminal")?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(terminal, OptionalActions::Flush, &quiet).context(|| "terminal")?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        tcsetattr(self.terminal, OptionalActions::Flush, &self.before)
            .ignore_error("a terminal that is gone needs neither");
        self.terminal.write_all(b"\n").ignore_error("a terminal that is gone needs no new line");
    }
}
