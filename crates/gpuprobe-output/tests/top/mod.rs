//! The screens of `top` for three readings of a host with two GPUs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gpuprobe_analysis::view::{Arranged, Column, LiveView, Order, Reading, View};
use gpuprobe_output::Strokes;
use gpuprobe_output::top::{Key, Reaction, Shown, TopScreens, frame_text, reading_of, reading_of_answer};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use crate::{check, samples};

fn readings() -> Vec<Reading> {
    let answers: Vec<serde_json::Value> = serde_json::from_str(include_str!("readings.json")).expect("JSON");
    answers
        .iter()
        .map(|answer| reading_of_answer(answer.to_string().as_bytes()).expect("a reading"))
        .collect()
}

/// `top` without a terminal.
struct Session {
    live: LiveView,
    view: View,
    screens: TopScreens,
    size: (u16, u16),
    problem: Option<&'static str>,
    has_keys: bool,
}

impl Session {
    fn new(size: (u16, u16)) -> Self {
        Self::of(readings(), size)
    }

    fn of(readings: Vec<Reading>, size: (u16, u16)) -> Self {
        let mut live = LiveView::new(0, 60);
        readings.into_iter().for_each(|reading| live.take(reading));
        let screens = TopScreens::new(Arranged::default(), Strokes::Blocks);
        let mut session = Self { view: live.view(), live, screens, size, problem: None, has_keys: true };
        session.frame();
        session
    }

    fn frame(&mut self) -> String {
        let mut buffer = Buffer::empty(Rect::new(0, 0, self.size.0, self.size.1));
        let details = self.screens.open_process().and_then(|id| self.live.details(id));
        let users = HashMap::from([(0, "root".to_owned()), (1000, "ana".to_owned())]);
        let shown = Shown {
            view: &self.view,
            details: details.as_ref(),
            users: &users,
            time: "12:00:00",
            problem: self.problem,
            has_keys: self.has_keys,
        };
        self.screens.draw(&shown, &mut buffer);
        frame_text(&buffer)
    }

    fn press(&mut self, keys: &[Key]) -> String {
        for key in keys {
            assert_eq!(self.screens.press(*key, &self.view), Reaction::Redraw);
            self.frame();
        }
        self.frame()
    }

    /// The pids of the table from top to bottom.
    fn pids(&mut self) -> Vec<u32> {
        let frame = self.frame();
        let after = frame.lines().skip_while(|line| !line.contains("PID"));
        after.skip(1).filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
    }
}

#[test]
fn the_overview_and_a_process_at_three_sizes() {
    for size in [(80, 24), (120, 40), (250, 60)] {
        let mut session = Session::new(size);
        check(&format!("top_{}x{}.txt", size.0, size.1), &session.frame());
        let details = session.press(&[Key::Enter]);
        check(&format!("top_process_{}x{}.txt", size.0, size.1), &details);
    }
}

#[test]
fn groups_and_help() {
    let mut session = Session::new((120, 40));
    check("top_tree_120x40.txt", &session.press(&[Key::Char('t')]));
    check("top_help_80x24.txt", &Session::new((80, 24)).press(&[Key::Char('?')]));
}

#[test]
fn keys_sort_filter_open_and_go_back() {
    let mut session = Session::new((120, 40));
    assert_eq!(session.pids()[..3], [1201, 1202, 1377], "by live memory");
    session.press(&[Key::Char('r')]);
    assert_eq!(session.pids()[..2], [2044, 2045], "reversed; exited processes stay last");
    session.press(&[Key::Char('>'), Key::Char('>')]);
    assert_eq!(session.pids()[0], 1201, "by launches per second");
    let filtered = session.press(&[Key::Char('/'), Key::Char('T'), Key::Char('r'), Key::Char('i')]);
    assert!(filtered.contains("Filter: Tri_") && filtered.contains("triton_server"), "{filtered}");
    assert_eq!(session.pids(), [1377]);
    let opened = session.press(&[Key::Enter, Key::Enter]);
    assert!(opened.starts_with("triton_server (1377)") && opened.contains("softmax_kernel"), "{opened}");
    let back = session.press(&[Key::Escape]);
    assert!(back.contains("filter \"Tri\""), "{back}");
    session.press(&[Key::Escape]);
    assert_eq!(session.pids().len(), 8);
    let nothing = session.press(&[Key::Char('/'), Key::Char('#')]);
    assert!(nothing.contains("No process matches \"#\""), "{nothing}");
    assert_eq!(session.screens.press(Key::Interrupt, &session.view), Reaction::Quit);
}

