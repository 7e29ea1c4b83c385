use std::path::PathBuf;

use skiff_spec::config::Config;
use skiff_spec::image::ImageId;
use skiff_spec::name::HostName;
use skiff_spec::network::Net;
use skiff_spec::plan::{Accounts, File, Route, SshUser};

use crate::replay::*;
use crate::{BaseFacts, ssh_agent};

const IMAGE: ImageId = ImageId([7; 32]);

fn facts(config: &Config, base: Base) -> Facts<'_> {
    let accounts = Accounts { users: vec!["alice:x:1000:1000::/home/alice:/bin/sh".into()], groups: vec![] };
    let base = match base {
        Base::Host | Base::Directory => BaseFacts::Host { separate: vec!["/var"] },
        Base::Image(id) => {
            let volumes = ["/var/db".into()].into();
            BaseFacts::Image { id, volumes, unpacked: None, accounts }
        }
    };
    let (route, home) = (Route::Helper, Path::new("/home/alice"));
    Facts {
        config,
        route,
        uid: 1000,
        home,
        login: Some("alice".into()),
        resolv_conf: Some("/run/resolv.conf".into()),
        working_dir: None,
        agent_dir: None,
        devices: None,
        data: vec![],
        base,
    }
}

fn config() -> Config {
    Config {
        mounts: vec!["/site:/opt/site:ro".into()],
        services: vec!["/run/munge".into()],
        ..Config::default()
    }
}

fn memory() -> Upper {
    Upper::Memory { size: "50%".into() }
}

fn plan(asked: &RootOptions, base: Base) -> Plan {
    let config = config();
    build(PlanOptions::new(RUN, memory(), asked.clone()), facts(&config, base)).expect("a plan")
}

fn accepted(plan: &Plan) -> Result<RootOptions> {
    let config = config();
    // As a plan says itself what it is over, a false one is looked up.
    let (working_dir, agent_dir) = (working_dir(plan), ssh_agent::shown(plan));
    let facts = Facts { working_dir, agent_dir, ..facts(&config, plan.base) };
    asked_for(plan, &facts, &memory())
}

fn host_name() -> HostName {
    "n1".parse().expect("a host name")
}

/// What can be asked for, each in both ways.
fn asked() -> Vec<RootOptions> {
    let mut all = vec![];
    for net in ["host", "none", "private", "lab"] {
        for bits in 0..16 {
            let mounts: &[&str] = match bits & 1 {
                0 => &[],
                // Also what is there in any case, what stands for a file that is, and the same twice.
                _ => &["/data", "/in:/out:ro", "/etc/hosts:/etc/hosts:ro", "/own:/etc/hosts", "/data"],
            };
            all.push(RootOptions {
                mounts: mounts.iter().map(ToString::to_string).collect(),
                net: Some(net.parse().expect("a network")),
                no_home: bits & 2 != 0,
                contain: bits & 4 != 0,
                writable: bits & 8 != 0,
                ..RootOptions::default()
            });
        }
    }
    all
}

#[test]
fn what_words_make_is_carried_out() {
    for asked in asked() {
        for base in [Base::Host, Base::Image(IMAGE)] {
            let plan = plan(&asked, base);
            let found = accepted(&plan).unwrap_or_else(|e| panic!("{asked:?} {base:?}: {e}"));
            assert_eq!(self::plan(&found, base), plan, "{asked:?}");
        }
    }
    // The directory that its user was in is shown, unless something else is there, or all is to be contained.
    let config = config();
    for (dir, mounts, contain, is_shown) in [
        ("/scratch/run", &[][..], false, true),
        ("/scratch/run", &["/data:/scratch/run/in"], false, true),
        ("/scratch/run", &["/data:/scratch"], false, false),
        ("/scratch/run", &[], true, false),
        ("/home/alice/project", &[], false, false),
        ("/home/bob/open", &[], false, true),
        ("/tmp", &[], false, false),
        ("/tmp/x", &[], false, true),
        ("/var/db/x", &[], false, false),
        ("/opt/site", &[], false, false),
    ] {
        let mounts = mounts.iter().map(ToString::to_string).collect();
        let asked = RootOptions { mounts, contain, ..RootOptions::default() };
        let facts = Facts { working_dir: Some(dir.into()), ..facts(&config, Base::Image(IMAGE)) };
        let plan = build(PlanOptions::new(RUN, memory(), asked), facts).expect("a plan");
        assert_eq!(working_dir(&plan).is_some(), is_shown, "{dir}");
        assert!(accepted(&plan).is_ok(), "{dir}");
    }
    // So is the directory of an ssh agent.
    for (base, contain, is_shown) in
        [(Base::Host, false, true), (Base::Image(IMAGE), false, true), (Base::Host, true, false)]
    {
        let asked = RootOptions { contain, ..RootOptions::default() };
        let facts = Facts { agent_dir: Some("/tmp/ssh-x".into()), ..facts(&config, base) };
        let plan = build(PlanOptions::new(RUN, memory(), asked), facts).expect("a plan");
        assert_eq!(ssh_agent::shown(&plan).is_some(), is_shown, "{base:?}");
        assert!(accepted(&plan).is_ok(), "{base:?}");
    }
    for net in ["host", "none", "lab"].map(|net| net.parse().expect("a network")) {
        let asked = RootOptions { hostname: Some(host_name()), net: Some(net), ..RootOptions::default() };
        let plan = plan(&asked, Base::Image(IMAGE));
        let hosts = Source::Hosts(vec!["n1".into()]);
        assert!(plan.mounts.iter().any(|mount| mount.source == hosts), "{plan:?}");
        assert_eq!(accepted(&plan).map(|found| found.hostname), Ok(Some(host_name())));
    }
    let untrusted = RootOptions { untrusted: true, contain: true, ..RootOptions::default() };
    assert!(accepted(&plan(&untrusted, Base::Image(IMAGE))).is_ok());
}

