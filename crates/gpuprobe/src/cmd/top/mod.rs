//! `gpuprobe top`: GPUs and the processes that use them, live.

mod daemon_source;
mod local_source;

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_analysis::view::{Arranged, LiveView, Reading, View};
use gpuprobe_capture::{terminal_size, utc_offset_seconds};
use gpuprobe_output::timestamp::timestamp;
use gpuprobe_output::top::{Reaction, Shown, TopScreens, frame_text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use serde::Serialize;

use self::daemon_source::DaemonSource;
use self::local_source::LocalSource;
use crate::cli::TopArgs;
use crate::session::host::observer::unix_seconds;
use crate::session::signals::{Signals, ends_session, stop_until_continued};
use crate::terminal::full_screen::FullScreen;
use crate::terminal::notes::last_stored_note;
use crate::terminal::stdout::print;
use crate::terminal::strokes;

/// Readings in a history.
const POINTS: usize = 60;
/// How often a second reading is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a key may wait. Everything else wakes the program by itself.
const KEYS_EVERY: Duration = Duration::from_millis(100);
/// The columns of a frame if the output is not a terminal, and the environment does not say.
const FRAME_COLUMNS: u16 = 120;
/// The fewest and the most columns that `COLUMNS` may ask for.
const COLUMNS_RANGE: (u16, u16) = (20, 1000);
/// How long the first frame waits for a second reading of each host, after the interval.
const SECOND_READING: Duration = Duration::from_secs(15);

/// Where readings come from.
trait Source {
    /// Waits until something happened, at most this long. `signals` and the keyboard end the wait.
    fn wait(&mut self, signals: &Signals, keys: Option<io::Stdin>, most: Duration) -> Result<()>;

    /// The newest readings, by host; those that have none are left out.
    fn readings(&mut self) -> Result<Vec<(usize, Reading)>>;

    /// Names of the hosts; empty if it is only this one.
    fn hosts(&self) -> &[String];

    /// Whether a host does not answer.
    fn has_problem(&self, host: usize) -> bool;

    /// What is wrong with the source.
    fn problem(&self) -> Option<String>;
}

pub(crate) fn run(args: &TopArgs) -> Result<u8> {
    let is_full_screen = !args.batch && !args.json;
    if is_full_screen && !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        bail!("top needs a terminal: -b prints frames as text, --json as JSON");
    }
    // before any thread is created, so that no thread receives the signals
    let mut signals = if is_full_screen { Signals::block_with_stops()? } else { Signals::block()? };
    let source: Box<dyn Source> = if args.connect.is_empty() {
        Box::new(LocalSource::open(args)?)
    } else {
        let Some(source) = DaemonSource::open(args, &mut signals)? else { return Ok(0) };
        Box::new(source)
    };
    let hosts = source.hosts().len().max(1);
    let arranged = Arranged {
        order: args.sort.unwrap_or_default(),
        filter: args.filter.clone(),
        is_tree: args.tree,
        hides_exited: false,
    };
    let mut top = Top {
        args,
        signals,
        source,
        views: (0..hosts).map(|host| LiveView::new(host, POINTS)).collect(),
        view: View::default(),
        paused: None,
        screens: TopScreens::new(arranged, strokes::of_locale()),
        users: HashMap::new(),
        updates: 0,
    };
    match is_full_screen {
        true => top.run_full_screen(),
        false => top.print_frames(),
    }
}

struct Top<'a> {
    args: &'a TopArgs,
    signals: Signals,
    source: Box<dyn Source>,
    views: Vec<LiveView>,
    /// The view that is shown.
    view: View,
    /// What is shown during a pause.
    paused: Option<Vec<LiveView>>,
    screens: TopScreens,
    users: HashMap<u32, String>,
    updates: u64,
}

