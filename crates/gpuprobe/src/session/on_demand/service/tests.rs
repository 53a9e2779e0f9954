use std::thread;

use super::*;

/// The service, and the other end of its connection, where the recorder is otherwise.
fn connected(seconds: u64) -> (Arc<Service>, UnixStream, thread::JoinHandle<()>) {
    let (ours, recorder) = UnixStream::pair().unwrap();
    let reports = BufReader::new(ours.try_clone().unwrap());
    let time = Duration::from_secs(seconds);
    let state = State {
        recorder: Some(ours),
        current: None,
        ordered: 0,
        failure: None,
        counts: Recordings::default(),
        times: Times { default: time, limit: time },
        observed: None,
        busiest: None,
        is_ending: false,
    };
    let service = Arc::new(Service {
        host: "node".to_owned(),
        directory: "/d".into(),
        limit_bytes: 1 << 20,
        state: Mutex::new(state),
        changed: Condvar::new(),
    });
    let follower = Arc::clone(&service);
    (service, recorder, thread::spawn(move || follower.follow(reports)))
}

fn own() -> RecordRequest {
    RecordRequest { pid: Some(std::process::id()), ..RecordRequest::default() }
}

fn asked(service: &Arc<Service>) -> thread::JoinHandle<Result<RecordingInfo, RecordRefusal>> {
    let service = Arc::clone(service);
    thread::spawn(move || service.record(&own()))
}

fn order(recorder: &mut BufReader<UnixStream>) -> Order {
    let mut line = String::new();
    recorder.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn one_recording_runs_at_a_time_and_each_ends() {
    let (service, mut recorder, follower) = connected(5);
    let mut orders = BufReader::new(recorder.try_clone().unwrap());
    let first = asked(&service);
    let ordered = order(&mut orders);
    assert_eq!((ordered.pid, ordered.seconds), (std::process::id(), 5.0));
    assert!(RecordingName::parse(&ordered.name).is_some_and(|name| name.as_str().contains("_node_")));
    let Err(RecordRefusal::Busy(current)) = service.record(&own()) else { panic!("two at once") };
    assert_eq!((current.file.as_str(), current.has_begun), (ordered.name.as_str(), false));
    send(&mut recorder, &Report::Begun).unwrap();
    let begun = first.join().unwrap().unwrap();
    assert_eq!((begun.file, begun.has_begun), (ordered.name.clone(), true));
    assert_eq!(begun.path, format!("/d/{}", ordered.name));
    send(&mut recorder, &Report::Stored { bytes: 70, deleted: 2 }).unwrap();
    send(&mut recorder, &Report::Made { bytes: 7, seconds: 5.0, why: String::new() }).unwrap();
    drop(service.wait_while(START_WITHIN, |state| state.current.is_some()));
    let counts = Recordings { made: 1, failed: 0, deleted: 2, stored_bytes: 70 };
    assert_eq!(service.lock().counts, counts);

    // the next one fails before it has begun
    let second = asked(&service);
    order(&mut orders);
    send(&mut recorder, &Report::Failed { reason: "no\nprobes".to_owned() }).unwrap();
    assert_eq!(second.join().unwrap(), Err(RecordRefusal::Failed("no\\nprobes".to_owned())));
    assert_eq!(service.lock().counts, Recordings { failed: 1, ..counts });

    // and the recorder exits during the third
    let third = asked(&service);
    order(&mut orders);
    drop((recorder, orders));
    let why = "the process that records has exited".to_owned();
    assert_eq!(third.join().unwrap(), Err(RecordRefusal::Failed(why)));
    follower.join().unwrap();
    assert!(matches!(service.record(&own()), Err(RecordRefusal::Failed(why)) if why.contains("restart")));
}

#[test]
fn without_a_pid_the_busiest_process_is_recorded() {
    let (service, recorder, _follower) = connected(5);
    let none = service.order(&RecordRequest::default()).unwrap_err();
    assert_eq!(none, RecordRefusal::Unknown("no running process has called CUDA".to_owned()));
    service.lock().busiest = Some(Tgid(std::process::id()));
    let (_, info) = service.order(&RecordRequest::default()).unwrap();
    assert_eq!(info.pid, std::process::id());
    assert_eq!(order(&mut BufReader::new(recorder)).pid, std::process::id());
}
