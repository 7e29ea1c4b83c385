use super::*;

fn around(vars: &[(&str, &str)], files: &[(&str, &str)], check: impl Fn(&Surroundings<'_>)) {
    let var =
        |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let read = |path: &Path| {
        let found = files.iter().find(|(known, _)| Path::new(known) == path);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    check(&Surroundings { var: &var, read: &read, here: "n1.site".into() });
}

fn shown(found: Result<(Manager, Vec<Host>)>) -> String {
    match found {
        Ok((manager, hosts)) => {
            let hosts: Vec<_> =
                hosts.iter().map(|h| format!("{}:{}", h.name, h.slots.map_or(0, |s| s))).collect();
            format!("{} {}", manager.name(), hosts.join(" "))
        }
        Err(e) => e.to_string(),
    }
}

#[test]
fn hosts_of_every_manager() {
    let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "2(x2)")];
    around(&slurm, &[], |a| assert_eq!(shown(find(a, None)), "Slurm n1:2 n2:2"));
    // Slurm's own commands of PBS and LSF.
    let both = [&slurm[..], &[("PBS_JOBID", "7"), ("PBS_NODEFILE", "/x")]].concat();
    around(&both, &[], |a| assert_eq!(shown(find(a, None)), "Slurm n1:2 n2:2"));
    let pbs = [("PBS_JOBID", "7"), ("PBS_NODEFILE", "/nodes")];
    around(&pbs, &[("/nodes", "n1\nn1\nn2\n")], |a| assert_eq!(shown(find(a, None)), "PBS n1:2 n2:1"));
    around(&pbs, &[], |a| assert!(shown(find(a, None)).starts_with("PBS_NODEFILE: /nodes: ")));
    let lsf = [("LSB_JOBID", "7"), ("LSB_HOSTS", "n1 n2"), ("LSB_MCPU_HOSTS", "n1 4 n2 2")];
    around(&lsf, &[], |a| assert_eq!(shown(find(a, None)), "LSF n1:4 n2:2"));
    let long = [("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", "/lsf")];
    around(&long, &[("/lsf", "n1\nn2\nn2\n")], |a| assert_eq!(shown(find(a, None)), "LSF n1:1 n2:2"));
    let grid = [("JOB_ID", "7"), ("PE_HOSTFILE", "/pe")];
    let lines = "n1 2 all.q@n1 UNDEFINED\nn2 1 all.q@n2 <NULL>\nn2 1 long.q@n2 <NULL>\n";
    around(&grid, &[("/pe", lines)], |a| assert_eq!(shown(find(a, None)), "Grid Engine n1:2 n2:2"));
    around(&[], &[("/f", "n1\nn2:3\n")], |a| {
        assert_eq!(shown(find(a, Some(Path::new("/f")))), "ssh n1:0 n2:3");
    });
}

#[test]
fn lists_without_hosts_are_told_apart() {
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)], Option<&'a str>, &'a str);
    let slurm = |list| [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", list)];
    let lsf = |list| [("LSB_JOBID", "7"), ("LSB_HOSTS", "n1"), ("LSB_MCPU_HOSTS", list)];
    let pbs = [("PBS_JOBID", "7"), ("PBS_NODEFILE", "/nodes")];
    let grid = [("JOB_ID", "7"), ("PE_HOSTFILE", "/pe")];
    let cases: [Case<'_>; 12] = [
        (&[], &[], None, "NoAllocation"),
        // A job of Slurm that has lost half of its variables is none.
        (&[("SLURM_JOB_ID", "7")], &[], None, "NoAllocation"),
        (&slurm("n[1"), &[], None, "InvalidHosts"),
        (&slurm("-oProxyCommand=x"), &[], None, "InvalidName"),
        (&lsf("n1 2 n2"), &[], None, "InvalidHosts"),
        (&lsf(""), &[], None, "Unset"),
        (&pbs, &[("/nodes", "# nobody\n")], None, "NoHosts"),
        (&pbs, &[("/nodes", "n1 2\n")], None, "InvalidHosts"),
        (&grid, &[("/pe", "n1 many\n")], None, "InvalidHosts"),
        (&[], &[("/f", "# nobody\n")], Some("/f"), "EmptyHostFile"),
        (&[], &[("/f", "n1\n-x\n")], Some("/f"), "InvalidHostFile"),
        (&[], &[], Some("/f"), "System"),
    ];
    for (vars, files, file, want) in cases {
        around(vars, files, |a| {
            let why = find(a, file.map(Path::new)).expect_err(want);
            assert!(format!("{why:?}").starts_with(want), "{vars:?} {files:?}: {why:?}, not {want}");
        });
    }
}

