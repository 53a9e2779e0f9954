use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use gpuprobe_event::trace::{Line, Reader};
use gpuprobe_event::{ProcessChange, ProcessEvent, Tgid, Tid};

use super::*;

fn create(path: &Path, limits: Limits) -> Result<TraceFile> {
    TraceFile::create(
        Destination::find(Some(path), Access::Private)?,
        Phases::Together,
        Meta::default(),
        limits,
    )
}

fn event(id: u64) -> Event {
    Event::Process(ProcessEvent {
        id,
        at_ns: id,
        change: ProcessChange::Start,
        tgid: Tgid(1),
        tid: Tid(1),
        process: "p".into(),
        parent: None,
        ns_pid: None,
        container: None,
        exit_status: None,
        rank: None,
        live: Vec::new(),
    })
}

#[test]
fn a_full_disk_is_reported_at_create() {
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("full.zst");
    std::os::unix::fs::symlink("/dev/full", &packed).unwrap();
    for full in [Path::new("/dev/full"), &packed] {
        assert!(create(full, Limits::default()).is_err(), "{}", full.display());
    }
}

/// The event ids of this and all later segments, and the number of segments.
fn ids(first: &Path) -> (Vec<u64>, usize) {
    let mut next = Some(first.to_owned());
    let (mut ids, mut files) = (Vec::new(), 0);
    while let Some(path) = next.take() {
        files += 1;
        let file = io::BufReader::new(File::open(&path).unwrap());
        let packed: Box<dyn io::BufRead> = match is_compressed(&path) {
            true => Box::new(io::BufReader::new(zstd::Decoder::with_buffer(file).unwrap())),
            false => Box::new(file),
        };
        let mut reader = Reader::new(packed).unwrap();
        while let Some(line) = reader.read().unwrap() {
            match line {
                Line::Event(Event::Process(process)) => ids.push(process.id),
                Line::End(end) => next = end.next.map(|name| path.with_file_name(name)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(reader.damaged(), 0);
    }
    (ids, files)
}

#[test]
fn segments_are_chained_and_the_oldest_are_removed() {
    for name in ["t.jsonl", "t.jsonl.zst"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let limits = Limits { total: Some(40_000), ..Limits::default() };
        let size = || -> u64 {
            let files = fs::read_dir(folder.path()).unwrap();
            files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
        };
        let mut trace = create(&path, limits).unwrap();
        for id in 0..20_000 {
            trace.event(&event(id), Vec::new);
            assert!(id % 100 != 0 || size() <= 40_000, "{name}: {} bytes", size());
        }
        trace.prepare_end(3000);
        let removed = trace.removed();
        let skipped = vec!["x".repeat(2800)];
        let finished = trace.finish(&End { skipped, ..End::default() }).unwrap();
        assert!(removed > 500 && finished.bytes <= 40_000, "{name}: {removed} {finished:?}");
        assert_eq!(finished.bytes, size());
        let (ids, files) = ids(&finished.path);
        assert_eq!(ids, (removed..20_000).collect::<Vec<_>>(), "{name}");
        assert_eq!((files, files), (fs::read_dir(folder.path()).unwrap().count(), finished.segments));
    }
}

#[test]
fn a_trace_in_one_file_says_when_it_is_full() {
    for name in ["t.jsonl", "t.jsonl.zst"] {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { total: Some(40_000), in_one_file: true, ..Limits::default() };
        let mut trace = create(&folder.path().join(name), limits).unwrap();
        let ids = (0..200_000).take_while(|id| {
            trace.event(&event(*id), Vec::new);
            !trace.is_full()
        });
        let written = ids.count();
        assert!((300..100_000).contains(&written), "{name}: {written}");
        trace.prepare_end(3000);
        assert_eq!(trace.removed(), 0);
        let finished = trace.finish(&End::default()).unwrap();
        assert_eq!(finished.segments, 1, "{name}");
        assert!(finished.bytes >= 40_000, "{name}: {finished:?}");
    }
}

#[test]
fn a_planted_segment_is_not_written_and_the_trace_continues_next_to_it() {
    for name in ["t.jsonl", "t.jsonl.zst"] {
        let (folder, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let (path, victim) = (folder.path().join(name), own.path().join("victim"));
        fs::write(&victim, "root's").unwrap();
        symlink(&victim, segment_path(&path, 2)).unwrap();
        let mut trace = create(&path, Limits { segment: Some(5_000), ..Limits::default() }).unwrap();
        (0..5000).for_each(|id| trace.event(&event(id), Vec::new));
        let finished = trace.finish(&End::default()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "root's", "{name}");
        let (ids, files) = ids(&path);
        assert_eq!((ids, files), ((0..5000).collect(), finished.segments), "{name}");
        assert!(files > 2 && segment_path(&path, 3).exists(), "{files} of {name}");
        let modes = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap());
        let modes: Vec<_> =
            modes.filter(fs::Metadata::is_file).map(|file| file.permissions().mode()).collect();
        assert!(modes.len() == files && modes.iter().all(|mode| mode & 0o777 == 0o600), "{modes:?}");
    }
}

#[test]
fn a_file_that_replaced_the_trace_is_not_truncated() {
    let (folder, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, victim) = (folder.path().join("t.jsonl"), own.path().join("victim"));
    fs::write(&victim, "a line\nand half of one").unwrap();
    let mut trace = create(&path, Limits::default()).unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&victim, &path).unwrap();
    trace.fail(io::ErrorKind::StorageFull.into(), 0);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "a line\nand half of one");
}

#[test]
fn a_line_longer_than_a_segment_respects_the_total_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let limits = Limits { total: Some(40_000), ..Limits::default() };
    let mut trace = create(&path, limits).unwrap();
    (0..300).for_each(|id| trace.event(&event(id), Vec::new));
    let Event::Process(long) = event(300) else { panic!("not a process event") };
    trace.event(&Event::Process(ProcessEvent { process: "p".repeat(30_000).into(), ..long }), Vec::new);
    let finished = trace.finish(&End::default()).unwrap();
    assert!(finished.bytes <= 40_000, "{finished:?}");
    assert_eq!(ids(&finished.path).0.last(), Some(&300));
}

