//! The individual calls of the timeline, as data that the script of the page draws.

use std::collections::HashMap;

use gpuprobe_analysis::ReplayReport;
use gpuprobe_analysis::timeline::call_log::LoggedCall;
use gpuprobe_analysis::timeline::{Activity, Lane};
use gpuprobe_event::{Call, Execution, ExecutionKind, Outcome};

use super::lanes::Drawn;
use super::svg::put;
use crate::live::arguments::by_name;
use crate::units::{bytes, count, duration, fitted, printable};

/// The size of the data. With the other parts, a page stays far below 20 MB.
const MOST_BYTES: usize = 10 << 20;
/// The size of the data of executions.
const MOST_EXECUTION_BYTES: usize = 5 << 20;
/// Characters of one text: a name, arguments or a frame.
const MOST_CHARS: usize = 2000;

/// Texts that occur in several calls, each stored once. The first is empty.
#[derive(Debug, Default)]
struct Texts {
    numbers: HashMap<String, usize>,
    list: String,
}

impl Texts {
    fn number(&mut self, text: String) -> usize {
        if text.is_empty() {
            return 0;
        }
        let next = self.numbers.len() + 1;
        *self.numbers.entry(text).or_insert_with_key(|text| {
            self.list.push(',');
            self.list += &json(text);
            next
        })
    }
}

/// A text as JSON inside HTML.
fn json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn shown(text: &str) -> String {
    fitted(&printable(text), MOST_CHARS).into_owned()
}

/// Appends the data, and says which calls it has.
pub(super) fn calls(out: &mut String, report: &ReplayReport, drawn: &Drawn<'_>) {
    if report.timeline.rows.is_empty() {
        return;
    }
    let log = &report.calls;
    let (from_ns, to_ns) = (report.timeline.from_ns, report.timeline.to_ns);
    let (mut texts, mut rows) = (Texts::default(), String::new());
    let (mut embedded, mut left_out, mut left_out_ns) = (0_u64, log.left_out, log.left_out_ns);
    for (at, call) in log.calls.iter().enumerate() {
        if rows.len() + texts.list.len() > MOST_BYTES {
            left_out += (log.calls.len() - at) as u64;
            left_out_ns = call.duration_ns();
            break;
        }
        embedded += u64::from(row(&mut rows, &mut texts, call, from_ns, drawn));
    }
    executions(out, report, (&mut rows, &mut texts), drawn);
    let mut idle = String::new();
    for (stream, at) in &drawn.idle {
        for (start_ns, end_ns) in &stream.spans {
            let comma = if idle.is_empty() { "" } else { "," };
            let start_ns = start_ns.saturating_sub(from_ns);
            put!(
                idle,
                "{comma}[{at},{start_ns},{}]",
                end_ns.saturating_sub(from_ns).saturating_sub(start_ns)
            );
        }
    }
    explain(out, embedded, left_out, left_out_ns);
    put!(
        out,
        "<pre id=\"calls\" hidden>{{\"from\":{from_ns},\"span\":{},\"left\":{left_out},\"texts\":[\"\"{}],\"calls\":[{rows}],\"idle\":[{idle}]}}</pre>\n",
        (to_ns - from_ns).max(1),
        texts.list
    );
}

fn explain(out: &mut String, embedded: u64, left_out: u64, left_out_ns: u64) {
    let calls = |n| count(n, "call", "calls");
    if left_out > 0 {
        put!(
            out,
            "<p id=\"limit\">This page has the {embedded} longest of {}, one by one: all that took longer than {}. The others are only in the bins behind them.</p>\n",
            calls(embedded.saturating_add(left_out)),
            duration(left_out_ns)
        );
    } else if embedded == 0 {
        out.push_str("<p id=\"limit\">This page has no individual calls, only bins.</p>\n");
    }
}

/// Appends one call. Returns `false` if its lane is not drawn.
fn row(out: &mut String, texts: &mut Texts, logged: &LoggedCall, from_ns: u64, drawn: &Drawn<'_>) -> bool {
    let call = &*logged.slice.call;
    let (lane, depth) = if call.is_in_linux() {
        (Lane::Driver(call.tid), 0)
    } else {
        (Lane::Thread(call.tid), logged.slice.depth)
    };
    let of_lane = |lane| drawn.index.get(&(call.tgid, lane)).copied();
    let stream = logged.op.as_ref().and_then(|(stream, _)| of_lane(Lane::Stream(*stream)));
    let Some(lane) = of_lane(lane) else { return false };
    let mut args = String::new();
    if call.args.is_some() {
        by_name(&mut args, call);
    }
    let op = logged.op.as_ref().map(|(_, name)| shown(name)).unwrap_or_default();
    let stack: Vec<_> = call.stack.as_deref().unwrap_or_default().iter().map(|frame| shown(frame)).collect();
    let numbers = [
        texts.number(shown(&call.title())),
        texts.number(op),
        texts.number(shown(&args)),
        texts.number(result(call)),
        texts.number(stack.join("\n")),
    ];
    let comma = if out.is_empty() { "" } else { "," };
    put!(
        out,
        "{comma}[{lane},{},{},{},{depth},{}",
        // lanes are counted from 1 here, because most calls have no stream
        stream.map_or(0, |at| at + 1),
        logged.slice.start_ns.saturating_sub(from_ns),
        logged.duration_ns(),
        Activity::of(call.class) as usize
    );
    // texts at the end that are empty are left out
    let used = numbers.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1);
    numbers[..used].iter().for_each(|number| put!(out, ",{number}"));
    out.push(']');
    true
}

