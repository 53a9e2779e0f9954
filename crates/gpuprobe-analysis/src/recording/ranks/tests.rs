use std::path::Path;

use gpuprobe_event::trace::{End, Phases, Writer};
use gpuprobe_event::{Call, Event, Value};

use super::generated::{Job, PID, Recorded};
use super::*;

const MS: u64 = 1_000_000;

const JOB: Job = Job { seed: 1, ranks: 4, steps: 200, slow: (2, 5 * MS), jitter_ns: MS };

fn aligned(recorded: &[Recorded]) -> Alignment {
    let mut aligner = Aligner::new(recorded.iter().map(Recorded::origin).collect());
    let mut events: Vec<_> = recorded.iter().map(|of| of.events.iter().cloned()).collect();
    while let Some(next) = aligner.next() {
        match events[next].next() {
            Some(event) => aligner.feed(next, event),
            None => aligner.end(next),
        }
    }
    aligner.finish()
}

/// All events on the common clock, by time.
fn merged(recorded: &[Recorded], alignment: &Alignment) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for (recording, of) in recorded.iter().enumerate() {
        all.extend(of.events.iter().cloned().map(|mut event| {
            alignment.place(recording, &mut event);
            event
        }));
    }
    all.sort_by_key(Event::ended_ns);
    all
}

fn report(recorded: &[Recorded], alignment: &Alignment) -> RanksReport {
    let mut stragglers = Stragglers::new(alignment);
    merged(recorded, alignment).iter().for_each(|event| stragglers.feed(event));
    stragglers.finish().0
}

/// By how much the time of each recording is off, compared with the first.
fn errors_ns(recorded: &[Recorded], alignment: &Alignment) -> Vec<i64> {
    let wrong = |recording: usize| {
        let starts_ns = alignment.recordings()[recording].starts_ns;
        starts_ns.cast_signed() - recorded[recording].starts_ns.cast_signed()
    };
    (0..recorded.len()).map(|recording| wrong(recording) - wrong(0)).collect()
}

#[test]
fn clocks_that_are_seconds_apart_are_aligned_within_a_millisecond() {
    for seed in 1..=20 {
        for slow in 0..4 {
            let job = Job { seed: seed * 97 + slow as u64, slow: (slow, 5 * MS), ..JOB };
            let recorded = job.recorded();
            let alignment = aligned(&recorded);
            let ahead = recorded.iter().map(|of| of.ahead_ns).collect::<Vec<_>>();
            assert!(ahead.iter().any(|ns| ns.abs_diff(ahead[0]) > 1_000 * MS), "{ahead:?}");
            let errors = errors_ns(&recorded, &alignment);
            assert!(errors.iter().all(|ns| ns.unsigned_abs() < MS), "seed {seed}: {errors:?}");
            for (of, error) in alignment.recordings().iter().zip(&errors).skip(1) {
                assert_eq!((of.basis, of.collectives), (Basis::Collectives, 200));
                let (least, most) = (of.least_offset_ns.unwrap(), of.most_offset_ns.unwrap());
                let exact = of.offset_ns - error;
                assert!(least <= exact && exact <= most, "the true offset is in the range: {of:?}, {error}");
            }
            let report = report(&recorded, &alignment);
            let first = &report.ranks[0];
            assert_eq!(
                (first.rank, first.name.as_str()),
                (Some(slow as u32), &*format!("node{0} rank {slow}", slow + 1))
            );
            assert_eq!((report.collectives, report.contradicting, report.differing), (200, 0, 0));
            assert!(
                first.last >= 195 && first.late_ns > 195 * 4 * MS && first.most_late_ns < 7 * MS,
                "{first:?}"
            );
            assert!(report.ranks[1..].iter().all(|rank| rank.last == 0), "{:?}", report.ranks);
            assert_eq!(report.latest.len(), 8);
            assert!(report.latest.iter().all(|late| late.arrivals[0].pid.recording() == slow));
        }
    }
}

/// The call of an event.
fn call_of(event: &mut Event) -> Option<&mut Call> {
    match event {
        Event::Call(call) => Some(call),
        _ => None,
    }
}

