//! `skiff push`: an image of the user's, by their own process and with their own login, to a registry.

use std::cell::RefCell;
use std::io::{Cursor, Read};
use std::str::FromStr;
use std::time::{Duration, Instant};

use skiff_cli::{PushArgs, ShownArgs};
use skiff_image::export::{ImageBlobs, OpenImage};
use skiff_oci::digest::Digest;
use skiff_oci::reference::{ImageReference, Named};
use skiff_output as output;
use skiff_plan::progress::PullProgress;
use skiff_registry::auth::Credentials;
use skiff_registry::registries_conf::RegistriesConf;
use skiff_registry::{Certificates, Client, ClientSettings, Upload};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_store::file::parse;
use skiff_store::index::ImageName;
use skiff_store::protocol::LayerState;
use skiff_store::{client, find, ours};
use skiff_user::context::UserContext;

/// Between two pictures of how far it is.
const PAUSE: Duration = Duration::from_millis(100);

/// Pushes the image; prints its digest in the registry.
pub fn push(args: &PushArgs) -> Result<()> {
    let PushArgs { shown: ShownArgs { quiet, progress, json }, image, destination } = args;
    let context = UserContext::load()?;
    let entry = find(&context, image)?;
    let to = place(&entry, image, destination.as_deref())?;
    let client = registries()?;
    let open = client::open_image(&context, &entry)?;
    if !quiet {
        output::note(&format!("reading the files of {image}"));
    }
    let blobs = open.blobs().map_err(ours)?;
    let shown = Shown::new(PullProgress::new(*progress, *quiet), &blobs);
    let from = Named::from_str(&entry.reference).ok().filter(|named| !named.is_local());
    let sent = bring(&client, (&to, from.as_ref()), &open, &blobs, &shown);
    shown.end();
    let sent = sent?;
    blobs.left_out.notes().iter().for_each(|text| output::note(text));
    let digest = blobs.digest.to_string();
    match json {
        true => {
            output::json(&serde_json::json!({"image": image, "destination": to.to_string(), "digest": digest,
            "bytes_sent": sent, "sockets_left_out": blobs.left_out.sockets}))
        }
        false => output::line(&digest),
    }
}

/// Sends what the registry lacks; how many bytes of blobs that were.
fn bring(
    client: &Client,
    (to, from): (&Named, Option<&Named>),
    image: &OpenImage,
    blobs: &ImageBlobs,
    shown: &Shown,
) -> Result<u64> {
    let read_layer = |begin| Ok(Box::new(image.layer_from(begin)?) as Box<dyn Read>);
    let read_config = |begin| {
        let mut config = Cursor::new(blobs.config.clone());
        config.set_position(begin);
        Ok(Box::new(config) as Box<dyn Read>)
    };
    let (layer_sent, config_sent) = (|at| shown.sent(0, at), |at| shown.sent(1, at));
    let config_size = blobs.config.len() as u64;
    let uploads = [
        Upload { digest: blobs.layer, size: blobs.layer_size, read: &read_layer, sent: &layer_sent },
        Upload { digest: blobs.config_digest, size: config_size, read: &read_config, sent: &config_sent },
    ];
    let manifest = (ImageBlobs::MEDIA_TYPE, &blobs.manifest[..]);
    client.push(to, from, &uploads, manifest).map(|pushed| pushed.sent).map_err(ours)
}

/// Asks registries as the user.
fn registries() -> Result<Client> {
    let conf = RegistriesConf::load().map_err(ours)?;
    let certificates = Certificates::of_user(|_| true).map_err(ours)?;
    let settings = ClientSettings { certificates, ..ClientSettings::default() };
    Ok(Client::new(settings, conf, Credentials::load().map_err(ours)?))
}

/// Where the image goes: where the user says, else where its own name says.
fn place(entry: &ImageName, image: &str, destination: Option<&str>) -> Result<Named> {
    let refuse = |name: &str, why: &str| {
        let hint = format!("name the registry: skiff push {image} SERVER/NAME:TAG");
        Err(Error::new(format!("push to {name}: {why}")).hint(hint))
    };
    let name = destination.unwrap_or(&entry.reference);
    let named = match parse(name) {
        Ok(ImageReference::Registry(named)) => named,
        Ok(ImageReference::Short(_)) => return refuse(name, "this names no registry"),
        Ok(_) => return refuse(name, "this names a file"),
        Err(e) if destination.is_some() => return Err(e.into()),
        Err(_) => return refuse(name, "this names no registry"),
    };
    if named.is_local() {
        return refuse(name, "no registry has names of localhost/");
    }
    if named.digest().is_some() {
        return refuse(name, "an image's digest follows from what is in it");
    }
    Ok(named.with_default_tag())
}

/// How far it is, as the user wants to see it.
struct Shown(RefCell<State>);

struct State {
    progress: PullProgress,
    blobs: [LayerState; 2],
    told: Instant,
}

impl Shown {
    fn new(progress: PullProgress, blobs: &ImageBlobs) -> Self {
        let state =
            |digest: Digest, size| LayerState { digest: digest.to_string(), size, fetched: 0, unpacked: 0 };
        let blobs =
            [state(blobs.layer, blobs.layer_size), state(blobs.config_digest, blobs.config.len() as u64)];
        Self(RefCell::new(State { progress, blobs, told: Instant::now() }))
    }

    fn sent(&self, blob: usize, bytes: u64) {
        let State { progress, blobs, told } = &mut *self.0.borrow_mut();
        blobs[blob].fetched = bytes;
        blobs[blob].unpacked = bytes;
        if told.elapsed() >= PAUSE {
            *told = Instant::now();
            progress.layers(&blobs[..]);
        }
    }

    fn end(&self) {
        self.0.borrow_mut().progress.end();
    }
}

#[cfg(test)]
mod tests {
    use skiff_spec::image::ImageId;

    use super::*;

    #[test]
    fn where_an_image_goes() {
        let entry = |reference: &str| ImageName {
            reference: reference.into(),
            id: ImageId([1; 32]),
            pulled: 1,
            size: 1,
            config: serde_json::json!({}),
            origin: None,
        };
        for (own, destination, to) in [
            ("r.example/a/b:1", None, Some("r.example/a/b:1")),
            ("docker.io/library/debian:12", None, Some("docker.io/library/debian:12")),
            ("localhost/web:2", Some("r.example/web"), Some("r.example/web:latest")),
            ("localhost/web:2", Some("docker://r.example:5000/web:3"), Some("r.example:5000/web:3")),
            ("localhost/web:2", None, None),
            ("/srv/x.sqsh", None, None),
            (
                "r.example/a@sha256:0101010101010101010101010101010101010101010101010101010101010101",
                None,
                None,
            ),
            ("r.example/a/b:1", Some("web:3"), None),
            ("r.example/a/b:1", Some("oci:/srv/x"), None),
            ("r.example/a/b:1", Some("localhost/web:3"), None),
            ("r.example/a/b:1", Some("R/x y"), None),
        ] {
            let found = place(&entry(own), "web", destination);
            if let Err(e) = &found {
                assert!(!e.hint.is_empty(), "{own} {destination:?}: {e}");
            }
            assert_eq!(found.ok().map(|named| named.to_string()).as_deref(), to, "{own} {destination:?}");
        }
    }
}
