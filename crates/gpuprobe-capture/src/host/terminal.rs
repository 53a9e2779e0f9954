//! The terminal: its size, and the signal of Ctrl-\.

use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Columns and rows of the terminal behind a descriptor; `None` if it is no terminal or does not report them.
pub fn terminal_size(fd: impl AsFd) -> Option<(u16, u16)> {
    let size = tcgetwinsize(fd).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// Ignores SIGQUIT, which Ctrl-\ sends, in this process and in what it executes.
pub fn ignore_quit_signal() {
    // SAFETY: no function is installed, so nothing can run in a signal handler.
    unsafe { libc::signal(libc::SIGQUIT, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_terminal() {
        assert_eq!(terminal_size(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
