//! The size of the terminal.

use std::os::fd::{AsFd, AsRawFd};

/// Columns and rows of the terminal behind a descriptor; `None` if it is no terminal or does not report them.
pub fn terminal_size(fd: impl AsFd) -> Option<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open during the call, and `size` is what this request fills in.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_terminal() {
        assert_eq!(terminal_size(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
