//! The user's way to the store: the trusted one through the helper, or one of his own.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use skiff_image::auth::{Credential, Credentials};
use skiff_image::registries_conf::RegistriesConf;
use skiff_sandbox::helper::Helper;
use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::reference::{ImageReference, Named};
use skiff_spec::wire::Request;

use super::wire::{self, Ask, Login, Say};
use super::{ours, writer};
use crate::context::Context;

/// Has the store's writer do something; `heard` gets what it says on the way, and the last word is given.
pub fn ask(context: &Context, ask: Ask, heard: &mut (dyn FnMut(Say) + Send)) -> Result<Say> {
    match &context.helper {
        Some(helper) => ask_trusted(helper, &ask, heard),
        None => ask_own(context, ask, heard),
    }
}

fn ask_trusted(program: &std::path::Path, ask: &Ask, heard: &mut (dyn FnMut(Say) + Send)) -> Result<Say> {
    let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let helper = Helper::spawn_with(program, &[], &env)?;
    let (mut ours, theirs) = UnixStream::pair().context(|| "socket to the store's writer")?;
    helper.ask(Request::Store, &[theirs.as_fd()])?;
    drop(theirs);
    helper.answer()?;
    wire::send(&mut ours, ask)?;
    let mut last = None;
    while let Some(word) = wire::receive(&mut ours)? {
        match word {
            Say::Failed { message, hint } => return Err(Error { message, hint }),
            Say::Waiting | Say::Layers(_) | Say::Lines(_) => heard(word),
            word => last = Some(word),
        }
    }
    helper.finish();
    last.ok_or_else(|| {
        Error::new("the store's writer ended without a word")
            .hint("was it killed? what was fetched is kept: try again")
    })
}

fn ask_own(context: &Context, ask: Ask, heard: &mut (dyn FnMut(Say) + Send)) -> Result<Say> {
    let mut last = None;
    let mut say = |word: Say| {
        match word {
            Say::Waiting | Say::Layers(_) | Say::Lines(_) => heard(word),
            word => last = Some(word),
        }
        true
    };
    writer::answer(&context.data().join("store"), context.uid, ask, &mut say)?;
    last.ok_or_else(|| Error::new("the store has nothing to say"))
}

/// Lets go of what is no longer in the trusted store.
pub fn release(context: &Context) -> Result<()> {
    let Some(helper) = &context.helper else { return Ok(()) };
    let helper = Helper::spawn(helper)?;
    helper.ask(Request::Release, &[])?;
    helper.answer()?;
    helper.finish();
    Ok(())
}

/// What a pull needs to know of the user: his registries, and his credentials for those that the image may be in.
pub fn pull(reference: &str, platform: &str) -> Result<Ask> {
    let registries = RegistriesConf::texts().map_err(ours)?;
    let mut conf = RegistriesConf::default();
    registries.iter().try_for_each(|(file, text)| conf.add(file, text)).map_err(ours)?;
    let names: Vec<Named> = match super::parse(reference)? {
        ImageReference::Registry(named) => vec![named],
        ImageReference::Short(short) => conf.candidates(&short).map_err(ours)?,
        _ => {
            return Err(Error::new(format!("image {reference}: not in a registry"))
                .hint("`skiff import` takes files"));
        }
    };
    let credentials = Credentials::load().map_err(ours)?;
    let mut logins = vec![];
    for name in &names {
        for endpoint in conf.endpoints(name).map_err(ours)? {
            let place = format!("{}/{}", endpoint.server, endpoint.repository);
            logins.extend(match credentials.find(&endpoint.server, &endpoint.repository).map_err(ours)? {
                Some(Credential::Basic { user, password }) => {
                    Some(Login { place, basic: Some((user, password.0)), identity_token: None })
                }
                Some(Credential::IdentityToken(token)) => {
                    Some(Login { place, basic: None, identity_token: Some(token.0) })
                }
                None => None,
            });
        }
    }
    Ok(Ask::Pull { reference: reference.into(), platform: platform.into(), registries, logins })
}