#[test]
fn clocks_that_drift_contradict_each_other_and_that_is_counted() {
    let mut recorded = JOB.recorded();
    for call in recorded[1].events.iter_mut().filter_map(call_of) {
        // by 18 ms over the recording
        call.start_ns += call.start_ns / 100;
    }
    let alignment = aligned(&recorded);
    let second = &alignment.recordings()[1];
    assert_eq!((second.basis, second.least_offset_ns), (Basis::Collectives, None));
    let report = report(&recorded, &alignment);
    assert!(report.contradicting > 20, "{report:?}");
    assert!((MS..20 * MS).contains(&report.most_contradicting_ns), "{}", report.most_contradicting_ns);
    assert!(second.uncertainty_ns.is_some_and(|ns| ns > 2 * MS), "{second:?}");
}

#[test]
fn a_recording_without_a_common_collective_has_the_unix_time() {
    let mut recorded = JOB.recorded();
    recorded.truncate(2);
    for call in recorded[1].events.iter_mut().filter_map(call_of) {
        for (name, value) in call.args.iter_mut().flatten() {
            if name == "commId" {
                *value = Value::Hex(0xbeef);
            }
        }
    }
    let alignment = aligned(&recorded);
    assert_eq!(alignment.recordings()[1].basis, Basis::UnixTime);
    assert_eq!(alignment.recordings()[1].offset_ns, 0);
    let report = report(&recorded, &alignment);
    assert_eq!((report.collectives, report.ranks.len(), report.latest.len()), (0, 2, 0));
}

#[test]
fn ranks_that_make_different_collectives_are_not_compared() {
    let mut recorded = JOB.recorded();
    let reduced =
        recorded[3].events.iter_mut().filter_map(call_of).filter(|call| &*call.name == "ncclAllReduce");
    let other = reduced.last().and_then(|call| call.args.as_mut()).unwrap();
    other[0].1 = Value::Uint(7);
    let alignment = aligned(&recorded);
    let report = report(&recorded, &alignment);
    assert_eq!((report.differing, report.collectives), (1, 199));
}

#[test]
fn processes_are_named_by_host_and_rank() {
    let mut recorded = JOB.recorded();
    // an older recording without ranks, and a host that no one named
    if let Event::Process(change) = &mut recorded[1].events[0] {
        change.rank = None;
    }
    recorded[3].meta.host.clear();
    let alignment = aligned(&recorded);
    let name = |recording| alignment.process_name(PID.of_recording(recording)).unwrap_or_default();
    assert_eq!([0, 1, 3].map(name), ["node1 rank 0", "node2 rank 1", "trace 4 rank 3"]);
    let mut event = recorded[2].events[1].clone();
    alignment.place(2, &mut event);
    alignment.rename(&mut event, true);
    let call = call_of(&mut event).unwrap();
    assert_eq!(
        (&*call.process, call.tgid, call.id),
        ("node3 rank 2 (pid 4711)", PID.of_recording(2), 2 + (2 << 44))
    );
    let meta = alignment.meta(&recorded.iter().map(|of| of.meta.clone()).collect::<Vec<_>>());
    assert_eq!(meta.host, "node1, node2, node3, ");
}

/// The lines of a trace.
fn written(recorded: &Recorded) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Phases::Together, &recorded.meta).unwrap();
    recorded.events.iter().for_each(|event| writer.event(event).unwrap());
    writer.finish(&End { seconds: 22.0, ..End::default() }).unwrap()
}

#[test]
fn the_traces_of_the_tests_of_the_command_line_are_generated_here() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/ranks");
    for recorded in (Job { steps: 40, ..JOB }).recorded() {
        let path = folder.join(format!("{}.jsonl", recorded.meta.host));
        if std::env::var_os("GPUPROBE_BLESS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, written(&recorded)).unwrap();
        }
        let found = std::fs::read(&path).unwrap_or_default();
        assert!(found == written(&recorded), "{} differs; GPUPROBE_BLESS=1 rewrites it", path.display());
    }
}
