//! `gpuprobe top`: GPUs and the processes that use them, live.

mod daemon_source;
mod host_reader;
mod local_source;

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_analysis::view::{Arranged, ProcessId, View};
use gpuprobe_capture::{terminal_size, utc_offset_seconds};
use gpuprobe_output::timestamp::timestamp;
use gpuprobe_output::top::{Reaction, Shown, TopScreens, frame_text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use serde::Serialize;

use self::daemon_source::open_daemons;
use self::host_reader::{HostFrame, Hosts};
use self::local_source::open_this_host;
use crate::cli::TopArgs;
use crate::session::host::observer::unix_seconds;
use crate::session::signals::{Signals, ends_session, stop_until_continued};
use crate::terminal::full_screen::FullScreen;
use crate::terminal::notes::last_stored_note;
use crate::terminal::stdout::print;
use crate::terminal::strokes;

/// How often a second reading of several hosts is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The columns of a frame if the output is not a terminal, and the environment does not say.
const FRAME_COLUMNS: u16 = 120;
/// The fewest and the most columns that `COLUMNS` may ask for.
const COLUMNS_RANGE: (u16, u16) = (20, 1000);
/// How long the first frame waits for a second reading of each host, after the interval.
const SECOND_READING: Duration = Duration::from_secs(15);

pub(crate) fn run(args: &TopArgs) -> Result<u8> {
    let is_full_screen = !args.batch && !args.json;
    if is_full_screen && !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        bail!("top needs a terminal: -b prints frames as text, --json as JSON");
    }
    // before any thread is created, so that no thread receives the signals
    let mut signals = if is_full_screen { Signals::block_on_terminal()? } else { Signals::block()? };
    let hosts = if args.connect.is_empty() {
        open_this_host(args)?
    } else {
        let Some(hosts) = open_daemons(args, &mut signals)? else { return Ok(0) };
        hosts
    };
    let arranged = Arranged {
        order: args.sort.unwrap_or_default(),
        filter: args.filter.clone(),
        is_tree: args.tree,
        hides_exited: false,
    };
    let mut top = Top {
        args,
        signals,
        frames: vec![None; hosts.count()],
        hosts,
        seen: 0,
        view: View::default(),
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
    hosts: Hosts,
    /// The newest frame of each host, or that of the beginning of a pause.
    frames: Vec<Option<Arc<HostFrame>>>,
    /// How often hosts were read at the last update.
    seen: u64,
    /// The view that is shown.
    view: View,
    screens: TopScreens,
    users: HashMap<u32, String>,
    updates: u64,
}

impl Top<'_> {
    fn run_full_screen(&mut self) -> Result<u8> {
        let mut screen = FullScreen::open()?;
        if self.hosts.all_were_read() {
            self.update();
        }
        self.draw(&mut screen)?;
        let mut updated = Instant::now();
        loop {
            self.wait(true, updated)?;
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
            let was_paused = self.screens.is_paused();
            for key in input.keys {
                is_changed = true;
                match self.screens.press(key, &self.view) {
                    Reaction::Redraw => {}
                    // as the terminal would do it: all programs of the command line stop
                    Reaction::Suspend => kill(Pid::from_raw(0), Signal::SIGTSTP).context("cannot stop")?,
                    Reaction::Quit => return Ok(0),
                }
            }
            if was_paused && !self.screens.is_paused() {
                self.show_newest();
            }
            if self.is_due(updated) {
                updated = Instant::now();
                self.update();
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
        let started = Instant::now();
        let mut printed = started;
        let latest = self.args.interval.saturating_add(SECOND_READING);
        while !self.is_done() {
            self.wait(false, printed)?;
            if self.signals.termination_signal().is_some() {
                return Ok(0);
            }
            let waits = self.updates == 0 && started.elapsed() < latest && !self.hosts.all_have_rates();
            if waits || !self.is_due(printed) {
                continue;
            }
            printed = Instant::now();
            self.update();
            let text = if self.args.json { self.json()? } else { self.text() };
            print(&text)?;
        }
        Ok(0)
    }

    /// Waits for the next update, a signal or a key.
    fn wait(&mut self, has_keys: bool, updated: Instant) -> Result<()> {
        let stdin = io::stdin();
        let mut others = vec![self.signals.fd()];
        others.extend(has_keys.then(|| stdin.as_fd()));
        let left = self.args.interval.saturating_sub(updated.elapsed());
        let left = if left.is_zero() { LOOK_EVERY } else { left };
        self.hosts.wait(&others, (self.hosts.count() > 1).then_some(left))
    }

    /// One host is shown as soon as it was read, several at each interval.
    fn is_due(&self, updated: Instant) -> bool {
        match self.hosts.count() {
            1 => self.hosts.reads() != self.seen,
            _ => updated.elapsed() >= self.args.interval,
        }
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

    fn is_done(&self) -> bool {
        self.args.updates.is_some_and(|most| self.updates >= most)
    }

    fn update(&mut self) {
        self.seen = self.hosts.reads();
        self.updates += 1;
        if !self.screens.is_paused() {
            self.show_newest();
        }
    }

    fn show_newest(&mut self) {
        self.hosts.update(&mut self.frames);
        self.view = View::of_hosts(self.frames.iter().flatten().map(|frame| frame.view.clone()));
        self.view.hosts = self.hosts.names().to_vec();
        // names of users of other hosts are not known here
        if self.hosts.names().is_empty() {
            let uids: Vec<u32> = self.view.processes.iter().filter_map(|process| process.uid).collect();
            for uid in uids {
                self.users.entry(uid).or_insert_with(|| name_of_user(uid));
            }
        }
    }

    fn problem(&self) -> Option<String> {
        self.hosts.problem().or_else(last_stored_note)
    }

    fn draw(&mut self, screen: &mut FullScreen) -> Result<()> {
        screen.draw(|buffer| self.draw_into(buffer))
    }

    fn draw_into(&mut self, buffer: &mut Buffer) {
        let now = unix_seconds();
        let time = timestamp(now, utc_offset_seconds(now));
        // the time of day is enough
        let time = time.get(11..19).unwrap_or(&time);
        let frame = |id: ProcessId| self.frames.get(id.host)?.as_ref();
        let details = self.screens.open_process().and_then(|id| frame(id)?.live.details(id));
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
