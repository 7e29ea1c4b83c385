//! What servers, repositories and tags may be called: the grammar of distribution/reference.

use super::{DEFAULT_SERVER, ReferencePart};

/// A repository's longest name.
pub(super) const MAX_REPOSITORY: usize = 255;

/// The part that is wrong, and what is wrong with it.
pub(super) type BadPart = (ReferencePart, &'static str);

/// The first component is a server if it cannot be a repository: a dot, a colon, a bracket, capitals, or `localhost`.
pub(super) fn split_server(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':', '['])
                || first == "localhost"
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (Some(first), rest)
        }
        _ => (None, name),
    }
}

/// Docker Hub has an old second name, and keeps its own images in `library`.
pub(super) fn normal(server: &str, repository: &str) -> (String, String) {
    let server = if server == "index.docker.io" { DEFAULT_SERVER } else { server };
    let official = server == DEFAULT_SERVER && !repository.contains('/');
    (server.into(), if official { format!("library/{repository}") } else { repository.into() })
}

/// Server and repository, each held to the grammar.
pub(super) fn check_name(server: &str, repository: &str) -> Result<(), BadPart> {
    check_server(server)?;
    check_repository(repository)?;
    // As long as it is in full: that is what is shown, and must be readable again.
    if normal(server, repository).1.len() > MAX_REPOSITORY {
        return Err((ReferencePart::Repository, "is longer than 255 characters, with library/ before it"));
    }
    Ok(())
}

fn check_server(server: &str) -> Result<(), BadPart> {
    let refuse = |reason| Err((ReferencePart::Server, reason));
    if server.is_empty() {
        return refuse("is empty");
    }
    if server.len() > 255 {
        return refuse("is longer than 255 characters");
    }
    let (host, port) = if let Some(rest) = server.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else {
            return refuse("has no ']' after its IPv6 address");
        };
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return refuse("is not an IPv6 address in [ ]");
        }
        (None, port)
    } else {
        let end = server.find(':').unwrap_or(server.len());
        (Some(&server[..end]), &server[end..])
    };
    let label = |l: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !l.is_empty() && l.bytes().all(inner) && !l.starts_with('-') && !l.ends_with('-')
    };
    if !host.is_none_or(|host| host.split('.').all(label)) {
        return refuse("must be a host name of letters, digits, '-' and '.'");
    }
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok(()),
        Some(port) if port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit()) => {
            if matches!(port.parse::<u16>(), Ok(1..)) {
                Ok(())
            } else {
                refuse("has a port beyond 1 to 65535")
            }
        }
        _ => refuse("must end in :PORT, a number"),
    }
}

fn check_repository(repository: &str) -> Result<(), BadPart> {
    let refuse = |reason| Err((ReferencePart::Repository, reason));
    if repository.len() > MAX_REPOSITORY {
        return refuse("is longer than 255 characters");
    }
    if repository.bytes().any(|b| b.is_ascii_uppercase()) {
        return refuse("has capitals");
    }
    for component in repository.split('/') {
        match component.as_bytes() {
            [] => return refuse("has an empty component"),
            bytes => check_component(bytes).or_else(refuse)?,
        }
    }
    if repository.len() == 64 && repository.bytes().all(|b| b.is_ascii_hexdigit()) {
        return refuse("is a bare digest: an image's name is needed before it, and '@sha256:' between");
    }
    Ok(())
}

/// Runs of letters and digits, between them one of: '.', '_', '__', any number of '-'.
fn check_component(bytes: &[u8]) -> Result<(), &'static str> {
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if let Some(bad) = bytes.iter().find(|b| !plain(b) && !b"._-".contains(b)) {
        return Err(match bad {
            b':' => "has a colon where no tag and no port can be",
            _ => "may hold only lower-case letters, digits, '.', '_', '-' and '/'",
        });
    }
    if !bytes.first().is_some_and(plain) || !bytes.last().is_some_and(plain) {
        return Err("must begin and end with a letter or a digit, in each of its components");
    }
    let separators = bytes.split(plain).filter(|run| !run.is_empty());
    for run in separators {
        if !matches!(run, b"." | b"_" | b"__") && !run.iter().all(|b| *b == b'-') {
            return Err("has a run of separators other than '.', '_', '__' or '-'");
        }
    }
    Ok(())
}

pub(super) fn check_tag(tag: &str) -> Result<(), BadPart> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    match tag.as_bytes() {
        [] => Err((ReferencePart::Tag, "is empty")),
        bytes if bytes.len() > 128 => Err((ReferencePart::Tag, "is longer than 128 characters")),
        [first, ..] if !word(*first) => Err((ReferencePart::Tag, "must begin with a letter, a digit or '_'")),
        bytes if !bytes.iter().all(|b| word(*b) || b".-".contains(b)) => {
            Err((ReferencePart::Tag, "may hold only letters, digits, '_', '.' and '-'"))
        }
        _ => Ok(()),
    }
}
