use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpuprobe_analysis::snapshot::{FunctionCounts, GpuMemory};
use gpuprobe_analysis::{GpuUser, KernelModuleRequests, OldestCall, ProcessSnapshot, Snapshot};
use gpuprobe_event::counters::{CommandCounts, CommandTotals, LATENCY_BUCKETS, ProcessKey};
use gpuprobe_event::driver::{CommandCode, DeviceKind};
use gpuprobe_event::{Api, Class, Container, DeviceTime, MemoryAmount, Name, Pod, Space, Tgid};

use super::ledger::{SeriesLedger, SeriesSettings};
use crate::metrics::process_series::{Aggregate, SeriesPlan};
use crate::metrics::{Format, encode_with};
use crate::test_processes;

/// Series by their labels.
type Series = BTreeMap<String, u64>;

fn process(pid: u32, name: &str, calls: u64) -> ProcessSnapshot {
    let launches = FunctionCounts {
        api: Api::Driver,
        function: "cuLaunchKernel",
        class: Class::Launch,
        is_instant: false,
        calls,
        errors: 0,
        bytes: 0,
        total_ns: calls * 10,
        driver: DeviceTime::default(),
        latency: [0; LATENCY_BUCKETS],
    };
    ProcessSnapshot { functions: vec![launches], ..test_processes::process(pid, name) }
}

fn exited(pid: u32, name: &str, calls: u64) -> ProcessSnapshot {
    ProcessSnapshot { exited_at_ns: Some(1), ..process(pid, name, calls) }
}

fn snapshot(at: f64, processes: Vec<ProcessSnapshot>, summed_up: Vec<ProcessSnapshot>) -> Snapshot {
    let shared = |all: Vec<ProcessSnapshot>| all.into_iter().map(Arc::new).collect();
    let (processes, summed_up) = (shared(processes), shared(summed_up));
    Snapshot { unix_seconds: at, processes, summed_up, ..Snapshot::default() }
}

fn series(snapshot: &Snapshot, plan: SeriesPlan) -> Series {
    let text = encode_with(snapshot, &Arc::new(plan), Format::Prometheus);
    let calls = text.lines().filter_map(|line| line.strip_prefix("gpuprobe_calls_total{"));
    calls
        .map(|line| {
            let (labels, value) = line.rsplit_once("} ").unwrap();
            let labels = labels.strip_suffix("api=\"driver\",function=\"cuLaunchKernel\"").unwrap();
            (labels.trim_end_matches(',').replace('"', ""), value.parse().unwrap())
        })
        .collect()
}

fn settings(most: usize) -> SeriesSettings {
    SeriesSettings {
        most,
        most_exited: 2,
        change_every: Duration::from_secs(60),
        ..SeriesSettings::default()
    }
}

/// What Prometheus makes of scrapes: the sum of the increases of each series from its second sample on.
#[derive(Default)]
struct Scraper {
    last: Series,
    increase: u64,
}

impl Scraper {
    fn scrape(&mut self, series: &Series) {
        for (labels, value) in series {
            if let Some(before) = self.last.get(labels) {
                assert!(value >= before, "{labels} fell from {before} to {value}");
                self.increase += value - before;
            }
        }
        self.last.clone_from(series);
    }
}

#[test]
fn each_process_has_series_of_its_own_while_there_is_room() {
    let mut ledger = SeriesLedger::new(settings(2));
    let all = snapshot(1e9, vec![process(1, "a", 5), process(2, "a", 9), process(3, "b", 7)], Vec::new());
    let plan = ledger.take(&all, 0, None);
    let expected = [("pid=2,process=a", 9), ("pid=3,process=b", 7), ("process=a", 5)];
    assert_eq!(series(&all, plan), expected.map(|(labels, n)| (labels.to_owned(), n)).into());
}

#[test]
fn series_of_exited_processes_move_to_a_sum_that_no_rate_sees() {
    let mut ledger = SeriesLedger::new(settings(2));
    let take = |ledger: &mut SeriesLedger, at, now: Snapshot| {
        let plan = ledger.take(&now, at as u64, Some(at as u64));
        series(&now, plan)
    };
    let first = take(&mut ledger, 1.0, snapshot(1.0, vec![process(1, "a", 5)], vec![]));
    assert_eq!(first, [("pid=1,process=a".to_owned(), 5)].into());
    // it exits; its series stays when the snapshot no longer has it
    let exited_now = take(&mut ledger, 2.0, snapshot(2.0, vec![exited(1, "a", 6)], vec![]));
    assert_eq!(exited_now, [("pid=1,process=a".to_owned(), 6)].into());
    let gone = take(&mut ledger, 3.0, snapshot(3.0, vec![], vec![exited(1, "a", 6)]));
    assert_eq!(gone, [("pid=1,process=a".to_owned(), 6)].into());
    let moved = take(&mut ledger, 70.0, snapshot(70.0, vec![], vec![]));
    assert_eq!(moved, [("process=a,ended=70".to_owned(), 6)].into());
    // the same pid again
    take(&mut ledger, 71.0, snapshot(71.0, vec![process(1, "a", 4)], vec![]));
    take(&mut ledger, 72.0, snapshot(72.0, vec![], vec![exited(1, "a", 4)]));
    let again = take(&mut ledger, 200.0, snapshot(200.0, vec![], vec![]));
    assert_eq!(again, [("process=a,ended=200".to_owned(), 10)].into());
}

