//! The user of a started command: with sudo the user who ran it, and the calls are recorded all the same.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{counts_of, pid_of};
use gpuprobe_e2e::{Recording, Run, bpf_test, fixtures};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;

const OTHER_USER: u32 = 65534;
const SUDO: [(&str, &str); 3] = [("SUDO_UID", "65534"), ("SUDO_GID", "65534"), ("SUDO_USER", "nobody")];
const WHO: &str = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; grep CapEff /proc/self/status; exit 7";

/// The fields of a user in /etc/passwd.
fn account(name: &str) -> Vec<String> {
    let all = fs::read_to_string("/etc/passwd").unwrap();
    let line = all.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
    line.split(':').map(str::to_owned).collect()
}

/// What the command says about its user. The exit status must arrive.
fn who(command: &str, options: &[&str], environment: &[(&str, &str)]) -> Vec<String> {
    let folder = fixtures::folder();
    let mut words = vec![command];
    let output = shown(folder.path().join("output"));
    words.extend(["-o", &output]);
    words.extend(options);
    words.extend(["--", "sh", "-c", WHO]);
    let mut command = gpuprobe(&words);
    let finished = finish(command.env("HOME", "/root").envs(environment.iter().copied()));
    assert_eq!(finished.status, 7, "{}", finished.stderr);
    let owner = fs::metadata(&output).unwrap().uid();
    assert_eq!(owner, if environment.is_empty() { 0 } else { OTHER_USER });
    finished.stdout.lines().map(str::to_owned).collect()
}

#[bpf_test]
fn a_command_runs_as_the_user_who_ran_sudo() {
    let account = account("nobody");
    let environment = format!("{} nobody nobody", account[5]);
    for command in ["run", "memory"] {
        let said = who(command, &[], &SUDO);
        assert_eq!(said[..4], ["65534", "65534", "65534", &environment], "{command}");
        assert_eq!(said[4], "CapEff:\t0000000000000000", "{command}");
        assert_eq!(who(command, &["--as-root"], &SUDO)[0], "0", "{command}");
        assert_eq!(who(command, &["--user", "nobody"], &[])[..4], said[..4], "{command}");
        // root in a container
        let unchanged = who(command, &[], &[]);
        assert_eq!((unchanged[0].as_str(), unchanged[3].starts_with("/root")), ("0", true), "{command}");
    }
}

#[bpf_test]
fn every_call_of_another_users_command_is_recorded() {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1", "driver_only"]);
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    ["libcuda.so.1", "driver_only"].iter().for_each(|name| open(&folder.path().join(name)));
    open(folder.path());
    let trace = folder.path().join("trace.jsonl");
    let run = Run::new(folder.path().join("driver_only")).options(&["-e", "*"]);
    let run = SUDO.iter().fold(run, |run, (name, value)| run.env(name, value));
    let outcome = run.outcome_in(&trace);
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    assert!(outcome.finished.stderr.contains("runs as nobody"), "{}", outcome.finished.stderr);
    let printed = outcome.printed();
    Recording::read(&trace).assert_whole();
    assert_eq!(outcome.trace.counts(pid_of(&printed), Api::Driver), counts_of(&printed["calls"]));
    assert_eq!(fs::metadata(&trace).unwrap().uid(), OTHER_USER);
}

#[bpf_test]
fn a_user_that_does_not_exist_is_reported_in_one_line() {
    let folder = fixtures::folder();
    let output = shown(folder.path().join("t.jsonl"));
    let finished = finish(&mut gpuprobe(&["run", "--user", "no-such-user", "-o", &output, "--", "true"]));
    assert_eq!(finished.status, 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("there is no user no-such-user"), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    let both = finish(&mut gpuprobe(&["run", "--user", "nobody", "--as-root", "--", "true"]));
    assert_eq!(both.status, 2, "{}", both.stderr);
}
