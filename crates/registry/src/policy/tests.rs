use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use skiff_sys::IgnoreError;

use super::*;

struct Signer(EcdsaKeyPair);

impl Signer {
    fn new() -> Signer {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).expect("a key");
        Signer(
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random)
                .expect("a key"),
        )
    }

    /// As a policy has it in `keyData`.
    fn key_data(&self) -> String {
        let header = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE";
        let mut der = BASE64_STANDARD.decode(header).expect("the header");
        der.pop();
        der.extend_from_slice(self.0.public_key().as_ref());
        let pem = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            BASE64_STANDARD.encode(der)
        );
        BASE64_STANDARD.encode(pem)
    }

    fn sign(&self, payload: &Value) -> Signature {
        let payload = payload.to_string().into_bytes();
        let signature = self.0.sign(&SystemRandom::new(), &payload).expect("a signature");
        Signature { payload, signature: signature.as_ref().to_vec() }
    }
}

fn digest(digit: char) -> Digest {
    format!("sha256:{}", digit.to_string().repeat(64)).parse().expect("a digest")
}

fn payload(digest: Digest, name: &str) -> Value {
    json!({
        "critical": {
            "type": "cosign container image signature",
            "image": {"docker-manifest-digest": digest.to_string()},
            "identity": {"docker-reference": name}
        },
        "optional": {"creator": "x"}
    })
}

fn policy(json: &Value) -> Policy {
    Policy::parse("t", json.to_string().as_bytes()).expect("a policy")
}

fn named(text: &str) -> Named {
    text.parse().expect("a name")
}

/// The answer of a policy for an image with these signatures.
fn verdict(policy: &Policy, image: &str, signatures: &[Signature]) -> Result<(), String> {
    let image = named(image);
    policy
        .for_image(&image)
        .iter()
        .try_for_each(|r| r.is_met(&image, &[digest('a'), digest('b')], signatures))
}

#[test]
fn the_narrowest_scope_decides() {
    let (accept, reject) = (json!([{"type": "insecureAcceptAnything"}]), json!([{"type": "reject"}]));
    let policy = policy(&json!({
        "default": reject,
        "transports": {
            "docker": {
                "docker.io": accept, "docker.io/library/debian": reject, "docker.io/library/debian:12": accept,
                "quay.io/team": accept, "quay.io/team/secret": reject, "*.site.example": accept,
                "a.site.example": reject, "localhost:5000": accept
            },
            "oci": {"/images": accept, "/images/bad": reject},
            "dir": {"": accept}
        }
    }));
    for (image, is_accepted) in [
        ("debian:12", true),
        ("debian:11", false),
        ("debian", false),
        ("alpine", true),
        ("quay.io/team/tool", true),
        ("quay.io/team/secret", false),
        ("quay.io/teams/tool", false),
        ("b.site.example/x", true),
        ("b.c.site.example:99/x", true),
        ("a.site.example/x", false),
        ("site.example/x", false),
        ("localhost:5000/x", true),
        ("localhost:50000/x", false),
    ] {
        assert_eq!(verdict(&policy, image, &[]).is_ok(), is_accepted, "{image}");
    }
    let policies = Policies::of(vec![policy]);
    for (transport, path, is_accepted) in [
        ("oci", Some("/images/x"), true),
        ("oci", Some("/images/bad/x"), false),
        ("oci", Some("/other"), false),
        ("oci", None, false),
        ("dir", Some("/other"), true),
        ("dir", None, true),
        ("docker-archive", Some("/x.tar"), false),
        ("docker-archive", None, false),
    ] {
        let verdict = policies.admit_file(transport, path.map(Path::new));
        assert_eq!(verdict.is_ok(), is_accepted, "{transport}:{path:?}");
    }
    assert!(Policies::default().admit_file("oci", None).is_ok(), "no policy demands nothing");
}

#[test]
fn a_signature_counts_for_its_key_its_image_and_its_name() {
    let (ours, others) = (Signer::new(), Signer::new());
    let demand = |more: Value| {
        let mut requirement = json!({"type": "sigstoreSigned", "keyData": ours.key_data()});
        requirement.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        policy(&json!({"default": [requirement]}))
    };
    let plain = demand(json!({}));
    let name = "docker.io/library/debian:12";
    let good = ours.sign(&payload(digest('a'), name));
    assert_eq!(verdict(&plain, "debian:12", std::slice::from_ref(&good)), Ok(()));
    assert_eq!(verdict(&plain, "debian:12", &[ours.sign(&payload(digest('b'), "debian:12"))]), Ok(()));

    let mut changed = good.clone();
    changed.payload.push(b' ');
    let mut critical = payload(digest('a'), name);
    critical["critical"]["more"] = json!(1);
    let mut kind = payload(digest('a'), name);
    kind["critical"]["type"] = json!("another");
    for (signatures, word) in [
        (vec![], "no signature"),
        (vec![others.sign(&payload(digest('a'), name))], "not by one of the keys"),
        (vec![changed], "not by one of the keys"),
        (vec![Signature { payload: vec![], signature: vec![] }], "not by one of the keys"),
        (vec![ours.sign(&payload(digest('c'), name))], "another image"),
        (vec![ours.sign(&payload(digest('a'), "debian:11"))], "for the name docker.io/library/debian:11"),
        (vec![ours.sign(&payload(digest('a'), "docker.io/library/debian"))], "for the name"),
        (vec![ours.sign(&payload(digest('a'), "No Name"))], "for no image"),
        (vec![ours.sign(&critical)], "not understood"),
        (vec![ours.sign(&kind)], "of the type"),
    ] {
        let why = verdict(&plain, "debian:12", &signatures).expect_err(word);
        assert!(why.contains(word), "{why}");
    }
    let one_of_many = [others.sign(&payload(digest('a'), name)), good];
    assert_eq!(verdict(&plain, "debian:12", &one_of_many), Ok(()));
}