#[test]
fn processes_that_were_never_scraped_are_an_increase_of_the_sum_of_their_name() {
    let mut ledger = SeriesLedger::new(settings(2));
    let mut scraper = Scraper::default();
    let mut all = 0;
    for second in 0..600_u64 {
        // one process a second, which runs for half a second and is never in a snapshot
        let short = exited(1000 + second as u32, "short", second);
        all += if second > 20 { second } else { 0 };
        let now = snapshot(second as f64, vec![process(1, "long", second)], vec![short]);
        let plan = ledger.take(&now, second, second.checked_sub(1));
        let series = series(&now, plan);
        assert_eq!(series["pid=1,process=long"], second);
        if second == 20 {
            scraper.last.clone_from(&series);
        } else if second > 20 {
            scraper.scrape(&series);
        }
    }
    assert_eq!(scraper.increase, all + 579, "the short ones and the long one");
}

#[test]
fn a_process_with_far_more_memory_gets_the_series_of_a_small_one_and_nothing_is_counted_twice() {
    let holding = |pid, calls, bytes| {
        let mut process = process(pid, "train", calls);
        let amount = MemoryAmount { kind: Space::Device, allocations: 1, bytes };
        process.memory.live = vec![GpuMemory { gpu: None, amount }];
        process
    };
    let mut ledger = SeriesLedger::new(settings(1));
    let mut scraper = Scraper::default();
    for second in 0..300_u64 {
        // the second one grows after a minute, the first one after three
        let bytes = if (60..180).contains(&second) { [1, 100] } else { [1000, 100] };
        let now = snapshot(
            second as f64,
            vec![holding(1, second, bytes[0]), holding(2, 10 * second, bytes[1])],
            Vec::new(),
        );
        let plan = ledger.take(&now, second, second.checked_sub(1));
        let series = series(&now, plan);
        assert_eq!(series.values().sum::<u64>(), 11 * second, "{series:?}");
        let own: Vec<_> = series.keys().filter(|labels| labels.starts_with("pid=")).collect();
        let expected = if (60..180).contains(&second) { "pid=2" } else { "pid=1" };
        assert!(own.len() == 1 && own[0].starts_with(expected), "{second}: {own:?}");
        scraper.scrape(&series);
    }
    // of each new series the first sample is no increase; both change their series twice
    let unseen = 11 * 299 - scraper.increase;
    assert!(unseen <= 3 * 11, "{unseen}");
}

/// Random processes that start, work and exit.
#[test]
fn sums_are_exact_and_no_increase_is_counted_twice_whatever_processes_do() {
    for (seed, aggregate) in (0..8_u64).zip(Aggregate::ALL.into_iter().cycle()) {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = move |most: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % most
        };
        let mut ledger = SeriesLedger::new(SeriesSettings { aggregate, ..settings(3) });
        let (mut scraper, mut all) = (Scraper::default(), 0);
        let mut running: Vec<ProcessSnapshot> = Vec::new();
        let mut listed: Vec<ProcessSnapshot> = Vec::new();
        let mut scraped = None;
        for second in 0..400_u64 {
            let mut summed_up = Vec::new();
            if next(4) == 0 {
                let id = ["1", "2", ""][next(3) as usize].to_owned();
                let container = (!id.is_empty()).then_some(Container { id, pod: None });
                let started =
                    process(next(9) as u32 + 20 * second as u32, ["a", "b", ""][next(3) as usize], 0);
                running.push(ProcessSnapshot { container, ..started });
            }
            for process in &mut running {
                let calls = next(50);
                process.functions[0].calls += calls;
                all += calls;
            }
            if !running.is_empty() && next(5) == 0 {
                let mut process = running.swap_remove(next(running.len() as u64) as usize);
                process.exited_at_ns = Some(1);
                if next(3) == 0 { summed_up.push(process) } else { listed.push(process) }
            }
            if listed.len() > 2 || (!listed.is_empty() && next(10) == 0) {
                summed_up.push(listed.remove(0));
            }
            let now = snapshot(second as f64, [running.clone(), listed.clone()].concat(), summed_up);
            let plan = ledger.take(&now, second, scraped);
            let series = series(&now, plan);
            assert_eq!(
                series.values().sum::<u64>(),
                all,
                "{aggregate:?}, seed {seed}, {second} s: {series:?}"
            );
            let own = series.keys().filter(|labels| labels.starts_with("pid=")).count();
            assert!(own <= 5, "{series:?}");
            if second % 5 == 0 {
                scraper.scrape(&series);
                scraped = Some(second);
            }
        }
        assert!(scraper.increase <= all && scraper.increase > 0, "seed {seed}: {}, {all}", scraper.increase);
    }
}

