//! What the page of the daemon shows, as JSON: the view model, and the history.

use std::sync::PoisonError;

use gpuprobe_analysis::Snapshot;
use gpuprobe_analysis::view::{History, LiveView, ProcessId, View};
use serde::Serialize;

use super::latest::TextSource;
use crate::top::reading_of;

#[derive(Serialize)]
struct PageView<'a> {
    view: View,
    history: &'a History,
}

/// The overview. Everything in it can be written as JSON.
pub(super) fn view_json(source: &TextSource) -> Vec<u8> {
    let view = live_view(source.before.as_deref(), &source.snapshot).view();
    let history = source.history.lock().unwrap_or_else(PoisonError::into_inner);
    serde_json::to_vec(&PageView { view, history: &history }).unwrap_or_default()
}

/// One process in detail, if it is listed.
pub(super) fn details_json(source: &TextSource, pid: u32, instance: u64) -> Option<Vec<u8>> {
    let before = source.before.as_ref().map(|before| only(before, pid));
    let view = live_view(before.as_ref(), &only(&source.snapshot, pid));
    let details = view.details(ProcessId { host: 0, pid, instance })?;
    serde_json::to_vec(&details).ok()
}

fn live_view(before: Option<&Snapshot>, snapshot: &Snapshot) -> LiveView {
    let mut view = LiveView::new(0, 2);
    for snapshot in before.into_iter().chain([snapshot]) {
        if let Ok(reading) = reading_of(snapshot) {
            view.take(reading);
        }
    }
    view
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
