//! Resource use of gpuprobe itself, read from /proc.

use std::fs;
use std::path::{Path, PathBuf};

use gpuprobe_analysis::SelfMetrics;
use nix::unistd::{SysconfVar, sysconf};

const NS_PER_SECOND: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct SelfMetricsReader {
    proc: PathBuf,
    ticks_per_second: u64,
    page_bytes: u64,
    /// Read once: the limit and the boot time do not change.
    most_files: Option<u64>,
    booted_seconds: u64,
}

impl SelfMetricsReader {
    pub(crate) fn new(proc: &Path) -> Self {
        let system = |name, usual| {
            let found = sysconf(name).ok().flatten().and_then(|n| u64::try_from(n).ok());
            found.filter(|n| *n > 0).unwrap_or(usual)
        };
        let limits = fs::read_to_string(proc.join("self/limits")).unwrap_or_default();
        let system_stat = fs::read_to_string(proc.join("stat")).unwrap_or_default();
        Self {
            proc: proc.to_owned(),
            ticks_per_second: system(SysconfVar::CLK_TCK, 100),
            page_bytes: system(SysconfVar::PAGE_SIZE, 4096),
            most_files: limits.lines().find_map(|l| first(l.strip_prefix("Max open files")?)),
            booted_seconds: system_stat.lines().find_map(|l| first(l.strip_prefix("btime")?)).unwrap_or(0),
        }
    }

    /// The current values; `None` if /proc cannot be read.
    pub(crate) fn read(&self) -> Option<SelfMetrics> {
        let stat = fs::read_to_string(self.proc.join("self/stat")).ok()?;
        let open_files = fs::read_dir(self.proc.join("self/fd")).ok()?.count();
        // without the descriptor that read_dir opens
        Some(SelfMetrics { open_files: (open_files as u64).saturating_sub(1), ..self.of(&stat)? })
    }

    fn of(&self, stat: &str) -> Option<SelfMetrics> {
        // a name may contain spaces and brackets; the fields after it start with the state, which is field 3
        let rest: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| rest.get(number - 3)?.parse::<u64>().ok();
        let ns = |ticks: u64| {
            let ns = u128::from(ticks) * u128::from(NS_PER_SECOND) / u128::from(self.ticks_per_second);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        Some(SelfMetrics {
            cpu_ns: ns(field(14)?.saturating_add(field(15)?)),
            resident_bytes: field(24)?.saturating_mul(self.page_bytes),
            virtual_bytes: field(23)?,
            open_files: 0,
            most_files: self.most_files,
            started_unix_ns: self.booted_seconds.saturating_mul(NS_PER_SECOND).saturating_add(ns(field(22)?)),
        })
    }
}

fn first(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_the_process_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::create_dir_all(path.join("self/fd")).unwrap();
        ["0", "1", "2", "3"].iter().for_each(|fd| fs::write(path.join("self/fd").join(fd), "").unwrap());
        fs::write(path.join("stat"), "cpu 1 2\nbtime 1700000000\n").unwrap();
        let limits =
            "Limit  Soft  Hard  Units\nMax open files            1024                 4096    files\n";
        fs::write(path.join("self/limits"), limits).unwrap();
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 3 0 400 8192 5 0 1 1\n";
        fs::write(path.join("self/stat"), stat).unwrap();
        let own =
            SelfMetricsReader { ticks_per_second: 100, page_bytes: 4096, ..SelfMetricsReader::new(path) };
        let expected = SelfMetrics {
            cpu_ns: 3 * NS_PER_SECOND,
            resident_bytes: 5 * 4096,
            virtual_bytes: 8192,
            open_files: 3,
            most_files: Some(1024),
            started_unix_ns: 1_700_000_004 * NS_PER_SECOND,
        };
        assert_eq!(own.read(), Some(expected));
        for cut in
            ["", "7 (a", "7 (a) S 1 2 3", "7 (a) S 1 7 7 0 -1 4194560 9 0 0 0 x y 0 0 20 0 3 0 400 8192 5"]
        {
            assert_eq!(own.of(cut), None, "{cut}");
        }
    }

    #[test]
    fn this_process_has_plausible_values() {
        let own = SelfMetricsReader::new(Path::new("/proc")).read().unwrap();
        assert!(own.resident_bytes > 0 && own.virtual_bytes > own.resident_bytes, "{own:?}");
        assert!(own.open_files >= 3 && own.started_unix_ns > 1_600_000_000 * NS_PER_SECOND, "{own:?}");
    }
}
