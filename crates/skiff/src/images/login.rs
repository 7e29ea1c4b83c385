//! `skiff login SERVER`, `logout`: who a user is to a registry, kept where Docker and Podman keep it.

use std::io::{BufRead, IsTerminal, Read, Write};

use skiff_image::auth::{self, Credential, Credentials, Secret};
use skiff_image::registries_conf::RegistriesConf;
use skiff_image::registry::{Certificates, Client, Settings};
use skiff_sandbox::{Context as _, Error, Result};

use super::ours;
use crate::cli::Login;
use crate::output;

/// `skiff login`: asks the server before it remembers anything.
pub fn login(server: &str, login: &Login) -> Result<()> {
    let user = match &login.username {
        Some(user) => user.clone(),
        None => prompt("Username: ", true)?,
    };
    let password = match (&login.password_stdin, &login.password_file) {
        (true, _) => first_line(&mut std::io::stdin().lock())?,
        (false, Some(file)) => {
            let what = || file.display().to_string();
            first_line(&mut std::io::BufReader::new(std::fs::File::open(file).context(what)?))?
        }
        (false, None) => prompt("Password: ", false)?,
    };
    let password = Secret(password);
    let conf = RegistriesConf::load().map_err(ours)?;
    let certificates = Certificates::of_user(|_| true).map_err(ours)?;
    let settings = Settings { certificates, ..Settings::default() };
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
fn prompt(question: &str, echo: bool) -> Result<String> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let mut terminal =
        std::fs::OpenOptions::new().read(true).write(true).open("/dev/tty").ok().filter(|t| t.is_terminal());
    let Some(terminal) = &mut terminal else {
        return Err(Error::new("there is no terminal to ask at")
            .hint("--username NAME, --password-stdin or --password-file FILE"));
    };
    terminal.write_all(question.as_bytes()).context(|| "terminal")?;
    let before = tcgetattr(&*terminal).context(|| "terminal")?;
    if !echo {
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&*terminal, OptionalActions::Flush, &quiet).context(|| "terminal")?;
    }
    let read = first_line(&mut std::io::BufReader::new(&*terminal));
    if !echo {
        tcsetattr(&*terminal, OptionalActions::Flush, &before).context(|| "terminal")?;
        terminal.write_all(b"\n").context(|| "terminal")?;
    }
    read
}
