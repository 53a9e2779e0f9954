use gpuprobe_event::counters::LiveTotals;
use gpuprobe_event::{Frame, Space};

use super::*;
use crate::leaks::history::MOST_SITES;

const SECOND: u64 = 1_000_000_000;
const RULES: Rules = Rules { warm_up_ns: 2 * SECOND };

fn key(pid: u32) -> ProcessKey {
    ProcessKey { tgid: Tgid(pid), instance: 1 }
}

fn row(pid: u32, site: u32, gpu: u8, live: u64, allocations: u64) -> SiteMemory {
    SiteMemory {
        process: key(pid),
        site: SiteId(site),
        gpu: Some(gpu),
        live: LiveTotals { live_bytes: 100 * live, live_allocations: live },
        allocations,
        allocated_bytes: 100 * allocations,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
    }
}

fn running(pids: &[u32]) -> HashMap<ProcessKey, ProcessInfo> {
    let info = |pid: &u32| (key(*pid), ProcessInfo { name: format!("p{pid}"), ..ProcessInfo::default() });
    pids.iter().map(info).collect()
}

fn stack(names: &[&str]) -> Vec<Frame> {
    let frame = |name: &&str| Frame {
        function: Some((*name).to_owned()),
        module: Some("app".to_owned()),
        file: Some("app.cc".to_owned()),
        line: Some(name.len() as u32),
        ..Frame::default()
    };
    names.iter().map(frame).collect()
}

fn report(memory: &mut LiveMemory, now_ns: u64) -> MemoryReport {
    memory.report(&Losses::default(), now_ns)
}

#[test]
fn sites_of_one_call_site_and_rows_of_several_gpus_are_summed() {
    let mut memory = LiveMemory::new(RULES, false);
    let rows = [
        row(1, 1, 0, 2, 5),
        row(1, 1, 1, 1, 1),
        row(1, 2, 0, 4, 4),
        row(1, 3, 0, 1, 9),
        row(2, 4, 0, 50, 50),
    ];
    memory.feed(&rows, &running(&[1, 2]), SECOND);
    assert_eq!(memory.unnamed(), [2, 1, 3, 4].map(SiteId), "sorted by live memory");
    memory.name(SiteId(1), stack(&["load", "main"]));
    memory.name(SiteId(2), stack(&["load", "main"]));
    assert_eq!(memory.unnamed(), [SiteId(3), SiteId(4)]);
    let report = report(&mut memory, 2 * SECOND);
    assert_eq!(report.processes.iter().map(|p| p.pid.0).collect::<Vec<_>>(), [2, 1], "sorted by live memory");
    let first = &report.processes[1];
    assert_eq!((first.name.as_str(), first.live), ("p1", Total { count: 8, bytes: 800 }));
    assert_eq!((first.other, first.other_sites), (Total { count: 1, bytes: 100 }, 1));
    let [call_site] = &first.call_sites[..] else { panic!("{first:?}") };
    assert_eq!(
        (call_site.name.as_str(), call_site.live),
        ("load (app.cc:4)", Total { count: 7, bytes: 700 })
    );
    assert_eq!((call_site.allocations, call_site.frees, call_site.freed_with_context), (10, 3, 0));
    assert_eq!((&call_site.curve[..], &first.ends_ns[..]), (&[700][..], &[SECOND][..]));
    assert!(call_site.has_series);
}

#[test]
fn suspects_come_first_by_rate_and_others_by_live_memory() {
    let mut memory = LiveMemory::new(RULES, false);
    for second in 1..=30 {
        let rows = [
            row(1, 1, 0, 5000, 5000),
            row(1, 2, 0, 2 * second, 2 * second),
            row(1, 3, 0, 3 * second, 3 * second),
            row(1, 4, 0, 5100, 5100),
        ];
        memory.feed(&rows, &running(&[1]), second * SECOND);
    }
    for (site, name) in [(1, "keep"), (2, "slow"), (3, "fast"), (4, "keep more")] {
        memory.name(SiteId(site), stack(&[name]));
    }
    let report = report(&mut memory, 30 * SECOND);
    let shown: Vec<_> = report.processes[0]
        .call_sites
        .iter()
        .map(|p| (p.call_site.frames[0].function.clone().unwrap(), p.is_suspect()))
        .collect();
    let expected = [("fast", true), ("slow", true), ("keep more", false), ("keep", false)];
    assert_eq!(shown, expected.map(|(name, is_suspect)| (name.to_owned(), is_suspect)));
}

#[test]
fn suspects_are_named_before_larger_sites() {
    let mut memory = LiveMemory::new(RULES, false);
    for second in 1..=30 {
        let mut rows: Vec<_> = (1..=200).map(|site| row(1, site, 0, 5000, 5000)).collect();
        rows.push(row(1, 1000, 0, second, second));
        memory.feed(&rows, &running(&[1]), second * SECOND);
    }
    let wanted = memory.unnamed();
    assert_eq!(wanted.len(), MOST_NAMED);
    assert!(wanted.contains(&SiteId(1000)));
}

