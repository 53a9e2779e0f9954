//! Checks a request to record a process before it becomes an order.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use gpuprobe_event::{Hooks, Tgid};
use gpuprobe_output::{RecordRefusal, RecordRequest};

use crate::cli::Layer;
use crate::session::follow::process_set::process_of_thread;
use crate::session::probes::selection::Selection;

/// Most globs of functions, and most bytes of one.
const MOST_FUNCTIONS: usize = 64;
const MOST_GLOB_BYTES: usize = 256;

/// How long a recording lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) default: Duration,
    pub(super) limit: Duration,
}

impl Times {
    /// The length of a recording.
    pub(super) fn of(self, request: &RecordRequest) -> Result<f64, RecordRefusal> {
        let limit = self.limit.as_secs_f64();
        let Some(seconds) = request.seconds else { return Ok(self.default.as_secs_f64().min(limit)) };
        // a shorter one would end before it has begun
        if seconds >= 0.001 && seconds <= limit {
            return Ok(seconds);
        }
        Err(RecordRefusal::Invalid(format!(
            "`seconds` must be at least 0.001 and at most {limit}, see --record-time-limit"
        )))
    }
}

/// Checks globs as `record -e` does.
pub(super) fn check_functions(request: &RecordRequest) -> Result<(), RecordRefusal> {
    let globs = &request.functions;
    if globs.len() > MOST_FUNCTIONS || globs.iter().any(|glob| glob.len() > MOST_GLOB_BYTES) {
        return Err(RecordRefusal::Invalid(format!(
            "`functions` may have {MOST_FUNCTIONS} globs of {MOST_GLOB_BYTES} bytes"
        )));
    }
    let selection = Selection::from_globs(globs, Layer::default(), &Hooks::default());
    selection.map(|_| ()).map_err(|error| RecordRefusal::Invalid(format!("`functions`: {error:#}")))
}

/// The name of the process to record.
pub(super) fn check_process(pid: u32, observed: Option<&[Tgid]>) -> Result<String, RecordRefusal> {
    let unknown = |why: String| Err(RecordRefusal::Unknown(why));
    if let Some(process) = process_of_thread(pid) {
        return unknown(format!("{pid} is a thread of process {process}"));
    }
    let folder = Path::new("/proc").join(pid.to_string());
    let Ok(name) = fs::read(folder.join("comm")) else {
        return unknown(format!("there is no process {pid}"));
    };
    if fs::read_link(folder.join("exe")).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return unknown(format!("{pid} is a thread of the Linux kernel, or has exited"));
    }
    if observed.is_some_and(|observed| !observed.contains(&Tgid(pid))) {
        return unknown(format!("process {pid} is not one of those that the daemon observes (--pid)"));
    }
    Ok(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invalid(error: RecordRefusal) -> String {
        match error {
            RecordRefusal::Invalid(why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn unknown(error: RecordRefusal) -> String {
        match error {
            RecordRefusal::Unknown(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_recording_has_a_time_within_the_limit() {
        let times = Times { default: Duration::from_secs(10), limit: Duration::from_secs(60) };
        let of = |seconds| times.of(&RecordRequest { seconds, ..RecordRequest::default() });
        assert_eq!([of(None), of(Some(0.5)), of(Some(60.0))], [Ok(10.0), Ok(0.5), Ok(60.0)]);
        for wrong in [0.0, -1.0, 60.5, f64::NAN, f64::INFINITY] {
            let why = invalid(of(Some(wrong)).unwrap_err());
            assert!(why.contains("at most 60, see --record-time-limit"), "{why}");
        }
        let short = Times { limit: Duration::from_secs(5), ..times };
        assert_eq!(short.of(&RecordRequest::default()), Ok(5.0), "the limit is for the default, too");
    }

    #[test]
    fn functions_are_those_of_record() {
        let check = |functions: &[&str]| {
            let functions = functions.iter().map(|glob| (*glob).to_owned()).collect();
            check_functions(&RecordRequest { functions, ..RecordRequest::default() })
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["cuMemAlloc*", "!cuMemAllocHost*"]), Ok(()));
        assert!(invalid(check(&["cuMemAlok"]).unwrap_err()).contains("cuMemAlok"));
        assert!(invalid(check(&["["]).unwrap_err()).starts_with("`functions`: "));
        assert!(invalid(check(&[&"x".repeat(300)]).unwrap_err()).contains("256 bytes"));
        assert!(invalid(check(&["cu*"; 65]).unwrap_err()).contains("64 globs"));
    }

    #[test]
    fn a_process_must_run_and_be_observed() {
        let own = std::process::id();
        let name = check_process(own, None).unwrap();
        assert_eq!(fs::read_to_string("/proc/self/comm").unwrap(), format!("{name}\n"));
        assert!(check_process(own, Some(&[Tgid(own)])).is_ok());
        assert!(unknown(check_process(own, Some(&[])).unwrap_err()).contains("(--pid)"));
        for none in [0, u32::MAX] {
            assert_eq!(
                unknown(check_process(none, None).unwrap_err()),
                format!("there is no process {none}")
            );
        }
        let of_thread = std::thread::spawn(|| {
            let thread = nix::unistd::gettid().as_raw().cast_unsigned();
            (thread, unknown(check_process(thread, None).unwrap_err()))
        });
        let (thread, why) = of_thread.join().unwrap();
        assert_eq!(why, format!("{thread} is a thread of process {own}"));
    }
}
