//! What starting costs. Medians, and bounds that hold on a busy machine too.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::process::finish;
use gpuprobe_e2e::{Run, alone, needs, places};
use gpuprobe_standin::Cuda;

const TIMES: usize = 5;

fn median(mut once: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<Duration> = (0..TIMES).map(|_| once()).collect();
    all.sort_unstable();
    all[TIMES / 2]
}

fn recorded(program: &Path, options: &[&str]) -> Duration {
    let run = Run::new(program).options(options);
    median(|| {
        let outcome = run.outcome();
        assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
        outcome.finished.took
    })
}

#[test]
fn starting_costs_little_and_so_does_attaching_to_every_function_of_the_driver() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    let driver_only = places::standins(Cuda::Cuda12).workload("driver_only");
    let bare = median(|| finish(&mut Command::new(&driver_only)).took);
    let nothing = recorded(Path::new("/bin/true"), &[]);
    let everything = recorded(&driver_only, &["-e", "*"]);
    let attaching = everything.saturating_sub(nothing).saturating_sub(bare);
    println!(
        "/bin/true {nothing:?}, driver_only {everything:?} ({bare:?} by itself): attaching {attaching:?}"
    );
    assert!(nothing < Duration::from_millis(500), "run of /bin/true takes {nothing:?}");
    assert!(attaching < Duration::from_millis(400), "attaching and detaching takes {attaching:?}");
}
