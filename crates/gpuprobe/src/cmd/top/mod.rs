//! `gpuprobe top`: GPUs and the processes that use them, live.

mod daemon_source;
mod local_source;

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use gpuprobe_analysis::view::{Arranged, LiveView, Reading, View};
use gpuprobe_capture::{terminal_size, utc_offset_seconds};
use gpuprobe_output::timestamp::timestamp;
use gpuprobe_output::top::{Reaction, Shown, TopScreens, frame_text};
use nix::unistd::{Uid, User};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use self::daemon_source::DaemonSource;
use self::local_source::LocalSource;
use crate::cli::TopArgs;
use crate::session::host::observer::unix_seconds;
use crate::session::signals::Signals;
use crate::terminal::full_screen::FullScreen;
use crate::terminal::notes::last_stored_note;
use crate::terminal::stdout::print;
use crate::terminal::strokes;

/// Readings in a history.
const POINTS: usize = 60;
/// How long a key may wait. Everything else wakes the program by itself.
const KEYS_EVERY: Duration = Duration::from_millis(100);
/// The size of a frame if the output is not a terminal.
const FRAME: (u16, u16) = (120, 40);

/// Where readings come from.
trait Source {
    /// Waits until something happened, at most this long. `signals` and the keyboard end the wait.
    fn wait(&mut self, signals: &Signals, keys: Option<io::Stdin>, most: Duration) -> Result<()>;

    /// The newest readings, by host; those that have none are left out.
    fn readings(&mut self) -> Result<Vec<(usize, Reading)>>;

    /// Names of the hosts; empty if it is only this one.
    fn hosts(&self) -> &[String];

    /// What is wrong with the source.
    fn problem(&self) -> Option<String>;
}

pub(crate) fn run(args: &TopArgs) -> Result<u8> {
    let is_full_screen = !args.batch && !args.json;
    if is_full_screen && !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        bail!("top needs a terminal: -b prints frames as text, --json as JSON");
    }
    // before any thread is created, so that no thread receives the signals
    let signals = Signals::block()?;
    let source: Box<dyn Source> = if args.connect.is_empty() {
        Box::new(LocalSource::open(args)?)
    } else {
        Box::new(DaemonSource::open(args)?)
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
            if self.signals.termination_signal().is_some() {
                return Ok(0);
            }
            let input = screen.input()?;
            if input.is_closed {
                return Ok(0);
            }
            let mut is_changed = input.is_resized;
            for key in input.keys {
                is_changed = true;
                if self.screens.press(key, &self.view) == Reaction::Quit {
                    return Ok(0);
                }
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

    /// Prints frames as text or JSON. The first one comes after an interval, when there are rates.
    fn print_frames(&mut self) -> Result<u8> {
        self.take_readings()?;
        while !self.is_done() {
            let started = Instant::now();
            while started.elapsed() < self.args.interval {
                let left = self.args.interval.saturating_sub(started.elapsed());
                self.source.wait(&self.signals, None, left)?;
                if self.signals.termination_signal().is_some() {
                    return Ok(0);
                }
            }
            self.update()?;
            let text = if self.args.json {
                serde_json::to_string(&self.view)? + "\n"
            } else {
                let (width, height) = terminal_size(io::stdout()).unwrap_or(FRAME);
                let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
                self.draw_into(&mut buffer);
                frame_text(&buffer)
            };
            print(&text)?;
        }
        Ok(0)
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
        // names of users of other hosts are not known here
        if self.source.hosts().is_empty() {
            let uids: Vec<u32> = self.view.processes.iter().filter_map(|process| process.uid).collect();
            for uid in uids {
                self.users.entry(uid).or_insert_with(|| name_of_user(uid));
            }
        }
        Ok(())
    }

    fn draw(&mut self, screen: &mut FullScreen) -> Result<()> {
        screen.draw(|buffer| self.draw_into(buffer))
    }

    fn draw_into(&mut self, buffer: &mut Buffer) {
        let now = unix_seconds();
        let time = timestamp(now, utc_offset_seconds(now));
        // the time of day is enough
        let time = time.get(11..19).unwrap_or(&time);
        let details = self.screens.open_process().and_then(|id| self.views.get(id.host)?.details(id));
        let problem = self.source.problem().or_else(last_stored_note);
        let shown = Shown {
            view: &self.view,
            details: details.as_ref(),
            hosts: self.source.hosts(),
            users: &self.users,
            time,
            problem: problem.as_deref(),
        };
        self.screens.draw(&shown, buffer);
    }
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
