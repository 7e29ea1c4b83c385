//! A stranger on the wire, who sees all, may send anything, and does not know the secret.

use std::cell::RefCell;

use proptest::prelude::*;

use super::*;

fn secret() -> SharedSecret {
    SharedSecret::generate().expect("random bytes")
}

/// These bytes at each length but their own, with each byte changed, and far too many.
pub(crate) fn spoilt(bytes: &[u8]) -> Vec<Vec<u8>> {
    let longer = [bytes, &[0; 4]].concat();
    let cut = (0..=longer.len()).filter(|end| *end != bytes.len()).map(|end| longer[..end].to_vec());
    let changed = (0..bytes.len()).map(|at| {
        let mut changed = bytes.to_vec();
        changed[at] ^= 1;
        changed
    });
    cut.chain(changed).chain([vec![0; 70_000]]).collect()
}

/// What goes over the wire between an agent and a head that know these secrets and words; how it ends.
fn meet(
    (agents, agents_word): (&SharedSecret, &str),
    (heads, heads_word): (&SharedSecret, &str),
    name: &str,
) -> Result<String, HandshakeError> {
    let (initiator, hello) = Initiator::begin(agents, agents_word)?;
    let (responder, answer) = Responder::begin(heads, heads_word, &hello)?;
    responder.name(&initiator.prove(&answer, name)?)
}

#[test]
fn who_knows_the_secret_gets_in() {
    let ours = secret();
    let longest = "n".repeat(255);
    for name in ["n1", "", "ü", &longest] {
        assert_eq!(meet((&ours, "visit"), (&ours, "visit"), name).as_deref(), Ok(name));
    }
    let too_long = "n".repeat(256);
    assert_eq!(meet((&ours, ""), (&ours, ""), &too_long), Err(HandshakeError::LongName(too_long.clone())));
}

#[test]
fn who_does_not_know_it_stays_out() {
    let (ours, other) = (secret(), secret());
    for (agent, head) in
        [((&other, ""), (&ours, "")), ((&ours, "a"), (&ours, "b")), ((&ours, ""), (&ours, "b"))]
    {
        assert_eq!(meet(agent, head, "n1"), Err(HandshakeError::NotProven));
    }
}

#[test]
fn a_head_that_does_not_know_it_gets_no_proof() {
    let ours = secret();
    let (initiator, hello) = Initiator::begin(&ours, "").expect("begun");
    // What was said is said again, and what another head would say.
    assert_eq!(initiator.prove(&hello, "n1"), Err(HandshakeError::NotProven));
    let (initiator, _) = Initiator::begin(&ours, "").expect("begun");
    let (_, stranger) = Initiator::begin(&secret(), "").expect("begun");
    assert_eq!(initiator.prove(&stranger, "n1"), Err(HandshakeError::NotProven));
}

/// A stranger in between answers each side with a key of their own: without the secret neither side takes it.
#[test]
fn nobody_stands_between_with_keys_of_their_own() {
    let (ours, strangers) = (secret(), secret());
    let (initiator, hello) = Initiator::begin(&ours, "").expect("begun");
    assert_eq!(Responder::begin(&strangers, "", &hello).err(), Some(HandshakeError::NotProven));
    let (_, own_hello) = Initiator::begin(&strangers, "").expect("begun");
    assert_eq!(Responder::begin(&ours, "", &own_hello).err(), Some(HandshakeError::NotProven));
    let (_, answer) = Responder::begin(&strangers, "", &own_hello).expect("the stranger's own");
    assert_eq!(initiator.prove(&answer, "n1"), Err(HandshakeError::NotProven));
}

#[test]
fn what_was_recorded_proves_nothing_later() {
    let ours = secret();
    let (initiator, hello) = Initiator::begin(&ours, "").expect("begun");
    let (first, answer) = Responder::begin(&ours, "", &hello).expect("answered");
    let proof = initiator.prove(&answer, "n1").expect("proven");
    assert_eq!(first.name(&proof).as_deref(), Ok("n1"));
    // The hello is taken again, as the head has no memory; the proof is not.
    let (again, second_answer) = Responder::begin(&ours, "", &hello).expect("answered");
    assert_ne!(second_answer, answer);
    assert_eq!(again.name(&proof), Err(HandshakeError::NotProven));
    // Nor does an answer that was recorded prove a head.
    let (initiator, _) = Initiator::begin(&ours, "").expect("begun");
    assert_eq!(initiator.prove(&answer, "n1"), Err(HandshakeError::NotProven));
}

