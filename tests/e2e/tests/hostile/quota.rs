//! One user who copies libcuda hundreds of times does not use the quota of other users.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};

const COPIES: usize = 300;
/// The quota of one user.
const SHARE: usize = 64;
const FLOODER: u32 = 65534;
const OTHER: u32 = 65533;
const ROOT: u32 = 0;

struct Copies {
    folder: tempfile::TempDir,
    tiny: PathBuf,
}

impl Copies {
    fn new() -> Self {
        let folder = fixtures::folder();
        // readable by all users
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let (source, tiny) = (folder.path().join("tiny.c"), folder.path().join("tiny.so"));
        fs::write(&source, "int cuMemAlloc_v2(void) { return 0; }").unwrap();
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&tiny).arg(&source).status();
        assert!(compiled.is_ok_and(|status| status.success()));
        Self { folder, tiny }
    }

    /// A copy in a folder of this name.
    fn make(&self, name: &str) -> String {
        let own = self.folder.path().join(name);
        fs::create_dir_all(&own).unwrap();
        fs::copy(&self.tiny, own.join("libcuda.so.1")).unwrap();
        shown(own.join("libcuda.so.1"))
    }
}

/// A process of a user that has mapped these files.
fn mapped(user: u32, paths: &[String]) -> Talk {
    let mut command = Command::new("python3");
    command.args(["-c", fixtures::MAP_ALL]).args(paths).current_dir("/").uid(user);
    let mut talk = Talk::start(&mut command);
    assert_eq!(talk.line(), "mapped", "{}", talk.stderr());
    talk
}

fn probed(metrics: &Metrics, below: &Path) -> usize {
    let below = shown(below);
    let attached = metrics.samples("gpuprobe_probes").filter(|(l, n)| l["state"] == "attached" && *n > 0);
    attached.filter(|(l, _)| l["library"].starts_with(&below)).count()
}

fn refused(metrics: &Metrics) -> u64 {
    let mut reasons = metrics.samples("gpuprobe_libraries_skipped_total");
    reasons.find(|(l, _)| l["reason"] == "user_quota").map_or(0, |(_, n)| n)
}

#[bpf_test(alone)]
fn one_users_flood_of_libraries_is_refused_and_counted_and_affects_no_other_user() {
    let copies = Copies::new();
    let all: Vec<_> = (0..COPIES).map(|i| copies.make(&format!("flood/{i}"))).collect();
    let daemon = Daemon::rescanning(&[]);
    let before = refused(&daemon.scrape());
    let mut flood = mapped(FLOODER, &all);
    let flooded = copies.folder.path().join("flood");
    let settled =
        |m: &Metrics| refused(m) - before == (COPIES - SHARE) as u64 && probed(m, &flooded) == SHARE;
    daemon.until(PATIENCE, "the flooder has a share and no more", settled);

    // another user, root, and a file that the flooding user shares with them
    let [others, roots] = ["other", "root"].map(|name| copies.make(name));
    let [with_other, with_root] = [OTHER, ROOT].map(|user| copies.make(&format!("shared{user}")));
    let _flooders = mapped(FLOODER, &[with_other.clone(), with_root.clone()]);
    let _others = mapped(OTHER, &[others.clone(), with_other.clone()]);
    let _roots = mapped(ROOT, &[roots.clone(), with_root.clone()]);
    for path in [&others, &roots, &with_other, &with_root] {
        daemon.until(PATIENCE, path, |m| probed(m, Path::new(path)) == 1);
    }
    assert_eq!(probed(&daemon.scrape(), &flooded), SHARE);
    let said = daemon.talk.stderr();
    let lines: Vec<_> = said.lines().filter(|l| l.contains(&format!("user {FLOODER} "))).collect();
    assert_eq!(lines.len(), 1, "{said}");

    // after unmapping some the user may have others
    flood.go_on();
    assert_eq!(flood.end(), 0, "{}", flood.stderr());
    let new = copies.make("new");
    let _new = mapped(FLOODER, std::slice::from_ref(&new));
    daemon.until(PATIENCE, "there is room again", |m| probed(m, Path::new(&new)) == 1);
}