#[test]
fn one_other_host_is_reached_by_the_job_that_it_is_of_or_by_ssh() {
    let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]")];
    let pbs = [("PBS_JOBID", "7"), ("PBS_NODEFILE", "/nodes")];
    let agent =
        Launch { argv: vec!["agent".into()], without: vec![], way: ConnectMethod::CallBack, hosts: vec![0] };
    let program = ["receive".into()];
    for (vars, host, otherwise, first) in [
        (&slurm, "n2", None, Ok("srun")),
        (&slurm, "n2.site", Some(&agent), Ok("srun")),
        // Not of the job.
        (&slurm, "n3", None, Ok("ssh")),
        (&slurm, "n3", Some(&agent), Ok("agent")),
        // Of the job, but PBS could not tell the program whom to call.
        (&pbs, "n2", None, Ok("ssh")),
        (&pbs, "n2", Some(&agent), Ok("agent")),
        (&slurm, "n1", None, Err("OwnHost")),
        (&slurm, "localhost", None, Err("OwnHost")),
        (&slurm, "-oProxyCommand=x", None, Err("InvalidName")),
        (&slurm, "", None, Err("InvalidName")),
    ] {
        around(vars, &[("/nodes", "n1\nn2\n")], |a| {
            let launch = launch_on(a, host, &program, otherwise.cloned());
            match (launch, first) {
                (Ok(launch), Ok(first)) => assert_eq!(launch.argv[0], first, "{host}"),
                (Err(why), Err(want)) => assert!(format!("{why:?}").starts_with(want), "{why:?}"),
                (launch, _) => panic!("{host}: {launch:?}, not {first:?}"),
            }
        });
    }
}

#[test]
fn a_manager_tells_programs_where_they_are() {
    let var = |name: &str| Some(name.to_owned()).filter(|name| name.starts_with("SLURM"));
    assert_eq!(started_from(&var).as_deref(), Some("SLURM_LAUNCH_NODE_IPADDR"));
    assert_eq!(own_name(&var).as_deref(), Some("SLURMD_NODENAME"));
    assert_eq!((started_from(&|_| None), own_name(&|_| None)), (None, None));
}

#[test]
fn what_starts_the_agents() {
    let host = |name: &str| Host { name: name.into(), slots: Some(2) };
    let hosts = [host("n1"), host("n2")];
    let agent = ["/opt/my skiff", "cluster", "agent"].map(OsString::from);
    let shown = |manager: Manager, a: &Surroundings<'_>| {
        let launches = manager.launches(a, &hosts, &agent);
        let line = |l: &Launch| l.argv.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
        launches.iter().map(line).collect::<Vec<_>>()
    };
    around(&[("PBS_NODEFILE", "/nodes")], &[("/nodes", "n1\nn1\nn2\n")], |a| {
        let slurm = shown(Manager::Slurm, a);
        assert!(slurm[0].starts_with("srun --nodes=2 --ntasks=2 --nodelist=n1,n2 "), "{slurm:?}");
        assert!(slurm[0].ends_with(" -- /opt/my skiff cluster agent") && slurm.len() == 1, "{slurm:?}");
        let agent = "/opt/my skiff cluster agent";
        assert_eq!(
            shown(Manager::Pbs, a),
            [format!("pbsdsh -n 0 -- {agent}"), format!("pbsdsh -n 2 -- {agent}")]
        );
        assert_eq!(shown(Manager::Lsf, a), [agent.into(), format!("blaunch n2 {agent}")]);
        assert_eq!(shown(Manager::GridEngine, a), [agent.into(), format!("qrsh -inherit -V n2 {agent}")]);
        let ssh = shown(Manager::Ssh, a);
        assert_eq!(ssh[0], agent);
        assert!(ssh[1].ends_with(" -- n2 '/opt/my skiff' cluster agent"), "{ssh:?}");
    });
}