impl Top<'_> {
    fn run_full_screen(&mut self) -> Result<u8> {
        let mut screen = FullScreen::open()?;
        self.update()?;
        self.draw(&mut screen)?;
        let mut updated = Instant::now();
        loop {
            let due = self.args.interval.saturating_sub(updated.elapsed());
            self.source.wait(&self.signals, Some(io::stdin()), due.min(KEYS_EVERY))?;
            let arrived: Vec<Signal> = self.signals.take().iter().map(|arrived| arrived.signal).collect();
            if arrived.iter().any(|signal| ends_session(*signal)) {
                return Ok(0);
            }
            let is_continued = arrived.contains(&Signal::SIGCONT);
            if arrived.contains(&Signal::SIGTSTP) {
                screen.suspend(stop_until_continued)?;
            } else if is_continued {
                screen.cover_again()?;
            }
            let input = screen.input()?;
            if input.is_closed {
                return Ok(0);
            }
            let mut is_changed = input.is_resized || is_continued || arrived.contains(&Signal::SIGTSTP);
            for key in input.keys {
                is_changed = true;
                match self.screens.press(key, &self.view) {
                    Reaction::Redraw => {}
                    // as the terminal would do it: all programs of the command line stop
                    Reaction::Suspend => kill(Pid::from_raw(0), Signal::SIGTSTP).context("cannot stop")?,
                    Reaction::Quit => return Ok(0),
                }
            }
            if self.screens.is_paused() != self.paused.is_some() {
                self.paused = self.screens.is_paused().then(|| self.views.clone());
            }
            if updated.elapsed() >= self.args.interval {
                updated = Instant::now();
                self.update()?;
                is_changed = true;
                if self.is_done() {
                    return Ok(0);
                }
            }
            if is_changed {
                self.draw(&mut screen)?;
            }
        }
    }

    /// Prints frames as text or JSON. The first one comes after an interval, when there are rates: a daemon may take its
    /// snapshots more rarely, so it waits for a second one.
    fn print_frames(&mut self) -> Result<u8> {
        self.take_readings()?;
        while !self.is_done() {
            let started = Instant::now();
            let latest = self.args.interval.saturating_add(SECOND_READING);
            loop {
                let passed = started.elapsed();
                let waits = self.updates == 0 && passed < latest && !self.has_rates();
                let left = match self.args.interval.saturating_sub(passed) {
                    Duration::ZERO if waits => LOOK_EVERY,
                    Duration::ZERO => break,
                    left => left,
                };
                self.source.wait(&self.signals, None, left)?;
                if self.signals.termination_signal().is_some() {
                    return Ok(0);
                }
                if waits {
                    self.take_readings()?;
                }
            }
            self.update()?;
            let text = if self.args.json { self.json()? } else { self.text() };
            print(&text)?;
        }
        Ok(0)
    }

    /// One line of JSON. Its processes are those of the table, in their order.
    fn json(&self) -> Result<String> {
        let processes = self.screens.arranged().processes(&self.view).into_iter().cloned().collect();
        let problem = self.problem();
        let view = View { processes, ..self.view.clone() };
        Ok(serde_json::to_string(&JsonFrame { view, problem })? + "\n")
    }

    /// A frame with all rows.
    fn text(&mut self) -> String {
        let of_environment = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let of_terminal = || terminal_size(io::stdout()).map(|(columns, _)| columns);
        let (least, most) = COLUMNS_RANGE;
        let given = of_environment.filter(|columns: &u16| *columns > 0);
        let width = given.map(|columns| columns.clamp(least, most)).or_else(of_terminal);
        let height = self.screens.full_height(&self.view);
        let mut buffer = Buffer::empty(Rect::new(0, 0, width.unwrap_or(FRAME_COLUMNS), height));
        self.draw_into(&mut buffer);
        frame_text(&buffer)
    }

    /// Whether each host has rates, or none to wait for. This host is read when a frame is due.
    fn has_rates(&self) -> bool {
        if self.source.hosts().is_empty() {
            return true;
        }
        let mut views = self.views.iter().enumerate();
        views.all(|(host, view)| view.has_rates() || self.source.has_problem(host))
    }

    fn is_done(&self) -> bool {
        self.args.updates.is_some_and(|most| self.updates >= most)
    }

    fn take_readings(&mut self) -> Result<()> {
        for (host, reading) in self.source.readings()? {
            if let Some(view) = self.views.get_mut(host) {
                view.take(reading);
            }
        }
        Ok(())
    }

    fn update(&mut self) -> Result<()> {
        self.take_readings()?;
        self.updates += 1;
        if self.screens.is_paused() {
            return Ok(());
        }
        self.view = View::of_hosts(self.views.iter().map(LiveView::view));
        self.view.hosts = self.source.hosts().to_vec();
        // names of users of other hosts are not known here
        if self.source.hosts().is_empty() {
            let uids: Vec<u32> = self.view.processes.iter().filter_map(|process| process.uid).collect();
            for uid in uids {
                self.users.entry(uid).or_insert_with(|| name_of_user(uid));
            }
        }
        Ok(())
    }

    fn problem(&self) -> Option<String> {
        self.source.problem().or_else(last_stored_note)
    }

    fn draw(&mut self, screen: &mut FullScreen) -> Result<()> {
        screen.draw(|buffer| self.draw_into(buffer))
    }

    fn draw_into(&mut self, buffer: &mut Buffer) {
        let now = unix_seconds();
        let time = timestamp(now, utc_offset_seconds(now));
        // the time of day is enough
        let time = time.get(11..19).unwrap_or(&time);
        let views = self.paused.as_ref().unwrap_or(&self.views);
        let details = self.screens.open_process().and_then(|id| views.get(id.host)?.details(id));
        let problem = self.problem();
        let shown = Shown {
            view: &self.view,
            details: details.as_ref(),
            users: &self.users,
            time,
            problem: problem.as_deref(),
            has_keys: !self.args.batch,
        };
        self.screens.draw(&shown, buffer);
    }
}

/// An update as JSON.
#[derive(Serialize)]
struct JsonFrame {
    #[serde(flatten)]
    view: View,
    /// Why there are no new figures of a host.
    problem: Option<String>,
}

fn name_of_user(uid: u32) -> String {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Waits for descriptors without a BPF ring buffer.
fn wait_for(signals: &Signals, keys: Option<io::Stdin>, most: Duration) -> Result<()> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = vec![PollFd::new(signals.fd(), PollFlags::POLLIN)];
    fds.extend(keys.as_ref().map(|keys| PollFd::new(keys.as_fd(), PollFlags::POLLIN)));
    match poll(&mut fds, PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