#[test]
fn a_call_site_keeps_its_series_while_it_is_near_the_top() {
    let mut memory = LiveMemory::new(RULES, false);
    let with_series = |memory: &mut LiveMemory, live: &dyn Fn(u32) -> u64, now_ns| -> Vec<u32> {
        let rows: Vec<_> = (1..=40).map(|site| row(1, site, 0, live(site), 1000)).collect();
        memory.feed(&rows, &running(&[1]), now_ns);
        (1..=40).for_each(|site| memory.name(SiteId(site), stack(&[&format!("f{site:02}")])));
        let report = report(memory, now_ns);
        let mut shown: Vec<_> = report.processes[0].call_sites.iter().filter(|p| p.has_series).collect();
        shown.sort_by_key(|p| p.name.clone());
        shown.iter().map(|p| p.name[1..3].parse().unwrap()).collect()
    };
    let first: Vec<u32> = (1..=10).collect();
    assert_eq!(with_series(&mut memory, &|site| 100 - u64::from(site), 1), first);
    // 11 to 15 are larger than 6 to 10 now, and all of these are among the first 20
    let closer = |site: u32| if (11..=15).contains(&site) { 96 } else { 100 - u64::from(site) };
    assert_eq!(with_series(&mut memory, &closer, 2), first);
    // 1 frees everything, 2 falls far behind
    let freed = |site: u32| match site {
        1 => 0,
        2 => 1,
        site => 100 - u64::from(site),
    };
    assert_eq!(with_series(&mut memory, &freed, 3), (3..=12).collect::<Vec<_>>());
}

#[test]
fn exited_processes_are_forgotten_or_keep_their_figures() {
    let mut with_exited = running(&[1, 2]);
    for info in with_exited.values_mut().filter(|info| info.name == "p1") {
        info.exited_at_ns = Some(3);
    }
    for keeps_exited in [false, true] {
        let mut memory = LiveMemory::new(RULES, keeps_exited);
        let rows = [row(1, 1, 0, 2, 2), row(2, 2, 0, 1, 1)];
        memory.feed(&rows, &running(&[1, 2]), 1);
        memory.feed(&[row(1, 1, 0, 7, 7), row(2, 2, 0, 1, 1)], &with_exited, 3);
        // its rows are removed from the table, and so is its name
        memory.feed(&rows[1..], &running(&[2]), 4);
        let report = report(&mut memory, 5);
        let shown: Vec<_> = report.processes.iter().map(|p| (p.pid.0, p.has_exited, p.live.count)).collect();
        let expected: &[_] = if keeps_exited { &[(2, false, 1), (1, true, 7)] } else { &[(2, false, 1)] };
        assert_eq!(shown, expected);
    }
}

#[test]
fn the_latest_exited_processes_are_kept_and_names_are_dropped_with_their_sites() {
    let mut memory = LiveMemory::new(RULES, true);
    for pid in 1..=200 {
        memory.feed(&[row(pid, pid, 0, 1, 1)], &running(&[pid]), u64::from(pid));
        memory.name(SiteId(pid), stack(&["load"]));
    }
    let report = report(&mut memory, 300);
    assert_eq!(report.processes.len(), MOST_EXITED + 1);
    assert!(report.processes.iter().all(|p| p.pid.0 >= 200 - MOST_EXITED as u32));
    assert!(!memory.call_sites.is_named(SiteId(1)) && memory.call_sites.is_named(SiteId(200)));
}

/// An allocation of the first process.
fn allocation(site: u32, since_ns: u64) -> Allocation {
    Allocation {
        process: key(1),
        ptr: since_ns,
        bytes: 100,
        space: Space::Device,
        gpu: None,
        since_ns,
        site: SiteId(site),
    }
}

#[test]
fn a_leak_is_found_after_many_sites_that_freed_everything() {
    const PASSING: u32 = 1500;
    const LEAK: u32 = 5000;
    let mut memory = LiveMemory::new(RULES, false);
    for second in 1..=60 {
        let mut rows: Vec<_> = (0..PASSING).map(|site| row(1, site, 0, u64::from(second < 3), 1)).collect();
        if second > 10 {
            rows.push(row(1, LEAK, 0, 40 * (second - 10), 40 * (second - 10)));
        }
        memory.feed(&rows, &running(&[1]), second * SECOND);
        if second == 2 {
            let report = report(&mut memory, second * SECOND);
            assert_eq!((report.not_followed(), report.is_complete()), (PASSING as usize - MOST_SITES, false));
        }
    }
    assert_eq!(memory.unnamed()[0], SiteId(LEAK));
    memory.name(SiteId(LEAK), stack(&["leak"]));
    (0..PASSING).for_each(|site| memory.name(SiteId(site), stack(&["pass"])));
    let report = report(&mut memory, 60 * SECOND);
    let call_sites = &report.processes[0].call_sites;
    assert_eq!(call_sites.len(), 2);
    assert!(call_sites[0].is_suspect() && call_sites[0].name.starts_with("leak"), "{:?}", call_sites[0]);
    assert_eq!(call_sites[0].judgement.growth.frees, 0);
    // all sites are in the sum, including those that lost their history or never had one
    let Judgement { verdict, growth } = call_sites[1].judgement;
    assert_eq!((verdict, growth.allocations, growth.frees), (Verdict::Freed, 1500, 1500));
    assert!(report.is_complete());
}

