//! A full-screen view on the terminal. The terminal is restored when the view is dropped, and before a panic is reported.

use std::env;
use std::io::{self, Stdout, Write};
use std::os::fd::AsFd;
use std::sync::Once;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::terminal_size;
use gpuprobe_output::top::{Key, take_keys};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::style::{Print, force_color_output};
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::notes::{print_stored_notes, store_notes};

/// Ask the terminal for clicks and the wheel, with coordinates as numbers; and no longer.
const MOUSE_ON: Print<&str> = Print("\x1b[?1000h\x1b[?1006h");
const MOUSE_OFF: Print<&str> = Print("\x1b[?1006l\x1b[?1000l");
/// Ask it to mark texts that are pasted; and no longer.
const PASTE_ON: Print<&str> = Print("\x1b[?2004h");
const PASTE_OFF: Print<&str> = Print("\x1b[?2004l");
/// How long the rest of an escape sequence may take, in milliseconds. A single Esc is the key.
const REST_OF_SEQUENCE: u8 = 20;

/// What came from the terminal.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) keys: Vec<Key>,
    pub(crate) is_resized: bool,
    /// The terminal is gone.
    pub(crate) is_closed: bool,
}

/// The terminal while a view covers it.
pub(crate) struct FullScreen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Bytes of a key that is not complete yet.
    unread: Vec<u8>,
    size: Option<(u16, u16)>,
    /// Without NO_COLOR.
    has_colours: bool,
}

impl FullScreen {
    /// Covers the terminal.
    pub(crate) fn open() -> Result<Self> {
        if env::var_os("TERM").is_some_and(|name| name == "dumb") {
            bail!("this terminal has no screens (TERM=dumb): -b prints frames instead");
        }
        restore_before_panics();
        // with NO_COLOR, crossterm turns off all attributes at each colour, also those of the selected line
        force_color_output(true);
        let has_colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        enable_raw_mode().context("cannot control the terminal: -b prints frames instead")?;
        store_notes();
        // from here on dropping it restores the terminal
        let screen = Terminal::new(CrosstermBackend::new(io::stdout()));
        let covered = cover();
        match (screen, covered) {
            (Ok(terminal), Ok(())) => Ok(Self { terminal, unread: Vec::new(), size: None, has_colours }),
            (Err(error), _) | (_, Err(error)) => {
                restore();
                Err(error).context("cannot control the terminal: -b prints frames instead")
            }
        }
    }

    /// Gives the terminal to the shell while the program is stopped, then covers it again.
    pub(crate) fn suspend(&mut self, stop_until_continued: fn() -> Result<()>) -> Result<()> {
        restore();
        stop_until_continued()?;
        self.cover_again()
    }

    /// Covers the terminal again, after others may have written to it and changed its modes.
    pub(crate) fn cover_again(&mut self) -> Result<()> {
        // the present modes are those to restore at the end
        disable_raw_mode().ok();
        enable_raw_mode().context("cannot control the terminal")?;
        store_notes();
        cover().and_then(|()| self.terminal.clear()).context("cannot write to the terminal")
    }

    /// Draws a frame; only what differs from the last one is written.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> Result<()> {
        let has_colours = self.has_colours;
        let drawn = self.terminal.draw(|frame| {
            draw(frame.buffer_mut());
            if !has_colours {
                frame.buffer_mut().content.iter_mut().for_each(|cell| cell.fg = Color::Reset);
            }
        });
        drawn.context("cannot write to the terminal")?;
        Ok(())
    }

    /// What was pressed, without waiting.
    pub(crate) fn input(&mut self) -> Result<Input> {
        let size = terminal_size(io::stdout());
        let is_resized = size != std::mem::replace(&mut self.size, size);
        let mut input = Input { is_resized, ..Input::default() };
        let mut wait = PollTimeout::ZERO;
        while has_input(wait)? {
            let mut bytes = [0; 1024];
            match read(io::stdin(), &mut bytes) {
                Ok(0) | Err(Errno::EIO) => {
                    input.is_closed = true;
                    break;
                }
                Ok(length) => self.unread.extend_from_slice(&bytes[..length]),
                Err(Errno::EINTR | Errno::EAGAIN) => continue,
                Err(error) => return Err(error).context("cannot read the terminal"),
            }
            input.keys.extend(take_keys(&mut self.unread, false));
            wait = if self.unread.is_empty() { PollTimeout::ZERO } else { REST_OF_SEQUENCE.into() };
        }
        input.keys.extend(take_keys(&mut self.unread, true));
        Ok(input)
    }
}

fn cover() -> io::Result<()> {
    execute!(io::stdout(), EnterAlternateScreen, MOUSE_ON, PASTE_ON, Hide)
}

/// Whether there is something to read. A terminal that is gone can be read, too: it has an end.
fn has_input(wait: PollTimeout) -> Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, wait) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error).context("cannot read the terminal"),
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was, and prints the messages that came meanwhile. If the terminal is gone, there is
/// nothing to restore.
fn restore() {
    execute!(io::stdout(), PASTE_OFF, MOUSE_OFF, LeaveAlternateScreen, Show).ok();
    disable_raw_mode().ok();
    io::stdout().flush().ok();
    print_stored_notes();
}

fn restore_before_panics() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::process::Command;

    use nix::pty::openpty;
    use nix::sys::termios::tcgetattr;

    use super::*;

    #[test]
    fn a_panic_restores_the_terminal_before_it_is_reported() {
        let pty = openpty(None, None).unwrap();
        let flags = || tcgetattr(pty.slave.as_fd()).unwrap().local_flags;
        let (before, slave) = (flags(), || pty.slave.try_clone().unwrap());
        let test = "terminal::full_screen::tests::panics_on_a_terminal";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--ignored", "--nocapture"]).env("RUST_BACKTRACE", "0");
        let status = child.stdin(slave()).stdout(slave()).stderr(slave()).status().unwrap();
        assert!(!status.success(), "it panicked");
        assert_eq!(flags(), before);
        let mut written = [0; 1 << 14];
        let length = File::from(pty.master).read(&mut written).unwrap();
        let written = String::from_utf8_lossy(&written[..length]);
        let at = |text: &str| written.find(text).unwrap_or_else(|| panic!("no {text:?} in {written:?}"));
        let order = [at("\x1b[?1049h"), at("\x1b[?1000l"), at("\x1b[?1049l"), at("a panic on purpose")];
        assert!(order.is_sorted(), "{written:?}");
        assert!(
            written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l"),
            "the cursor is visible: {written:?}"
        );
    }

    #[test]
    #[ignore = "it is run by the test before"]
    fn panics_on_a_terminal() {
        let mut screen = FullScreen::open().unwrap();
        screen.draw(|_| {}).unwrap();
        panic!("a panic on purpose");
    }
}
