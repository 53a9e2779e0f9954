//! GPU errors (XIDs) of the last hour, from the kernel log.

use std::io;
use std::time::Duration;

use gpuprobe_analysis::{RecentXid, RecentXids};
use gpuprobe_discover::{KernelLog, LoggedXid};
use gpuprobe_event::{HostGpu, Tgid};

/// Older errors are left out.
const RECENT: Duration = Duration::from_secs(3600);

/// The kernel log, or why it cannot be read.
#[derive(Debug)]
pub(crate) struct KernelLogXids(io::Result<KernelLog>);

impl KernelLogXids {
    /// Opens the log: before privileges are given up, because reading it later needs none.
    pub(crate) fn open() -> Self {
        Self(KernelLog::open())
    }

    /// The errors of the last hour on these GPUs of the host, and on those that are gone.
    pub(crate) fn recent(&mut self, host: &[HostGpu]) -> RecentXids {
        let logged = match &mut self.0 {
            Ok(log) => log.xids(RECENT).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let one = |(xid, age): (LoggedXid, Duration)| RecentXid {
            number: xid.number,
            gpu: host.iter().find(|gpu| gpu.pci == xid.gpu).map(|gpu| gpu.index.into()),
            pci: xid.gpu,
            pid: xid.pid.map(Tgid),
            age_ns: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX),
        };
        match logged {
            Ok(logged) => {
                let cut = "the kernel log is long: its newest messages were not read";
                let problem = logged.is_cut.then(|| cut.to_owned());
                RecentXids { xids: logged.xids.into_iter().map(one).collect(), problem }
            }
            Err(error) => {
                let problem = Some(format!("the kernel log cannot be read: {error}"));
                RecentXids { xids: Vec::new(), problem }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_read_is_a_problem() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let recent = KernelLogXids(Err(denied)).recent(&[]);
        assert_eq!(recent.problem.as_deref(), Some("the kernel log cannot be read: permission denied"));
    }
}