#[test]
fn fewer_series_are_kept_when_the_settings_say_so() {
    let mut ledger = SeriesLedger::new(settings(3));
    let processes = |calls| (1..=3).map(|pid| process(pid, "a", calls + u64::from(pid))).collect::<Vec<_>>();
    let before = snapshot(1e9, processes(0), vec![]);
    let plan = ledger.take(&before, 0, None);
    assert_eq!(series(&before, plan).len(), 3);
    ledger.set(settings(1));
    let after = snapshot(1e9 + 60.0, processes(10), vec![]);
    let plan = ledger.take(&after, 1, None);
    let expected = [("pid=3,process=a", 13), ("process=a", 0), ("process=a,ended=1000000061", 23)];
    assert_eq!(series(&after, plan), expected.map(|(labels, n)| (labels.to_owned(), n)).into());
}

#[test]
fn names_that_are_written_in_the_same_way_share_a_sum() {
    let mut ledger = SeriesLedger::new(settings(0));
    let all = snapshot(1e9, vec![process(1, "a\x01", 1), process(2, "a\x02", 2), process(3, "", 4)], vec![]);
    let plan = ledger.take(&all, 0, None);
    let expected = [("process=a\u{fffd}", 3), ("process=other", 4)];
    assert_eq!(series(&all, plan), expected.map(|(labels, n)| (labels.to_owned(), n)).into());
}

#[test]
fn processes_of_one_name_or_pod_have_common_series() {
    let container = |id: &str, name: &str| {
        let pod = Pod { namespace: "ml".to_owned(), name: name.to_owned(), container: "train".to_owned() };
        Some(Container { id: id.to_owned(), pod: Some(pod) })
    };
    let processes = || {
        vec![
            ProcessSnapshot { container: container("1", "job-0"), ..process(1, "python", 1) },
            ProcessSnapshot { container: container("2", "job-0"), ..process(2, "python", 2) },
            ProcessSnapshot { container: container("3", "job-1"), ..process(3, "python", 4) },
            process(4, "other", 8),
        ]
    };
    let of = |aggregate| {
        let all = snapshot(1.0, processes(), Vec::new());
        let plan = SeriesLedger::new(SeriesSettings { aggregate, ..settings(9) }).take(&all, 0, None);
        series(&all, plan).into_iter().collect::<Vec<_>>()
    };
    let expected = |all: &[(&str, u64)]| all.iter().map(|(l, n)| ((*l).to_owned(), *n)).collect::<Vec<_>>();
    // there are only sums, which never end
    assert_eq!(of(Aggregate::Name), expected(&[("process=other", 8), ("process=python", 7)]));
    let pods = [("", 8), ("pod=job-0,namespace=ml", 3), ("pod=job-1,namespace=ml", 4)];
    assert_eq!(of(Aggregate::Pod), expected(&pods));
    let containers = [
        ("", 8),
        ("container_id=1,container=train,pod=job-0,namespace=ml", 1),
        ("container_id=2,container=train,pod=job-0,namespace=ml", 2),
        ("container_id=3,container=train,pod=job-1,namespace=ml", 4),
    ];
    assert_eq!(of(Aggregate::Container), expected(&containers));
    assert_eq!(of(Aggregate::Process).len(), 4);
}

