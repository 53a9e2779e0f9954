//! Reads the kernel log: the GPU errors (XIDs) in it, also those from before gpuprobe was started, and messages for a
//! bug report.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use rustix::time::{ClockId, clock_gettime};

use super::logged_xid::LoggedXid;

/// Returns one record of the log for each read.
const KERNEL_LOG: &str = "/dev/kmsg";
/// No record is larger.
const LARGEST_RECORD: usize = 8192;
/// The most errors that are kept; the newest ones.
const MOST_XIDS: usize = 1024;
/// The most messages that are kept; the newest ones.
const MOST_MESSAGES: usize = 2000;
/// Reading all records of a usual log takes milliseconds. What fills the log meanwhile must not keep this busy.
const AT_MOST: Duration = Duration::from_millis(500);

/// The kernel log, open for reading.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
}

/// The errors in the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoggedXids {
    /// With their ages, the oldest first.
    pub xids: Vec<(LoggedXid, Duration)>,
    /// There was no time for the newest records.
    pub is_cut: bool,
}

/// Messages of the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoggedMessages {
    /// With their times since the machine was booted, the oldest first.
    pub messages: Vec<(Duration, String)>,
    /// There was no time for the newest records.
    pub is_cut: bool,
}

impl KernelLog {
    /// Needs CAP_SYSLOG where `kernel.dmesg_restrict` is set. What is read later needs no privilege.
    pub fn open() -> io::Result<Self> {
        let flags = OFlag::O_NONBLOCK.bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(KERNEL_LOG)?;
        Ok(Self { file })
    }

    /// The errors that are not older than this.
    pub fn xids(&mut self, oldest: Duration) -> io::Result<LoggedXids> {
        let now_us = microseconds_since_boot();
        let (found, is_cut) = self.newest(MOST_XIDS, LoggedXid::parse)?;
        let age = |xid: &LoggedXid| Duration::from_micros(now_us.saturating_sub(xid.at_us));
        let with_age = found.into_iter().map(|xid| (age(&xid), xid));
        let recent = with_age.filter(|(age, _)| *age <= oldest);
        Ok(LoggedXids { xids: recent.map(|(age, xid)| (xid, age)).collect(), is_cut })
    }

    /// The messages that are relevant.
    pub fn messages(&mut self, is_relevant: impl Fn(&str) -> bool) -> io::Result<LoggedMessages> {
        let (found, is_cut) =
            self.newest(MOST_MESSAGES, |record| message(record).filter(|(_, text)| is_relevant(text)))?;
        Ok(LoggedMessages { messages: found.into(), is_cut })
    }

    /// The newest records that can be parsed, the oldest first, and whether there was no time for all.
    fn newest<T>(
        &mut self,
        most: usize,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<(VecDeque<T>, bool)> {
        let begin = Instant::now();
        self.file.rewind()?;
        let mut found = VecDeque::new();
        let mut record = [0; LARGEST_RECORD];
        loop {
            if begin.elapsed() >= AT_MOST {
                return Ok((found, true));
            }
            let bytes = match self.file.read(&mut record) {
                Ok(0) => return Ok((found, false)),
                Ok(length) => record.get(..length).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((found, false)),
                // it was overwritten meanwhile: the next one follows
                Err(error) if is_overwritten(&error) => continue,
                Err(error) => return Err(error),
            };
            found.extend(parse(bytes));
            if found.len() > most {
                found.pop_front();
            }
        }
    }
}

/// The time and the text of a record: `6,339,5140900,-;text`, and lines about its device.
fn message(record: &[u8]) -> Option<(Duration, String)> {
    let text = String::from_utf8_lossy(record);
    let (head, rest) = text.split_once(';')?;
    let at_us = head.split(',').nth(2)?.parse().ok()?;
    Some((Duration::from_micros(at_us), rest.lines().next()?.to_owned()))
}

fn is_overwritten(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted)
}

/// The log has its own clock, which runs like this one, but is not corrected by the time of the network: after months
/// they may differ by minutes.
fn microseconds_since_boot() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000).saturating_add(ns / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A file is not divided into records, so it is one record.
    fn of_record(record: &str) -> LoggedXids {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, record).unwrap();
        KernelLog { file: File::open(path).unwrap() }.xids(HOUR).unwrap()
    }

    #[test]
    fn an_error_has_its_age() {
        let minute_ago = microseconds_since_boot() - 60_000_000;
        let record = format!("3,1,{minute_ago},-;NVRM: Xid (PCI:0000:0f:00): 79, gone\n");
        let found = of_record(&record);
        let [(xid, age)] = &found.xids[..] else { panic!("{found:?}") };
        assert_eq!((xid.number, found.is_cut), (79, false));
        assert!((60..70).contains(&age.as_secs()), "{age:?}");
    }

    #[test]
    fn old_errors_are_left_out_and_none_is_from_the_future() {
        let now_us = microseconds_since_boot();
        let at =
            |at_us: u64| of_record(&format!("3,1,{at_us},-;NVRM: Xid (PCI:0000:0f:00): 79, gone\n")).xids;
        // a machine that was just booted has no old errors
        if let Some(old) = now_us.checked_sub(3_601_000_000) {
            assert_eq!(at(old), []);
        }
        assert_eq!(at(now_us + 60_000_000)[0].1, Duration::ZERO, "the clock of the log may be ahead");
    }

    #[test]
    fn a_message_has_its_time_and_no_lines_about_the_device() {
        let record = b"6,339,5140900,-;NVRM: loading\n SUBSYSTEM=pci\n";
        assert_eq!(message(record), Some((Duration::from_micros(5_140_900), "NVRM: loading".to_owned())));
        assert_eq!(message(b"no record"), None);
    }

    #[test]
    fn the_log_can_be_read_again() {
        let Ok(mut log) = KernelLog::open() else { return };
        let first = log.xids(HOUR).unwrap().xids.len();
        assert!(log.xids(2 * HOUR).unwrap().xids.len() >= first);
    }
}
