//! What the page of the daemon shows, as JSON: the view model, and the history.

use std::io;
use std::sync::PoisonError;

use gpuprobe_analysis::Snapshot;
use gpuprobe_analysis::view::{History, LiveGrowth, LiveView, ProcessId, View};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CharEscape, Formatter};

use super::latest::TextSource;
use crate::top::reading_of;
use crate::units::printable;

#[derive(Serialize)]
struct PageView<'a> {
    view: View,
    history: &'a History,
}

/// The overview. Everything in it can be written as JSON.
pub(super) fn view_json(source: &TextSource) -> Vec<u8> {
    let growth = source.history.lock().unwrap_or_else(PoisonError::into_inner).growth().clone();
    let view = live_view(source.before.as_deref(), &source.snapshot, growth).view();
    let history = source.history.lock().unwrap_or_else(PoisonError::into_inner);
    printable_json(&PageView { view, history: &history }).unwrap_or_default()
}

/// One process in detail, if it is listed.
pub(super) fn details_json(source: &TextSource, pid: u32, instance: u64) -> Option<Vec<u8>> {
    let before = source.before.as_ref().map(|before| only(before, pid));
    let view = live_view(before.as_ref(), &only(&source.snapshot, pid), LiveGrowth::default());
    let details = view.details(ProcessId { host: 0, pid, instance })?;
    printable_json(&details).ok()
}

/// Everything in a snapshot can be read.
fn live_view(before: Option<&Snapshot>, snapshot: &Snapshot, growth: LiveGrowth) -> LiveView {
    let read = |snapshot| reading_of(snapshot).ok();
    LiveView::of_readings(before.and_then(read), read(snapshot).unwrap_or_default(), growth)
}

/// The part of a snapshot about one pid.
fn only(snapshot: &Snapshot, pid: u32) -> Snapshot {
    Snapshot {
        unix_seconds: snapshot.unix_seconds,
        processes: snapshot.processes.iter().filter(|process| process.pid.0 == pid).cloned().collect(),
        call_sites: snapshot.call_sites.iter().filter(|sites| sites.pid.0 == pid).cloned().collect(),
        gpu_times: snapshot.gpu_times.iter().filter(|times| times.pid.0 == pid).cloned().collect(),
        budget: snapshot.budget.clone(),
        ..Snapshot::default()
    }
}

/// JSON whose texts have no character that would hide or reorder others: programs choose their names, and a name that turns
/// the direction of text could show another pid. `top` shows the same escapes.
fn printable_json(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut json = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut json, PrintableTexts))?;
    Ok(json)
}

struct PrintableTexts;

impl Formatter for PrintableTexts {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        writer.write_all(printable(fragment).replace('\\', "\\\\").as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let byte = match escape {
            CharEscape::Quote => return writer.write_all(b"\\\""),
            CharEscape::ReverseSolidus => return writer.write_all(b"\\\\"),
            CharEscape::Solidus => b'/',
            CharEscape::Backspace => 0x08,
            CharEscape::FormFeed => 0x0c,
            CharEscape::LineFeed => b'\n',
            CharEscape::CarriageReturn => b'\r',
            CharEscape::Tab => b'\t',
            CharEscape::AsciiControl(byte) => byte,
        };
        let mut utf8 = [0; 4];
        self.write_string_fragment(writer, char::from(byte).encode_utf8(&mut utf8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_hide_or_reorder_what_the_page_shows() {
        let name = "\u{202e}evil\x1b[31m\n\t\x08\u{200b}\u{7f}";
        let json = String::from_utf8(printable_json(&name).unwrap()).unwrap();
        let shown: String = serde_json::from_str(&json).unwrap();
        assert_eq!(shown, r"\u{202e}evil\u{1b}[31m\n\t\u{8}\u{200b}\u{7f}");
        assert!(shown.is_ascii() && shown == printable(name));
        for plain in ["a \"quoted\" name", r"C:\names", "\u{8bad}\u{7ec3}", "<script>x()<!--", ""] {
            let json = printable_json(&plain).unwrap();
            assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), plain);
        }
    }
}
