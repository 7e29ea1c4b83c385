//! What is decided about hosts and their agents, without any that run.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use skiff_launch::callback;
use skiff_launch::handshake::SharedSecret;
use skiff_launch::listener::CallbackListener;
use skiff_spec::plan::Identity;
use skiff_spec::scratch::ScratchPlace;

use super::*;
use crate::key::SshKey;
use crate::wire::{Role, Root, VERSION};

const LIMITS: Limits = Limits { answer: Duration::from_secs(5), start: Duration::from_secs(9) };

fn fleet(names: &[&str], listener: Option<CallbackListener>) -> Fleet {
    let hosts: Vec<Host> = names.iter().map(|name| Host { name: (*name).into(), slots: None }).collect();
    let wanted = ContainerSpec {
        version: VERSION.into(),
        name: "lab".into(),
        hosts: names.iter().map(|name| (*name).into()).collect(),
        index: 0,
        duty: Role::Script,
        root: Root::Host,
        identity: Identity::Me,
        scratch: ScratchPlace::Memory,
        mounts: vec![],
        variables: vec![],
        silence: 6,
    };
    Fleet::new(&hosts, &wanted, LIMITS, listener)
}

fn place(address: &str, port: u16) -> SshAddress {
    SshAddress {
        version: VERSION.into(),
        address: address.parse().expect("an address"),
        port,
        host_key: SshKey::generate("host").expect("random bytes").public,
        user_key: SshKey::generate("user").expect("random bytes").public,
        processors: 2,
        megabytes: 1024,
        opener: vec![],
    }
}

/// A channel, and the other end, which stays open.
fn channel() -> (Channel, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let output = OwnedFd::from(ours.try_clone().expect("a descriptor"));
    (Channel::new(ours.into(), output).expect("a channel"), theirs)
}

#[test]
fn a_place_that_would_lead_others_astray_is_refused() {
    let change = |change: &dyn Fn(&mut SshAddress)| {
        let mut place = place("10.0.0.1", 22);
        change(&mut place);
        fleet(&["n1"], None).prepared(0, place).map_err(|e| e.message)
    };
    let no_keys = Err("host n1: it gives no keys or no port".to_owned());
    for (what, refused, want) in [
        ("nothing", change(&|_| ()), Ok(())),
        ("no port", change(&|place| place.port = 0), no_keys.clone()),
        ("no key", change(&|place| place.host_key.clear()), no_keys.clone()),
        // It goes into a file of keys, and would be a line of its own there.
        ("two keys", change(&|place| place.user_key = format!("{0}\n{0}", place.user_key)), no_keys),
        (
            "another version",
            change(&|place| place.version = "0.0.1".into()),
            Err(format!("host n1: its skiff is version 0.0.1, ours {VERSION}")),
        ),
    ] {
        assert_eq!(refused, want, "{what}");
    }
}

#[test]
fn members_have_an_address_and_port_of_their_own() {
    for (second, fits) in
        [(("10.0.0.2", 22), true), (("10.0.0.1", 23), true), (("10.0.0.1", 22), false), (("::1", 22), true)]
    {
        let mut fleet = fleet(&["n1", "n2"], None);
        fleet.prepared(0, place("10.0.0.1", 22)).expect("the first");
        assert!(fleet.all_prepared().is_none());
        let prepared = fleet.prepared(1, place(second.0, second.1));
        let twins = "host n2: its address is 10.0.0.1, and so is that of host n1";
        assert_eq!(prepared.err().map(|e| e.message).as_deref(), (!fits).then_some(twins), "{second:?}");
        assert_eq!(fleet.all_prepared().map(|places| places.len()), fits.then_some(2), "{second:?}");
    }
}

#[test]
fn who_is_late_is_named_by_what_all_wait_for() {
    #[derive(Clone, Copy)]
    enum At {
        Launched,
        Prepared,
        Started,
    }
    use At::{Launched, Prepared, Started};
    for (stages, late) in [
        ([Launched, Launched], "hosts n1, n2: do not answer within 5 s"),
        ([Prepared, Launched], "host n2: does not answer within 5 s"),
        // One that has started cannot be late with it.
        ([Started, Launched], "host n2: does not answer within 5 s"),
        ([Prepared, Prepared], "hosts n1, n2: do not start within 9 s"),
        ([Started, Prepared], "host n2: does not start within 9 s"),
    ] {
        let mut fleet = fleet(&["n1", "n2"], None);
        for (remote, stage) in fleet.remotes.iter_mut().zip(stages) {
            let place = place("10.0.0.1", 22);
            remote.stage = match stage {
                Launched => RemoteState::Launched,
                Prepared => RemoteState::Prepared(place),
                Started => RemoteState::Started(place),
            };
        }
        assert_eq!(fleet.all_late().message, late);
        // The deadline is the answers' at first.
        fleet.deadline = Some(Instant::now());
        assert_eq!(fleet.keep_time(None, "lost").expect_err("late").message, late);
        fleet.settle();
        fleet.keep_time(None, "lost").expect("nothing to be late with");
    }
}