#[test]
fn the_cursor_stays_on_its_process_and_on_the_screen() {
    let mut session = Session::new((80, 9));
    session.press(&[Key::End]);
    assert!(session.frame().contains("bench (exited)"));
    session.press(&[Key::Home]);
    assert!(session.frame().contains("1201"));
    // a click on a heading sorts, the first on a process selects it, the second opens it
    let mut session = Session::new((120, 40));
    let row = |session: &mut Session, pid: &str| {
        session.frame().lines().position(|line| line.trim_start().starts_with(pid)).unwrap() as u16
    };
    let heading = row(&mut session, "PID");
    session.press(&[Key::Click(2, heading)]);
    assert_eq!(session.pids()[..2], [1201, 1202]);
    let at = row(&mut session, "2101");
    session.press(&[Key::Click(5, at), Key::Click(5, at)]);
    assert!(session.frame().starts_with("nccl-test (2101)"), "{}", session.frame());
}

#[test]
fn a_pause_and_a_problem_are_shown() {
    let mut session = Session::new((120, 40));
    session.problem = Some("node1:9000: connection refused");
    assert!(session.press(&[Key::Char('p')]).contains("PAUSED") && session.screens.is_paused());
    assert!(session.frame().contains("\nnode1:9000: connection refused\n"));
    let opened = session.press(&[Key::Enter]);
    assert!(opened.contains("\nnode1:9000: connection refused\n"), "{opened}");
    let mut narrow = Session::new((80, 24));
    let frame = narrow.press(&[Key::Char('p'), Key::Char('/'), Key::Char('x'), Key::Enter]);
    assert!(frame.lines().next().is_some_and(|line| line.contains("PAUSED  filter \"x\"")), "{frame}");
}

#[test]
fn several_hosts_are_named_and_can_be_chosen() {
    let mut session = Session::new((120, 40));
    session.view.hosts = vec!["node1:9000".to_owned()];
    let frame = session.frame();
    assert!(!frame.contains("node1") && !frame.contains("HOST"), "one host needs no name: {frame}");
    let mut second = session.view.clone();
    second.processes.iter_mut().for_each(|row| row.id.host = 1);
    second.gpus.iter_mut().for_each(|row| row.host = 1);
    session.view = View::of_hosts([session.view.clone(), second]);
    session.view.hosts = vec!["node1:9000".to_owned(), "node2:9000".to_owned()];
    let frame = session.frame();
    assert!(frame.contains("node1:9000 GPU 0") && frame.contains("HOST"), "{frame}");
    let keys: Vec<Key> = "/NODE2".chars().map(Key::Char).collect();
    let chosen = session.press(&keys);
    let rows = chosen.lines().skip_while(|line| !line.contains("HOST")).skip(1);
    let rows: Vec<&str> = rows.take_while(|line| !line.is_empty()).collect();
    assert!(rows.len() == 8 && rows.iter().all(|row| row.starts_with("node2:9000 ")), "{chosen}");
}

/// Frames for files have all rows and no keys.
#[test]
fn a_frame_without_keys_has_every_process() {
    let mut session = Session::new((120, 40));
    let row = session.view.processes[0].clone();
    session.view.processes = (0..500)
        .map(|pid| {
            let mut row = row.clone();
            row.id.pid = pid;
            row
        })
        .collect();
    session.has_keys = false;
    session.size.1 = session.screens.full_height(&session.view);
    assert_eq!(session.pids().len(), 500);
    let frame = session.frame();
    assert!(!frame.contains("quit") && !frame.ends_with("\n\n"));
}

#[test]
fn help_goes_back_and_pasted_text_is_no_command() {
    let mut session = Session::new((120, 40));
    let opened = session.press(&[Key::Enter]);
    assert_eq!(session.press(&[Key::Char('?'), Key::Char('x')]), opened);
    session.press(&[Key::Escape, Key::Char('/')]);
    let paste = [Key::PasteStart, Key::Char('l'), Key::Enter, Key::Char('q'), Key::PasteEnd];
    assert!(session.press(&paste).contains("Filter: lq_"));
    session.press(&[Key::Enter]);
    let unchanged = session.frame();
    assert_eq!(session.press(&[Key::PasteStart, Key::Char('q'), Key::Char('t'), Key::PasteEnd]), unchanged);
    let all = session.press(&[Key::Backspace]);
    assert!(!all.contains("filter \""), "{all}");
    assert_eq!(session.screens.press(Key::Suspend, &session.view), Reaction::Suspend);
    assert_eq!(session.screens.press(Key::Char('q'), &session.view), Reaction::Quit);
}

