//! Calls that have not returned: they show what a program that hangs is waiting for.

use std::collections::HashMap;

use gpuprobe_event::{Call, Tgid, Tid};

use super::arguments;
use super::line_parts::{indent, push_thread};
use crate::table::{Align, rows};
use crate::units::{duration, printable, push_printable};

/// A call that was pending before the probes were attached: it is known only from the stack of its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyCall {
    pub tgid: Tgid,
    pub tid: Tid,
    pub process: String,
    pub function: String,
    /// The line of the program that made it.
    pub place: Option<String>,
}

/// Calls that were pending before the probes were attached, as a table.
pub fn early_pending(calls: &[EarlyCall]) -> String {
    let row = |call: &EarlyCall| {
        let place = call.place.as_ref().map(|place| format!(" at {place}")).unwrap_or_default();
        let details = format!("{} {}/{}{place}", call.process, call.tgid, call.tid);
        let began = "pending, began before gpuprobe attached";
        vec![printable(&call.function).into_owned(), began.to_owned(), printable(&details).into_owned()]
    };
    let mut out = String::new();
    rows(&mut out, "", &[Align::Left; 3], &calls.iter().map(row).collect::<Vec<_>>());
    out
}

/// Open calls as a table, the thread that has waited longest first. Within a thread an outer call comes before the
/// calls inside it. `now_ns` is on the clock of `start_ns`.
pub fn pending(calls: &[Call], now_ns: u64) -> String {
    let thread = |call: &Call| -> (Tgid, Tid) { (call.tgid, call.tid) };
    let mut since: HashMap<(Tgid, Tid), u64> = HashMap::new();
    for call in calls {
        let oldest = since.entry(thread(call)).or_insert(call.start_ns);
        *oldest = call.start_ns.min(*oldest);
    }
    let mut sorted: Vec<&Call> = calls.iter().collect();
    // calls of one thread may begin at the same time of a coarse clock, but their ids always rise
    sorted.sort_by_key(|call| (since[&thread(call)], thread(call), call.start_ns, call.id));

    let mut table = Vec::with_capacity(sorted.len());
    let mut inside = 0;
    for (i, call) in sorted.iter().enumerate() {
        let same = i > 0 && thread(sorted[i - 1]) == thread(call);
        inside = if same { u8::saturating_add(inside, 1) } else { 0 };
        table.push(row(call, inside, now_ns));
    }
    let mut out = String::new();
    rows(&mut out, "", &[Align::Left; 3], &table);
    out
}

fn row(call: &Call, inside: u8, now_ns: u64) -> Vec<String> {
    let mut name = String::new();
    indent(&mut name, inside);
    push_printable(&mut name, &call.name);
    let mut details = String::new();
    push_thread(&mut details, call);
    details.push(' ');
    arguments::list(&mut details, call);
    let age = duration(now_ns.saturating_sub(call.start_ns));
    vec![name, format!("pending {age}"), details]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_calls_have_no_age_but_a_line() {
        let call = |tid, function: &str, place: Option<&str>| EarlyCall {
            tgid: Tgid(31),
            tid: Tid(tid),
            process: "py\u{1b}thon".to_owned(),
            function: function.to_owned(),
            place: place.map(str::to_owned),
        };
        let calls = [call(31, "cuStreamSynchronize", Some("train.py:88")), call(32, "ncclAllReduce", None)];
        let text = early_pending(&calls);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("cuStreamSynchronize  pending, began before gpuprobe attached"),
            "{text}"
        );
        assert!(lines[0].ends_with("31/31 at train.py:88") && lines[1].ends_with("31/32"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(early_pending(&[]), "");
    }
}