#[test]
fn names_must_agree_as_the_policy_says() {
    let exact = |name: &str| IdentityMatch::ExactReference(named(name));
    let remap = |prefix: &str, signed: &str| IdentityMatch::Remap {
        prefix: prefix.into(),
        signed_prefix: signed.into(),
    };
    let pinned = format!("q.io/t/x@{}", digest('a'));
    for (identity, asked, signed, agree) in [
        (IdentityMatch::Exact, "q.io/t/x:1", "q.io/t/x:1", true),
        (IdentityMatch::Exact, "q.io/t/x:1", "q.io/t/x:2", false),
        (IdentityMatch::Exact, &pinned, "q.io/t/x:1", false),
        (IdentityMatch::RepoDigestOrExact, &pinned, "q.io/t/x:1", true),
        (IdentityMatch::RepoDigestOrExact, &pinned, "q.io/t/y:1", false),
        (IdentityMatch::RepoDigestOrExact, "q.io/t/x:1", "q.io/t/x", false),
        (IdentityMatch::Repository, "q.io/t/x:1", "q.io/t/x", true),
        (IdentityMatch::Repository, "q.io/t/x:1", "q.io/t/xy", false),
        (exact("q.io/t/x:9"), "other.io/z", "q.io/t/x:9", true),
        (exact("q.io/t/x:9"), "other.io/z", "q.io/t/x:8", false),
        (IdentityMatch::ExactRepository("q.io/t/x".into()), "other.io/z:1", "q.io/t/x:8", true),
        (IdentityMatch::ExactRepository("q.io/t/x".into()), "other.io/z:1", "q.io/t/y:8", false),
        (remap("mirror.io", "q.io"), "mirror.io/t/x:1", "q.io/t/x:1", true),
        (remap("mirror.io", "q.io"), "mirror.iox/t/x:1", "q.iox/t/x:1", false),
        (remap("mirror.io/a", "q.io/b"), "mirror.io/a/x:1", "q.io/b/x:1", true),
        (remap("mirror.io/a", "q.io/b"), "mirror.io/ab/x:1", "q.io/bb/x:1", false),
        (remap("mirror.io", "q.io"), "other.io/x:1", "other.io/x:1", true),
    ] {
        assert_eq!(identity.matches(&named(asked), &named(signed)), agree, "{identity:?} {asked} {signed}");
    }
}

#[test]
fn what_is_not_understood_refuses() {
    let key = Signer::new().key_data();
    let signed = |more: Value| {
        let mut requirement = json!({"type": "sigstoreSigned"});
        requirement.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        requirement
    };
    for requirement in [
        json!({"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/x"}),
        json!({"type": "insecureAcceptAnything", "unless": "x"}),
        json!({"type": "accept"}),
        json!({}),
        signed(json!({})),
        signed(json!({"keyData": key, "keyPath": "/x"})),
        signed(json!({"keyData": "!"})),
        signed(json!({"keyData": BASE64_STANDARD.encode("no PEM")})),
        signed(json!({"keyDatas": []})),
        signed(json!({"keyPath": "/nonexistent/key.pub"})),
        signed(json!({"keyData": key, "rekorPublicKeyData": "x"})),
        signed(json!({"fulcio": {}})),
        signed(json!({"keyData": key, "signedIdentity": {"type": "matchAny"}})),
        signed(json!({"keyData": key, "signedIdentity": {"type": "matchExact", "x": 1}})),
        signed(json!({"keyData": key, "signedIdentity": {"type": "exactReference"}})),
        signed(
            json!({"keyData": key, "signedIdentity": {"type": "remapIdentity", "prefix": "", "signedPrefix": "x"}}),
        ),
    ] {
        let policy = policy(&json!({"default": [{"type": "insecureAcceptAnything"}, requirement]}));
        let why = verdict(&policy, "debian", &[]).expect_err("must be refused");
        assert!(why.contains("not understood"), "{requirement}: {why}");
        // Elsewhere it does no harm.
        assert!(Policies::of(vec![policy]).admit_file("oci", Some(Path::new("/x"))).is_err());
    }
    for text in [
        "{}",
        r#"{"default": []}"#,
        r#"{"default": [{"type": "reject"}], "more": 1}"#,
        r#"{"default": [{"type": "reject", "type": "insecureAcceptAnything"}]}"#,
        r#"{"default": [{"type": "reject"}], "transports": {"docker": {"": []}}}"#,
        r#"{"default": [{"type": "reject"}], "transports": {"docker": {"a": [{}], "a": [{}]}}}"#,
        "[]",
        "x",
    ] {
        assert!(Policy::parse("t", text.as_bytes()).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_policy_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        Policy::parse("t", &bytes).ignore_error("only a panic counts");
        read_payload(&bytes).ignore_error("only a panic counts");
        PublicKey::from_pem(&bytes).ignore_error("only a panic counts");
    }
}