/// NVML may fail for a while: the curve of a GPU has a gap then.
#[test]
fn a_reading_without_nvml_keeps_the_history_of_gpus() {
    let mut readings = readings();
    let mut without = readings[2].clone();
    without.gpu_states.gpus.clear();
    let mut after = readings[2].clone();
    (without.unix_seconds, after.unix_seconds) = (without.unix_seconds + 2.0, after.unix_seconds + 4.0);
    readings.extend([without, after]);
    let session = Session::of(readings, (80, 24));
    let history = &session.view.gpus[0].busy_history;
    assert_eq!(history.len(), 5);
    assert!(history[2].is_some() && history[3].is_none() && history[4].is_some(), "{history:?}");
}

/// Names with escapes, wide and combining characters change neither the columns nor the terminal.
#[test]
fn hostile_names_do_not_move_columns() {
    for size in [(80, 24), (120, 40), (250, 60), (20, 5), (1, 1), (3, 100)] {
        let mut session = Session::new(size);
        for key in [Key::Enter, Key::PageDown, Key::End, Key::Escape] {
            session.press(&[key]);
            let mut buffer = Buffer::empty(Rect::new(0, 0, size.0, size.1));
            let users = HashMap::new();
            let shown = Shown {
                view: &session.view,
                details: None,
                users: &users,
                time: "",
                has_keys: true,
                problem: Some("\x1b[2Jx\u{202e}y"),
            };
            session.screens.draw(&shown, &mut buffer);
            let is_safe = |c: char| !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c);
            assert!(frame_text(&buffer).chars().all(|c| c == '\n' || is_safe(c)));
        }
    }
    let frame = Session::new((120, 40)).frame();
    let red = frame.lines().find(|line| line.contains("2044")).unwrap();
    assert!(red.contains("\\u{1b}[31mred"), "{red}");
}

/// A local snapshot takes the same way as the answer of a daemon.
#[test]
fn a_snapshot_and_the_answer_of_a_daemon_give_the_same_reading() {
    let snapshot = samples::snapshot();
    let answer = serde_json::json!({ "version": "0", "time": "", "snapshot": snapshot }).to_string();
    let reading = reading_of(&snapshot).unwrap();
    assert_eq!(reading, reading_of_answer(answer.as_bytes()).unwrap());
    assert_eq!(reading.processes.len(), snapshot.processes.len());
    assert_eq!(reading.processes[0].pid, snapshot.processes[0].pid.0);
    assert!(reading.processes.iter().any(|process| !process.functions.is_empty()));
}

#[test]
fn answers_that_are_no_snapshots_are_refused() {
    for answer in ["", "{}", "[]", "{\"snapshot\":7}", "{\"snapshot\":{\"processes\":[{\"pid\":-1}]}}"] {
        assert!(reading_of_answer(answer.as_bytes()).is_err(), "{answer}");
    }
    // a daemon of another version may lack fields
    assert!(reading_of_answer(b"{\"snapshot\":{}}").is_ok());
}

/// 2,000 processes with 500 CUDA kernels each: a frame takes less than 50 ms, and nothing grows.
#[test]
fn a_frame_of_a_large_host_is_quick() {
    let reading = |at: f64| {
        let mut reading = readings().remove(0);
        let mut process = reading.processes.remove(0);
        let kernel = process.gpu_ops.kernels.remove(0);
        process.gpu_ops.kernels = (0..500)
            .map(|i| {
                let mut k = kernel.clone();
                k.kernel = format!("kernel_{i}");
                k
            })
            .collect();
        reading.processes = (0..2000)
            .map(|pid| {
                let mut p = process.clone();
                p.pid = pid;
                p
            })
            .collect();
        reading.unix_seconds = at;
        reading
    };
    let mut session = Session::of(vec![reading(1.0), reading(3.0)], (250, 60));
    let mut frames: Vec<Duration> = (0..20)
        .map(|i| {
            let started = Instant::now();
            session.screens.press(if i % 2 == 0 { Key::Down } else { Key::Char('>') }, &session.view);
            session.frame();
            started.elapsed()
        })
        .collect();
    frames.sort_unstable();
    // debug builds are ten times slower
    let most = if cfg!(debug_assertions) { 500 } else { 50 };
    assert!(frames[10] < Duration::from_millis(most), "{frames:?}");
    for at in 2..200 {
        session.live.take({
            let mut small = readings().remove(0);
            small.unix_seconds = f64::from(at) * 2.0;
            small
        });
    }
    session.view = session.live.view();
    assert!(session.view.gpus.iter().all(|gpu| gpu.busy_history.len() <= 60));
}

#[test]
fn columns_have_names_for_the_command_line() {
    for column in Column::ALL {
        assert_eq!(Column::from_name(&column.as_str().to_lowercase()), Some(column));
    }
    assert_eq!(Column::from_name("launch"), Some(Column::Launches));
    assert_eq!(Column::from_name("nonsense"), None);
    assert_ne!(Order::by(Column::Live), Order::by(Column::Live).reversed());
}