#[test]
fn sites_without_a_history_are_not_judged_and_the_report_is_incomplete() {
    let mut memory = LiveMemory::new(RULES, false);
    let most = MOST_SITES as u32;
    for second in 1..=30 {
        let mut rows: Vec<_> = (0..most).map(|site| row(1, site, 0, 5000, 5000)).collect();
        rows[1] = row(1, 1, 0, 5000 + second, 5000 + second);
        if second > 5 {
            rows.extend([most, most + 1].map(|site| row(1, site, 0, second, 2000)));
        }
        memory.feed(&rows, &running(&[1]), second * SECOND);
    }
    memory.name(SiteId(most), stack(&["late", "main"]));
    for (site, name) in [(0, "mixed"), (most + 1, "mixed"), (1, "leak"), (2, "quiet")] {
        memory.name(SiteId(site), stack(&[name]));
    }
    let report = report(&mut memory, 30 * SECOND);
    let verdict = |name: &str| {
        let mut call_sites = report.processes[0].call_sites.iter();
        call_sites.find(|call_site| call_site.name.starts_with(name)).unwrap().judgement.verdict
    };
    assert_eq!((verdict("late"), verdict("mixed")), (Verdict::NotFollowed, Verdict::NotFollowed));
    assert_eq!((verdict("leak"), verdict("quiet")), (Verdict::Suspect, Verdict::Unchanged));
    assert_eq!((report.processes[0].not_followed, report.is_complete()), (2, false));
}

/// Ages are read every few seconds at most. A call site whose allocations are all freed after a while must not be a
/// suspect at any time in between, and one that leaks must be.
#[test]
fn a_call_site_is_no_suspect_before_its_ages_are_known() {
    let mut memory = LiveMemory::new(RULES, false);
    let (mut dated, mut cleared, mut last_ns) = (0, 0, None);
    for second in 1..=100 {
        let rows = [row(1, 1, 0, 3 * second, 9 * second), row(1, 2, 0, second, second)];
        memory.feed(&rows, &running(&[1]), second * SECOND);
        [(1, "turn over"), (2, "leak")]
            .iter()
            .for_each(|(site, name)| memory.name(SiteId(*site), stack(&[name])));
        let mut shown = report(&mut memory, second * SECOND);
        if memory.wants_ages(&shown) {
            assert!(last_ns.is_none_or(|last| second * SECOND - last >= DATES_LAST_NS));
            (dated, last_ns) = (dated + 1, Some(second * SECOND));
            // nothing is older than a quarter of the time
            memory.set_ages(&[allocation(1, second * SECOND * 3 / 4), allocation(2, SECOND)], |ns| ns);
            assert!(!memory.wants_ages(&shown));
            shown = report(&mut memory, second * SECOND);
        }
        let call_sites = &shown.processes[0].call_sites;
        let of = |name: &str| call_sites.iter().find(|call_site| call_site.name.starts_with(name)).unwrap();
        assert!(!of("turn over").is_suspect(), "{second}: {:?}", of("turn over"));
        cleared += u64::from(of("turn over").judgement.verdict == Verdict::Growing);
        assert_eq!(of("leak").is_suspect(), second > 11, "{second}: {:?}", of("leak"));
    }
    assert!((10..=20).contains(&dated) && cleared > 80, "{dated} {cleared}");
}

#[test]
fn the_oldest_allocation_of_a_call_site_has_an_age() {
    let mut memory = LiveMemory::new(RULES, false);
    memory.feed(&[row(1, 1, 0, 2, 2), row(1, 2, 0, 1, 1)], &running(&[1]), 50);
    [1, 2].iter().for_each(|site| memory.name(SiteId(*site), stack(&["load"])));
    assert_eq!(report(&mut memory, 60).processes[0].call_sites[0].oldest_age_ns, None);
    memory.set_ages(&[allocation(1, 1040), allocation(2, 1020), allocation(1, 1030)], |ns| ns - 1000);
    assert_eq!(report(&mut memory, 60).processes[0].call_sites[0].oldest_age_ns, Some(40));
    memory.set_ages(&[allocation(1, 1040)], |ns| ns - 1000);
    assert_eq!(report(&mut memory, 60).processes[0].call_sites[0].oldest_age_ns, Some(20));
}

#[test]
fn only_losses_that_could_change_a_verdict_are_reported() {
    let mut losses = Losses::default();
    for (i, &cause) in LossCause::ALL.iter().enumerate() {
        losses.add(cause, i as u64 + 1);
    }
    let causes: Vec<_> = losses_affecting_verdicts(&losses).iter().map(|loss| loss.cause).collect();
    for cause in
        [LossCause::LiveFull, LossCause::LostStack, LossCause::UnreadAllocation, LossCause::ProcessesFull]
    {
        assert!(causes.contains(&cause), "{cause:?}");
    }
    assert!(!causes.contains(&LossCause::RingFull) && !causes.contains(&LossCause::LateAttach));
    assert_eq!(losses_affecting_verdicts(&Losses::default()), []);
}
