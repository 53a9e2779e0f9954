//! Where a process comes from: its parent, its session, and when it was started.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};
use rustix::time::{ClockId, clock_gettime};

/// Where a process comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub parent: u32,
    /// The session: what was started from one terminal, or by one service.
    pub session: u32,
    /// The time since its start.
    pub age: Duration,
}

/// The origin of a process; `None` if it has exited.
pub fn origin_of(proc_root: &Path, pid: u32) -> Option<Origin> {
    let stat = fs::read(proc_root.join(pid.to_string()).join("stat")).ok()?;
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok());
    let now = clock_gettime(ClockId::Boottime);
    let since_boot = Duration::from_secs(u64::try_from(now.tv_sec).ok()?);
    parsed(&stat, ticks.filter(|ticks| *ticks > 0)?, since_boot)
}

fn parsed(stat: &[u8], ticks_per_second: u64, since_boot: Duration) -> Option<Origin> {
    let stat = String::from_utf8_lossy(stat);
    // a name may contain spaces and brackets; the fields after it start with the state, which is field 3
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let started = Duration::from_secs(field(22)? / ticks_per_second);
    Some(Origin {
        parent: u32::try_from(field(4)?).ok()?,
        session: u32::try_from(field(6)?).ok()?,
        age: since_boot.saturating_sub(started),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_the_name() {
        let rest = "S 7 100 90 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5000 0 0";
        let at = Duration::from_secs(80);
        for name in ["a", "a) S 1 2", "", "\u{fffd} x"] {
            let found = parsed(format!("9 ({name}) {rest}").as_bytes(), 100, at).unwrap();
            assert_eq!(found, Origin { parent: 7, session: 90, age: Duration::from_secs(30) }, "{name}");
        }
        assert_eq!(parsed(b"9 (\xff) S 7 100 90", 100, at), None);
        assert_eq!(parsed(b"", 100, at), None);
    }

    #[test]
    fn the_own_process_has_an_origin() {
        let own = origin_of(Path::new("/proc"), std::process::id()).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(own.age < Duration::from_secs(3600), "{own:?}");
        assert_eq!(origin_of(Path::new("/proc"), u32::MAX), None);
    }
}