/// The series of a gauge.
fn gauge(snapshot: &Snapshot, plan: SeriesPlan, metric: &str) -> Vec<String> {
    let text = encode_with(snapshot, &Arc::new(plan), Format::Prometheus);
    let lines = text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{'));
    lines.map(|line| line.replace('"', "")).collect()
}

#[test]
fn processes_that_only_nvml_knows_or_that_are_in_their_first_call_are_within_the_limit() {
    let user = |pid, name: &str, gib: u64| GpuUser {
        gpu: 0,
        pid: Tgid(pid),
        name: name.to_owned(),
        memory_bytes: Some(gib << 30),
        seen_bytes: None,
        busy_percent: None,
    };
    let pending = |pid, name: &str, age_ns| OldestCall {
        pid: Tgid(pid),
        name: name.to_owned(),
        container: None,
        api: Api::Driver,
        function: "cuInit",
        age_ns,
    };
    let taken = |ledger: &mut SeriesLedger, calls, users: Vec<GpuUser>, waits: Vec<OldestCall>| {
        let mut now = snapshot(1e9, calls, Vec::new());
        (now.gpu_states.users, now.pending) = (users, waits);
        let plan = ledger.take(&now, 0, None);
        let memory = gauge(&now, plan.clone(), "gpuprobe_gpu_process_memory_bytes");
        (memory, gauge(&now, plan, "gpuprobe_call_pending_seconds"))
    };
    let mut ledger = SeriesLedger::new(settings(2));
    let users = || vec![user(2, "x", 1), user(3, "x", 4), user(4, "x", 2)];
    let waits = || vec![pending(5, "y", 7_000_000_000), pending(6, "y", 9_000_000_000)];
    let (memory, waiting) = taken(&mut ledger, vec![process(1, "a", 5)], users(), waits());
    let sum = format!("process=x,gpu=0}} {}", 3_u64 << 30);
    assert_eq!(memory, [sum.clone(), format!("pid=3,process=x,gpu=0}} {}", 4_u64 << 30)]);
    assert_eq!(waiting, ["process=y,function=cuInit} 9.000000000"]);
    // who has series keeps them, although another one has more memory now
    let more = vec![user(2, "x", 9), user(3, "x", 4)];
    let (memory, _) = taken(&mut ledger, vec![process(1, "a", 5)], more, vec![]);
    assert_eq!(memory[1], format!("pid=3,process=x,gpu=0}} {}", 4_u64 << 30));
    // processes with calls come first
    let (memory, _) = taken(&mut ledger, vec![process(1, "a", 5), process(7, "a", 5)], users(), vec![]);
    assert_eq!(memory, [format!("process=x,gpu=0}} {}", 7_u64 << 30)]);
    // with `--aggregate name` there are only sums, of a limited number of names
    let by_name = SeriesSettings { aggregate: Aggregate::Name, ..settings(2) };
    let names = (0..200).map(|pid| user(pid, &format!("n{pid}"), 1)).collect();
    let (memory, _) = taken(&mut SeriesLedger::new(by_name), vec![], names, vec![]);
    assert_eq!(memory.len(), 64 + 1, "{memory:?}");
    assert!(memory.contains(&format!("process=other,gpu=0}} {}", 136_u64 << 30)), "{memory:?}");
}

#[test]
fn forged_counters_do_not_make_a_sum_fall() {
    let with = |pid, calls| {
        let mut process = process(pid, "a", 0);
        process.functions[0].calls = calls;
        process
    };
    let mut ledger = SeriesLedger::new(settings(0));
    let snapshots = [
        snapshot(1.0, vec![with(1, u64::MAX - 1), with(2, 7)], vec![]),
        snapshot(2.0, vec![with(2, 9)], vec![with(1, u64::MAX)]),
        snapshot(3.0, vec![], vec![with(2, 9)]),
    ];
    for (number, now) in (0..).zip(snapshots) {
        let plan = ledger.take(&now, number, None);
        assert_eq!(series(&now, plan), [("process=a".to_owned(), u64::MAX)].into());
    }
}

#[test]
fn commands_of_programs_that_one_process_executes_one_after_the_other_are_bounded() {
    let program = |first: u32| {
        let row = |request| CommandCounts {
            process: ProcessKey { tgid: Tgid(1), instance: first.into() },
            code: CommandCode { device: DeviceKind::Control, request, detail: 0 },
            command: Name::Owned(format!("command {request}")),
            totals: CommandTotals { calls: 1, failures: 0, total_ns: 100 },
        };
        let mut requests = KernelModuleRequests::default();
        requests.update(&(first..first + 20).map(row).collect::<Vec<_>>());
        let mut process = process(1, "a", 1);
        process.instance = first.into();
        process.gpu_ops.requests = requests.series().clone();
        process
    };
    let mut ledger = SeriesLedger::new(settings(1));
    for run in 0..10_u32 {
        let before = run
            .checked_sub(1)
            .map(|before| ProcessSnapshot { exited_at_ns: Some(1), ..program(20 * before) });
        let now = snapshot(run.into(), vec![program(20 * run)], before.into_iter().collect());
        let plan = ledger.take(&now, run.into(), None);
        let ioctls = gauge(&now, plan, "gpuprobe_driver_ioctls_total");
        let counts = ioctls.iter().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u32>().unwrap());
        assert_eq!(counts.sum::<u32>(), 20 * (run + 1));
        assert_eq!(ioctls.len() as u32, (20 * (run + 1)).min(48 + 1), "{ioctls:?}");
        assert!(ioctls.iter().all(|line| line.starts_with("pid=1,process=a,")));
    }
}