/// A mount that a plan's maker would like to have.
fn mount(source: Source, target: &str) -> Mount {
    Mount { source, target: target.into(), read_only: false, optional: false, propagation: None }
}

#[test]
fn what_no_words_make_is_refused() {
    let text = || Source::Text("root::0:0::/:/bin/sh\n".into());
    let bind = |path: &str| Source::Bind(path.into());
    let shown =
        |dir: &str, target: &str| Mount { optional: true, ..mount(Source::WorkingDir(dir.into()), target) };
    let files = || Source::Files(vec![File { name: "../../x".into(), mode: 0o4755, text: String::new() }]);
    let added = [
        mount(Source::Own("../../../home/alice".into()), "/x"),
        mount(text(), "/etc/passwd"),
        mount(files(), "/x"),
        mount(bind("/data"), "/run/skiff/skiff"),
        mount(bind("/data"), "/"),
        mount(bind("/data"), "/../x"),
        mount(bind("/../data"), "/x"),
        mount(bind("data"), "/x"),
        mount(bind("/a:b"), "/x"),
        mount(Source::Memory { mode: 0o4777, size: None }, "/x"),
        mount(Source::Volume, "/usr"),
        mount(Source::Hosts(vec!["evil".into()]), "/etc/hosts"),
        mount(Source::Proc, "/x"),
        mount(Source::Sys, "/x"),
        shown("/data", "/x"),
        shown("/", "/"),
        shown("data", "data"),
        shown("/a/../x", "/a/../x"),
        shown("/run/skiff/x", "/run/skiff/x"),
        shown("/home/alice", "/home/alice"),
    ];
    for base in [Base::Host, Base::Image(IMAGE)] {
        let good = plan(&RootOptions::default(), base);
        for mount in &added {
            for at in [0, good.mounts.len()] {
                let mut bad = good.clone();
                bad.mounts.insert(at, mount.clone());
                assert!(accepted(&bad).is_err(), "{base:?}: {mount:?}");
            }
        }
        for at in 0..good.mounts.len() {
            let (mut less, mut writable) = (good.clone(), good.clone());
            let gone = less.mounts.remove(at);
            // Without this one it is the plan of --no-home.
            let is_home = base == Base::Host && gone.target == Path::new("/home/alice");
            less.ssh_user = less.ssh_user.filter(|_| !is_home);
            assert_eq!(accepted(&less).is_ok(), is_home, "{base:?} without {gone:?}");
            writable.mounts[at].read_only ^= true;
            assert!(accepted(&writable).is_err(), "{base:?} with another {gone:?}");
        }
        let mut order = good.clone();
        order.mounts.reverse();
        assert!(accepted(&order).is_err(), "{base:?}: another order");
        let accounts = Accounts { users: vec!["evil::0:0::/:/bin/sh".into()], groups: vec![] };
        for bad in [
            Plan { name: "../x".into(), ..good.clone() },
            Plan { route: Route::Rootless, ..good.clone() },
            Plan { layers: vec!["/home/bob".into()], ..good.clone() },
            Plan { stored_layers: vec![ImageId([1; 32])], ..good.clone() },
            Plan { upper: Upper::Directory("/home/alice/env".into()), ..good.clone() },
            Plan { upper: Upper::Memory { size: "100%".into() }, ..good.clone() },
            Plan { dumpable: true, ..good.clone() },
            Plan { contain: true, ..good.clone() },
            Plan { untrusted: true, ..good.clone() },
            Plan { unpacked: Some("/home/mallory/root".into()), ..good.clone() },
            Plan { accounts, ..good.clone() },
            Plan { net: Net::Private, ..good.clone() },
            Plan { hostname: Some(host_name()), ..good.clone() },
            Plan { shims: vec![PathBuf::from("/bin/sh")], ..good.clone() },
            Plan {
                ssh_user: Some(SshUser { name: "alice".into(), home: "/home/bob".into() }),
                ..good.clone()
            },
        ] {
            let differs = accepted(&bad).expect_err("it is refused");
            assert!(!differs.hint.is_empty(), "{differs}");
        }
    }
    let host = Plan { read_only: true, ..plan(&RootOptions::default(), Base::Host) };
    assert!(accepted(&host).is_err());
    let untrusted = RootOptions { untrusted: true, contain: true, ..RootOptions::default() };
    assert!(accepted(&plan(&untrusted, Base::Host)).is_err(), "the host's root is not for what is untrusted");
    let open = Plan { contain: false, ..plan(&untrusted, Base::Image(IMAGE)) };
    assert!(accepted(&open).is_err());
}