#[test]
fn what_is_cut_longer_or_changed_is_refused() {
    let ours = secret();
    let (mut initiator, hello) = Initiator::begin(&ours, "").expect("begun");
    let (mut responder, answer) = Responder::begin(&ours, "", &hello).expect("answered");
    let not_proven = HandshakeError::NotProven;
    for bad in spoilt(&hello) {
        assert_eq!(
            Responder::begin(&ours, "", &bad).err().as_ref(),
            Some(&not_proven),
            "{} bytes",
            bad.len()
        );
    }
    for bad in spoilt(&answer) {
        assert_eq!(initiator.read(&bad).as_ref(), Err(&not_proven), "{} bytes", bad.len());
    }
    let proof = initiator.prove(&answer, "n1").expect("proven");
    for bad in spoilt(&proof) {
        assert_eq!(responder.read(&bad).as_ref(), Err(&not_proven), "{} bytes", bad.len());
    }
    assert_eq!(responder.name(&proof).as_deref(), Ok("n1"));
}

#[test]
fn no_bytes_of_a_stranger_get_in() {
    let ours = secret();
    let (initiator, hello) = Initiator::begin(&ours, "").expect("begun");
    let (responder, _) = Responder::begin(&ours, "", &hello).expect("answered");
    let (initiator, responder) = (RefCell::new(initiator), RefCell::new(responder));
    proptest!(|(bytes in proptest::collection::vec(any::<u8>(), 0..400))| {
        prop_assert_eq!(Responder::begin(&ours, "", &bytes).err(), Some(HandshakeError::NotProven));
        prop_assert_eq!(initiator.borrow_mut().read(&bytes), Err(HandshakeError::NotProven));
        prop_assert_eq!(responder.borrow_mut().read(&bytes), Err(HandshakeError::NotProven));
    });
}

/// Vectors of cacophony, another implementation of Noise: whether `snow` and our use of `ring` say what the specification does.
#[test]
fn messages_are_those_of_the_specification() {
    let bytes = |hex: &str| -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().map(|c| c.to_digit(16).expect("hex")).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    };
    let secret: SharedSecret =
        "54686973206973206d7920417573747269616e20706572737065637469766521".parse().expect("a secret");
    let with_secret = [
        "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79447c37a89fc17813788d30df2d59501d6066f5f8aecc3406bbd9829f2d24a531b1",
        "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f1448088432f29d79368ef9de4e1ae7a362fb05bf0ad668e026bf5714554497b3a720461",
        "7c01e898a6201f36aecee532e29cd0b7f8ffa29d3366ad0dce39a6",
        "a9ff535aace3db6a1da1a7fb00fe2de2622bb373abad9fb42c00e0",
    ];
    let without = [
        "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79444c756477696720766f6e204d69736573",
        "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843934ff73eebb9d930ebf62b8e4db8133ca936872b5551efd7c9989c646d8cf0",
        "8d372b94914e80018211a344b8b1c5a2869492a0db46990c0362f3",
        "e183b0abd55550f9955fb05476d988c6f27628d7bbde111c39ccbc",
    ];
    let said = ["Ludwig von Mises", "Murray Rothbard", "F. A. Hayek", "Carl Menger"];
    for (secret, messages) in [(Some(&secret), with_secret), (None, without)] {
        let fixed = |key: &str| {
            let (key, secret) = (bytes(key), secret.cloned());
            move |is_first: bool| {
                let builder = noise::builder(b"John Galt", secret.as_ref()).expect("a pattern");
                let builder = builder.fixed_ephemeral_key_for_testing_only(&key);
                let built = if is_first { builder.build_initiator() } else { builder.build_responder() };
                built.expect("a state")
            }
        };
        let mut first = fixed("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a")(true);
        let mut second = fixed("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b")(false);
        let (mut sealed, mut plain) = ([0; 200], [0; 200]);
        let n = first.write_message(said[0].as_bytes(), &mut sealed).expect("sealed");
        assert_eq!(sealed[..n], bytes(messages[0]));
        let n = second.read_message(&sealed[..n], &mut plain).expect("opened");
        assert_eq!(&plain[..n], said[0].as_bytes());
        let n = second.write_message(said[1].as_bytes(), &mut sealed).expect("sealed");
        assert_eq!(sealed[..n], bytes(messages[1]));
        first.read_message(&sealed[..n], &mut plain).expect("opened");
        let (mut first, mut second) =
            (first.into_transport_mode().expect("done"), second.into_transport_mode().expect("done"));
        let n = first.write_message(said[2].as_bytes(), &mut sealed).expect("sealed");
        assert_eq!(sealed[..n], bytes(messages[2]));
        second.read_message(&sealed[..n], &mut plain).expect("opened");
        let n = second.write_message(said[3].as_bytes(), &mut sealed).expect("sealed");
        assert_eq!(sealed[..n], bytes(messages[3]));
        let n = first.read_message(&sealed[..n], &mut plain).expect("opened");
        assert_eq!(&plain[..n], said[3].as_bytes());
    }
}