#[test]
fn a_closed_reader_is_not_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let reader = File::options().read(true).write(true).open(&path).unwrap();
    let mut trace = create(&path, Limits::default()).unwrap();
    drop(reader);
    assert!(!trace.is_closed());
    (0..5000).for_each(|id| trace.event(&event(id), Vec::new));
    assert!(trace.is_closed());
    trace.finish(&End::default()).unwrap();
}

#[test]
fn carried_over_lines_are_not_counted_as_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let mut trace = create(&path, Limits { total: Some(40_000), ..Limits::default() }).unwrap();
    let carried_over = || match event(77_777) {
        Event::Process(process) => vec![process; 1000],
        _ => Vec::new(),
    };
    (0..2000).for_each(|id| trace.event(&event(id), carried_over));
    let removed = trace.removed();
    let finished = trace.finish(&End::default()).unwrap();
    let (ids, files) = ids(&finished.path);
    let (carried, events): (Vec<u64>, Vec<u64>) = ids.into_iter().partition(|id| *id == 77_777);
    assert_eq!(events, (removed..2000).collect::<Vec<_>>());
    // most of a segment is left for events, however much is carried over
    assert!(carried.len() > files && carried.len() < events.len(), "{} {}", carried.len(), events.len());
}

#[test]
fn a_default_limit_is_dropped_for_a_pipe_or_a_device() {
    let limits = Limits { total: Some(1 << 30), is_default: true, ..Limits::default() };
    let trace = create(Path::new("/dev/null"), limits).unwrap();
    assert_eq!(trace.room().limit, None);
    assert!(create(Path::new("/dev/null"), Limits { is_default: false, ..limits }).is_err());
    let folder = tempfile::tempdir().unwrap();
    let trace = create(&folder.path().join("t.jsonl"), limits).unwrap();
    assert_eq!(trace.room().limit, Some(1 << 30));
}

#[test]
fn a_nearly_full_disk_removes_the_oldest_segments_and_then_stops_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    for (name, segment) in [("plain.jsonl", None), ("cut.jsonl", Some(5_000))] {
        let path = folder.path().join(name);
        let mut trace = create(&path, Limits { segment, ..Limits::default() }).unwrap();
        (0..500).for_each(|id| trace.event(&event(id), Vec::new));
        assert_eq!((trace.unwritten(), trace.removed()), (0, 0));
        // as if the disk were smaller
        let space = trace.space.as_mut().unwrap();
        space.kept = u64::MAX;
        space.is_low(trace.file.as_ref().unwrap(), 0, 0);
        (500..600).for_each(|id| trace.event(&event(id), Vec::new));
        trace.prepare_end(1000);
        let (unwritten, removed) = (trace.unwritten(), trace.removed());
        assert_eq!((unwritten, removed > 0), (100, segment.is_some()), "{name}");
        assert!(trace.room().is_stopped);
        let finished = trace.finish(&End::default()).unwrap();
        assert_eq!(ids(&finished.path).0, (removed..500).collect::<Vec<_>>(), "{name}");
    }
}
