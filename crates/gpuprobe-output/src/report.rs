//! A recording as one self-contained HTML page: it needs no network and no other files.

mod brief;
mod calls;
mod collective_section;
mod gpu_time_section;
mod kmod_sections;
mod lanes;
mod rank_section;
mod sections;
mod site_sections;
mod svg;

use gpuprobe_analysis::ReplayReport;
use gpuprobe_event::trace::{End, Meta};

use self::svg::{escape, put};
use crate::summary::ONLY_BEGUN;
use crate::timestamp::timestamp;

const STYLE: &str = include_str!("report/page.css");
const SCRIPT: &str = include_str!("report/page.js");
/// The page may load nothing and run no script but its own, whatever the trace contains. If the script has changed, a
/// test prints its new hash.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-RsmDLToyIQ7FfNSwRXny4SWde8K89CcBeW/eOQEvkrw='; img-src data:";

/// The trace that a report is made from.
#[derive(Debug)]
pub struct Source<'a> {
    /// The name of the trace.
    pub name: &'a str,
    /// Its first line.
    pub meta: &'a Meta,
    /// Its last line; `None` if the recording was interrupted.
    pub end: Option<&'a End>,
    /// Parts of the trace that are missing, one line each.
    pub missing: &'a [String],
}

/// Writes the page.
pub fn html(report: &ReplayReport, source: &Source<'_>) -> String {
    let title = match source.meta.command.as_slice() {
        [] => source.name.to_owned(),
        command => command.join(" "),
    };
    let mut out = String::with_capacity(1 << 18);
    put!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escape(&title)
    );
    origin(&mut out, source);
    if report.summary.only_entries {
        put!(out, "<p class=\"bad\">{ONLY_BEGUN}</p>\n");
    }
    sections::figures(&mut out, report);
    out.push_str(
        "<div class=\"tools\"><input id=\"search\" type=\"search\" placeholder=\"search functions, kernels, errors, frames\" \
         aria-label=\"search\"></div>\n",
    );
    rank_section::ranks(&mut out, &report.summary);
    sections::advice(&mut out, &report.summary);
    let drawn = lanes::Drawn::new(report);
    lanes::timeline(&mut out, &report.timeline, &drawn);
    calls::calls(&mut out, report, &drawn);
    sections::memory(&mut out, report);
    sections::kernels(&mut out, &report.summary);
    gpu_time_section::gpu_time(&mut out, &report.summary.gpu_time);
    site_sections::calls_by_site(&mut out, &report.summary.calls_by_site);
    sections::copies(&mut out, &report.summary);
    collective_section::collectives(&mut out, &report.summary.collectives);
    sections::functions(&mut out, &report.summary);
    kmod_sections::sections(&mut out, &report.summary.driver);
    sections::slowest(&mut out, report, &drawn);
    sections::time(&mut out, report);
    sections::out_of_memory(&mut out, &report.summary);
    sections::errors(&mut out, &report.summary);
    sections::losses(&mut out, &report.summary, source);
    put!(out, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn origin(out: &mut String, source: &Source<'_>) {
    let meta = source.meta;
    let driver =
        meta.driver.as_ref().map(|driver| format!(", driver {}", escape(driver))).unwrap_or_default();
    put!(
        out,
        "<p>{} on {}, Linux {}{driver}; recorded by gpuprobe {} from {}</p>\n",
        timestamp(meta.start_unix, 0),
        escape(&meta.host),
        escape(&meta.kernel),
        escape(&meta.gpuprobe),
        escape(source.name)
    );
    if source.end.is_none() {
        out.push_str("<p class=\"bad\">the trace has no end line: the recording was interrupted</p>\n");
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use gpuprobe_analysis::{ErrorCount, OutOfMemoryLog, Replay, Summary, SummaryReport};
    use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS};
    use gpuprobe_event::{Api, OutOfMemoryEvent, TensorHolder};
    use sha2::{Digest, Sha256};

    use super::*;

    fn page(report: &ReplayReport) -> String {
        let meta = Meta { command: vec!["<script>alert(1)</script>".to_owned()], ..Meta::default() };
        html(report, &Source { name: "trace", meta: &meta, end: None, missing: &[] })
    }

    #[test]
    fn the_policy_allows_only_the_script_of_the_page() {
        let page = page(&Replay::default().finish(None));
        let scripts: Vec<_> = page.split("<script").skip(1).collect();
        let [script] = scripts.as_slice() else { panic!("{} scripts", scripts.len()) };
        let script = script.strip_prefix('>').and_then(|rest| rest.split_once("</script>")).unwrap().0;
        let hash = STANDARD.encode(Sha256::digest(script));
        assert!(page.contains(&format!("script-src 'sha256-{hash}'; ")), "the hash is {hash}");
        assert!(!POLICY.contains("script-src 'unsafe-inline'"));
    }

    #[test]
    fn errors_at_teardown_are_apart_from_failures() {
        let mut report = Replay::default().finish(None);
        let error = |error: &'static str, outermost| {
            let (api, function) = (Api::Driver, "cuModuleUnload".into());
            ErrorCount { api, function, error: error.into(), count: outermost, outermost }
        };
        let errors = vec![error("CUDA_ERROR_DEINITIALIZED", 7), error("CUDA_ERROR_INVALID_HANDLE", 1)];
        report.summary = SummaryReport { errors, outermost_errors: 1, teardown_errors: 7, ..report.summary };
        let page = page(&report);
        assert!(page.contains("<b>1</b><span>errors, and 7 at teardown</span>"), "{page}");
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is not in {page}"));
        assert!(place(">CUDA_ERROR_INVALID_HANDLE<") < place("(no failures):"));
        assert!(place("(no failures):") < place(">CUDA_ERROR_DEINITIALIZED<"));
    }

    #[test]
    fn out_of_memory_errors_are_listed_with_what_had_the_memory() {
        let mut report = Replay::default().finish(None);
        let holder = TensorHolder { call_site: "<keep>".into(), tensors: 2, bytes: 4096 };
        let error = OutOfMemoryEvent {
            at_ns: 2_500_000_000,
            process: "train".into(),
            gpu: Some(3),
            requested_bytes: 1 << 30,
            largest: vec![holder],
            ..OutOfMemoryEvent::default()
        };
        report.summary.out_of_memory = OutOfMemoryLog { errors: vec![error], others: 7 };
        let page = page(&report);
        assert!(
            page.contains("<li>at 2.500000 s: out of memory on GPU 3: train 0 asked for 1.0 GiB"),
            "{page}"
        );
        assert!(
            page.contains("4.0 KiB in 2 tensors from &lt;keep&gt;") && page.contains("and 7 more"),
            "{page}"
        );
    }

    #[test]
    fn memsets_do_not_count_as_copies() {
        let copy = |direction, bytes| {
            let (host, sizes) = (HostMemory::Nothing, [0; LATENCY_BUCKETS]);
            CopyTotals { direction, is_async: false, host, copies: 1, errors: 0, bytes, total_ns: 9, sizes }
        };
        let mut report = Replay::default().finish(None);
        report.summary = Summary::default().report();
        report.summary.gpu_ops.copies =
            vec![copy(CopyDirection::DeviceToDevice, 4096), copy(CopyDirection::Fill, 1 << 30)];
        let page = page(&report);
        assert!(page.contains("<b>4.0 KiB</b><span>copied</span>"), "{page}");
    }
}