#[test]
fn only_agents_that_serve_and_are_listened_to_can_be_missed() {
    for (started, is_there, deaf, missed) in [
        (true, true, None, true),
        // While it starts, it may be busy.
        (false, true, None, false),
        (true, false, None, false),
        (true, true, Some(0), false),
        (true, true, Some(1), true),
    ] {
        let mut fleet = fleet(&["n1"], None);
        let (channel, _other) = channel();
        fleet.remotes[0].channel = is_there.then_some(channel);
        fleet.remotes[0].stage = RemoteState::Prepared(place("10.0.0.1", 22));
        if started {
            fleet.remotes[0].started();
        }
        let mut now = fleet.next_beat;
        let mut silent = vec![];
        for beat in 0..=MOST_MISSED {
            assert!(silent.is_empty(), "after {beat} beats");
            // Who was stopped for an hour with all the others has missed one.
            now += Duration::from_secs(3600);
            silent = fleet.beat(now, deaf);
            assert!(fleet.beat(now, deaf).is_empty(), "it is not time yet");
        }
        assert_eq!(silent, if missed { vec![0] } else { vec![] }, "{started} {is_there} {deaf:?}");
        if missed {
            let lost = fleet.silent(0, "lost");
            assert_eq!(lost.message, "host n1: lost");
            assert!(lost.hint.contains("for 6 s") && fleet.remotes[0].channel.is_none(), "{lost:?}");
        }
    }
}

#[test]
fn a_host_that_calls_back_is_one_of_the_list_and_comes_once() {
    let secret = SharedSecret::generate().expect("random bytes");
    let listener = CallbackListener::open_to(secret, "").expect("a port");
    let call = listener.call(vec!["127.0.0.1".into()]).expect("a call");
    let mut fleet = fleet(&["n1", "n2.site"], Some(listener));
    let calls = |name: &'static str| {
        let call = call.clone();
        std::thread::spawn(move || callback::dial(&call, name, "the head"))
    };
    let connected = |fleet: &Fleet| -> Vec<bool> {
        fleet.remotes.iter().map(|remote| remote.channel.is_some()).collect()
    };
    for (name, want, refused) in [
        ("n1", [true, false], None),
        // Another on the same host is not needed.
        ("n1", [true, false], None),
        // Managers and hosts may leave the domain out.
        ("n2", [true, true], None),
        ("n3", [true, true], Some("host n3: called back, but is not one of this cluster")),
    ] {
        let agent = calls(name);
        let until = Instant::now() + Duration::from_secs(10);
        let mut accepted = Ok(());
        while accepted.is_ok() && !agent.is_finished() && Instant::now() < until {
            accepted = fleet.accept();
        }
        let kept = agent.join().expect("it ends");
        assert!(kept.is_ok(), "{name}: the handshake is the same for all");
        // What was proved last may still wait to be read.
        let until = Instant::now() + Duration::from_secs(2);
        while accepted.is_ok() && (connected(&fleet) != want || refused.is_some()) && Instant::now() < until {
            accepted = fleet.accept();
        }
        assert_eq!(connected(&fleet), want, "{name}");
        assert_eq!(accepted.err().map(|e| e.message).as_deref(), refused, "{name}");
    }
}

#[test]
fn what_cannot_be_started_is_the_fault_of_the_host_that_it_was_for() {
    let mut fleet = fleet(&["n1", "n2"], None);
    let launch = |words: &str, hosts: Vec<usize>| Launch {
        argv: ["sh", "-c", words].map(Into::into).to_vec(),
        without: vec![],
        way: skiff_launch::manager::ConnectMethod::CallBack,
        hosts,
    };
    // Nobody is to be called: it would find no port.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let call = Call { hosts: vec![], port, secret: None, word: String::new() };
    let launches = [
        launch("echo 'n1: no such host' >&2; exit 3", vec![0]),
        launch(
            "echo noise >&2; echo 'skiff: user namespaces are closed' >&2; echo 'hint: open them' >&2; exit 1",
            vec![1],
        ),
    ];
    fleet.launch(&launches, &call).expect("started");
    let blamed = |fleet: &mut Fleet, at: usize| {
        fleet.launchers[at].wait_until(Instant::now() + Duration::from_secs(10));
        fleet.bury(at).expect_err("it has started nothing")
    };
    let (at, why) = blamed(&mut fleet, 0);
    assert_eq!(at, 0);
    let want = "host n1: sh could not start anything there (exit status: 3): n1: no such host";
    assert_eq!(why.message, want);
    // Skiff's own words there are all there is to say.
    let (at, why) = blamed(&mut fleet, 1);
    assert_eq!(
        (at, why.message.as_str(), why.hint.as_str()),
        (1, "host n2: user namespaces are closed", "open them")
    );
}
