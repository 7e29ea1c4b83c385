//! What to show to a server that asks who we are: a name and password, or a token that its token service gives out.
//!
//! <https://distribution.github.io/distribution/spec/auth/token/>, `.../auth/oauth/`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use ureq::http::{Method, Uri};

use super::challenge::Challenge;
use super::failure::Failure;
use super::http::{Http, HttpRequest, RequestBody, authority, read_body, status_failure};
use crate::auth::Credential;

/// No token's answer is longer, in bytes.
const MAX_ANSWER: u64 = 1 << 20;

/// Who asks for what.
pub(super) struct Asker<'a> {
    /// What is to be allowed: `repository:NAME:pull`; nothing where only a login is tried.
    pub scopes: &'a [String],
    pub credential: Option<&'a Credential>,
    /// Whether a token service without TLS will do.
    pub insecure: bool,
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

/// The value of `Authorization` that meets one of the challenges.
pub(super) fn authorization(
    http: &Http,
    challenges: &[Challenge],
    asker: &Asker<'_>,
) -> Result<String, Failure> {
    if let Some(bearer) = challenges.iter().find(|c| c.scheme == "bearer") {
        return Ok(format!("Bearer {}", token(http, bearer, asker)?));
    }
    if challenges.is_empty() {
        return Err(Failure::Unauthorized("it refuses, and does not say what it wants".into()));
    }
    if !challenges.iter().any(|c| c.scheme == "basic") {
        let offered: Vec<_> = challenges.iter().map(|c| c.scheme.as_str()).collect();
        return Err(Failure::Nonsense(format!(
            "it wants authentication of an unknown kind: {}",
            offered.join(", ")
        )));
    }
    match asker.credential {
        Some(Credential::Basic { user, password }) => Ok(basic(user, &password.0)),
        Some(Credential::IdentityToken(_)) => {
            Err(Failure::Unauthorized("it wants a password, and only an identity token is stored".into()))
        }
        None => Err(Failure::Unauthorized("it wants a login".into())),
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

fn token(http: &Http, challenge: &Challenge, asker: &Asker<'_>) -> Result<String, Failure> {
    let ask = token_request(challenge, asker)?;
    let service = authority(&ask.uri).to_owned();
    let at = |failure: Failure| match failure {
        Failure::Connection(why) => Failure::Connection(format!("token service: {why}")),
        Failure::Unresolved(why) => Failure::Unresolved(format!("token service: {why}")),
        Failure::Unanswered(why) => Failure::Unanswered(format!("token service: {why}")),
        other => other,
    };
    let (response, _) = http.send(&ask, asker.insecure).map_err(at)?;
    match response.status().as_u16() {
        200..=299 => {}
        401 | 403 | 400 => {
            let Failure::Status { message, .. } = status_failure(response) else { unreachable!("a status") };
            let who = if asker.credential.is_some() { "the stored login" } else { "an anonymous request" };
            let why = if message.is_empty() { String::new() } else { format!(": {message}") };
            return Err(Failure::Unauthorized(format!("its token service refuses {who}{why}")));
        }
        _ => return Err(status_failure(response)),
    }
    let bytes = read_body(response, MAX_ANSWER, &service)?;
    parse_token(&bytes).ok_or_else(|| Failure::Nonsense(format!("the token service {service} gave no token")))
}

/// The token in a token service's answer, if it can be put into a header.
pub fn parse_token(answer: &[u8]) -> Option<String> {
    let Answer { token, access_token } = serde_json::from_slice(answer).ok()?;
    let token = token.or(access_token)?;
    (!token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic())).then_some(token)
}

fn token_request(challenge: &Challenge, asker: &Asker<'_>) -> Result<HttpRequest<'static>, Failure> {
    let parameter = |name: &str| challenge.parameters.get(name).map(String::as_str);
    let realm = parameter("realm").unwrap_or_default();
    let bad = || Failure::Nonsense(format!("its token service {realm:?} is no URL"));
    let service: Uri = realm.parse().map_err(|_| bad())?;
    let host = service.host().filter(|host| !host.is_empty()).ok_or_else(bad)?;
    match service.scheme_str() {
        Some("https") => {}
        Some("http") if asker.insecure || super::is_loopback(host) => {}
        // Whoever changes the challenge on the way would get the password.
        Some("http") => {
            return Err(Failure::Certificate(format!("its token service {realm} is without TLS")));
        }
        _ => return Err(bad()),
    }
    let mut query = vec![];
    query.extend(parameter("service").map(|service| ("service", service)));
    query.extend(asker.scopes.iter().map(|scope| ("scope", scope.as_str())));
    if let Some(Credential::IdentityToken(token)) = asker.credential {
        query.extend([("grant_type", "refresh_token"), ("client_id", "skiff"), ("refresh_token", &token.0)]);
        return Ok(HttpRequest {
            method: Method::POST,
            content: RequestBody::Form(encoded(&query)),
            ..HttpRequest::get(service)
        });
    }
    let authorization = match asker.credential {
        Some(Credential::Basic { user, password }) => {
            query.push(("account", user));
            Some(basic(user, &password.0))
        }
        _ => None,
    };
    let join = if realm.contains('?') { '&' } else { '?' };
    let uri = format!("{realm}{join}{}", encoded(&query)).parse().map_err(|_| bad())?;
    Ok(HttpRequest { authorization, ..HttpRequest::get(uri) })
}

/// As forms are written (WHATWG URL, application/x-www-form-urlencoded).
fn encoded(pairs: &[(&str, &str)]) -> String {
    let escape = |text: &str| -> String {
        let byte = |b: u8| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        };
        text.bytes().map(byte).collect()
    };
    pairs.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Secret;
    use crate::challenge;

    fn request(
        header: &str,
        credential: Option<&Credential>,
        insecure: bool,
    ) -> Result<HttpRequest<'static>, Failure> {
        let asker = Asker { scopes: &["repository:a/b:pull".into()], credential, insecure };
        token_request(&challenge::parse(header)[0], &asker)
    }

    #[test]
    fn what_is_asked_of_a_token_service() {
        let header = r#"Bearer realm="https://t.example/token?x=1",service="the registry",scope="other""#;
        let ask = request(header, None, false).expect("sound");
        let uri = "https://t.example/token?x=1&service=the%20registry&scope=repository%3Aa%2Fb%3Apull";
        assert_eq!((ask.uri.to_string().as_str(), ask.authorization), (uri, None));

        let user = Credential::Basic { user: "alice".into(), password: Secret("pw".into()) };
        let ask = request(header, Some(&user), false).expect("sound");
        assert!(ask.uri.to_string().ends_with("&account=alice"));
        assert_eq!(ask.authorization.as_deref(), Some("Basic YWxpY2U6cHc="));

        let ask =
            request(header, Some(&Credential::IdentityToken(Secret("r&t".into()))), false).expect("sound");
        assert_eq!(ask.method, Method::POST);
        assert!(matches!(ask.content, RequestBody::Form(form) if form.ends_with("&refresh_token=r%26t")));
    }

    #[test]
    fn no_password_goes_where_all_can_read_it() {
        let header = r#"Bearer realm="http://t.example/token""#;
        assert!(matches!(request(header, None, false), Err(Failure::Certificate(_))));
        assert!(request(header, None, true).is_ok());
        assert!(request(r#"Bearer realm="http://127.0.0.1:1/token""#, None, false).is_ok());
        for nonsense in
            [r#"Bearer realm="ftp://t/x""#, r#"Bearer realm="""#, "Bearer x=y", r#"Bearer realm="/x""#]
        {
            assert!(request(nonsense, None, true).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn only_what_fits_a_header_is_a_token() {
        assert_eq!(parse_token(br#"{"token":"a.b","expires_in":60}"#).as_deref(), Some("a.b"));
        assert_eq!(parse_token(br#"{"access_token":"c"}"#).as_deref(), Some("c"));
        for bad in [&b"{}"[..], br#"{"token":""}"#, br#"{"token":"a\nX: y"}"#, b"x", br#"{"token":7}"#] {
            assert_eq!(parse_token(bad), None);
        }
    }
}
