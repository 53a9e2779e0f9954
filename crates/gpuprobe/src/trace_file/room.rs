//! What limits the size of a trace, in words.

use gpuprobe_output::units::bytes;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// The oldest segments are removed above this size.
    pub(crate) limit: Option<u64>,
    /// Free bytes of the disk, and those that stay free.
    pub(crate) free: Option<u64>,
    pub(crate) kept_free: Option<u64>,
    /// Nothing more is written because the disk is nearly full.
    pub(crate) is_stopped: bool,
}

impl Room {
    /// The written bytes and what limits them, for the progress line.
    pub(crate) fn in_progress(self, written: u64) -> String {
        let limit = self.limit.map(|limit| format!("max {}", bytes(limit)));
        let disk = match (self.is_stopped, self.free) {
            (true, _) => Some("stopped, the disk is nearly full".to_owned()),
            (false, free) => free.map(|free| format!("{} free", bytes(free))),
        };
        let known: Vec<_> = limit.into_iter().chain(disk).collect();
        let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
        bytes(written) + &known
    }

    /// The size of a complete trace, and what limited it or would have.
    pub(crate) fn at_end(self, size: u64) -> String {
        let mut text = bytes(size);
        if let Some(limit) = self.limit {
            text += &format!(" of at most {}, see --max-size", bytes(limit));
        }
        match self.kept_free {
            Some(kept) if self.is_stopped => {
                text += &format!("; stopped to keep {} of the disk free", bytes(kept));
            }
            Some(kept) => text += &format!("; {} of the disk stay free", bytes(kept)),
            None => {}
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_the_disk_are_named() {
        assert_eq!(Room::default().in_progress(5 << 30), "5.0 GiB");
        assert_eq!(Room::default().at_end(3 << 20), "3.0 MiB");
        let room =
            Room { limit: Some(4 << 30), free: Some(57 << 30), kept_free: Some(1 << 30), is_stopped: false };
        assert_eq!(room.in_progress(5 << 30), "5.0 GiB (max 4.0 GiB, 57.0 GiB free)");
        let text = "3.0 MiB of at most 4.0 GiB, see --max-size; 1.0 GiB of the disk stay free";
        assert_eq!(room.at_end(3 << 20), text);
        let stopped = Room { limit: None, is_stopped: true, ..room };
        assert_eq!(stopped.in_progress(5 << 30), "5.0 GiB (stopped, the disk is nearly full)");
        assert_eq!(stopped.at_end(3 << 20), "3.0 MiB; stopped to keep 1.0 GiB of the disk free");
    }
}