/// Appends the executions, and says which there are.
fn executions(
    out: &mut String,
    report: &ReplayReport,
    (rows, texts): (&mut String, &mut Texts),
    drawn: &Drawn<'_>,
) {
    let log = &report.executions;
    let most = rows.len() + texts.list.len() + MOST_EXECUTION_BYTES;
    let (mut embedded, mut left_out, mut left_out_ns) = (0_u64, log.left_out, log.left_out_ns);
    for (at, one) in log.executions.iter().enumerate() {
        if rows.len() + texts.list.len() > most {
            left_out += (log.executions.len() - at) as u64;
            left_out_ns = one.duration_ns();
            break;
        }
        embedded += u64::from(execution(rows, texts, one, report.timeline.from_ns, drawn));
    }
    if left_out > 0 {
        put!(
            out,
            "<p>This page has the {embedded} longest of {}, one by one: all that took longer than {}.</p>\n",
            count(embedded.saturating_add(left_out), "execution", "executions"),
            duration(left_out_ns)
        );
    }
}

/// Appends one execution. Returns `false` if its lane is not drawn.
fn execution(out: &mut String, texts: &mut Texts, one: &Execution, from_ns: u64, drawn: &Drawn<'_>) -> bool {
    let lane = Lane::Gpu { gpu: one.gpu, stream: one.stream };
    let Some(lane) = drawn.index.get(&(one.tgid, lane)).copied() else { return false };
    let (name, result) = (texts.number(shown(one.kind.title())), texts.number(details(one)));
    let comma = if out.is_empty() { "" } else { "," };
    put!(
        out,
        "{comma}[{lane},0,{},{},0,{},{name},0,0,{result}]",
        one.start_ns.saturating_sub(from_ns),
        one.duration_ns(),
        Activity::of_execution(&one.kind) as usize
    );
    true
}

/// What is known about an execution besides its name.
fn details(one: &Execution) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let ExecutionKind::Copy { direction, .. } = &one.kind
        && direction.is_known()
    {
        parts.push(direction.as_str().to_owned());
    }
    parts.extend(one.kind.bytes().map(bytes));
    if let ExecutionKind::Kernel { grid, block, .. } = &one.kind {
        parts.push(format!("grid {}, block {}", dim(*grid), dim(*block)));
    }
    match one.submission {
        Some(by) => parts.push(format!("queued {}, submitted by thread {}", duration(by.queued_ns), by.tid)),
        None => parts.push("its submission was not found".to_owned()),
    }
    parts.join(", ")
}

fn dim([x, y, z]: [u32; 3]) -> String {
    format!("({x},{y},{z})")
}

/// How the call ended and what it did, if there is more to say than that it succeeded.
fn result(call: &Call) -> String {
    let mut parts: Vec<String> = Vec::new();
    match call.outcome {
        Outcome::Returned { .. } if !call.return_probed => {
            parts.push("its return was not probed: estimated time".to_owned());
        }
        Outcome::Returned { .. } | Outcome::Instant => {}
        Outcome::Unfinished => parts.push("did not return".to_owned()),
        Outcome::Begun | Outcome::Unobserved => parts.push("its return was not recorded".to_owned()),
    }
    parts.extend(call.error.as_deref().map(shown));
    parts.extend(call.effect.size().map(bytes));
    if let Some(launch) = call.effect.launch() {
        parts.extend(launch.grid.map(|grid| format!("grid {}", dim(grid))));
        parts.extend(launch.block.map(|block| format!("block {}", dim(block))));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_stored_once_and_cannot_leave_their_element() {
        let mut texts = Texts::default();
        let evil = "</pre><script>\"&";
        let numbers = ["", "a", evil, "a"].map(|text| texts.number(text.to_owned()));
        assert_eq!(numbers, [0, 1, 2, 1]);
        assert_eq!(texts.list, r#","a","&lt;/pre&gt;&lt;script&gt;\"&amp;""#);
    }

    #[test]
    fn the_page_says_which_calls_it_has() {
        let text = |embedded, left_out, ns| {
            let mut out = String::new();
            explain(&mut out, embedded, left_out, ns);
            out
        };
        assert_eq!(text(5, 0, 0), "");
        assert!(
            text(5, 10, 1500)
                .contains("the 5 longest of 15 calls, one by one: all that took longer than 1.5")
        );
        assert!(text(0, 0, 0).contains("only bins"));
    }
}
