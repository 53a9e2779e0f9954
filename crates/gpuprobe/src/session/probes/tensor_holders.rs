//! Adds to out-of-memory errors what had the memory: the largest call sites of the process.

use std::collections::HashMap;

use gpuprobe_analysis::{CallSite, LiveMemory, ProcessInfo, Rules};
use gpuprobe_capture::{Batch, Capture, CaptureError};
use gpuprobe_event::counters::SiteMemory;
use gpuprobe_event::{Event, LiveSite, Losses, OutOfMemoryEvent, SiteId, TensorHolder, Tgid};

/// Most processes, and most call sites of errors, that are looked up for one batch: symbols take long, and a program
/// can report any number of errors.
const MOST_PROCESSES: usize = 16;
const MOST_SITES: usize = 64;

/// Fills in the call sites of out-of-memory errors. The tensors are those of now, shortly after the error.
pub(super) fn fill_holders(batch: &mut Batch, capture: &mut Capture) -> Result<(), CaptureError> {
    let is_error = |event: &Event| matches!(event, Event::OutOfMemory(_));
    if !batch.calls.iter().any(is_error) {
        return Ok(());
    }
    let rows = capture.tensor_sites()?;
    let mut names: HashMap<SiteId, String> = HashMap::new();
    let mut by_process: HashMap<Tgid, Vec<TensorHolder>> = HashMap::new();
    for event in &mut batch.calls {
        let Event::OutOfMemory(error) = event else { continue };
        if names.len() < MOST_SITES || names.contains_key(&error.site) {
            let name = || CallSite::of(capture.frames_of(error.site).to_vec()).name();
            error.call_site = names.entry(error.site).or_insert_with(name).as_str().into();
        }
        if by_process.len() < MOST_PROCESSES || by_process.contains_key(&error.tgid) {
            let largest = || largest(error.tgid, &rows, capture);
            error.largest.clone_from(by_process.entry(error.tgid).or_insert_with(largest));
        }
    }
    Ok(())
}

/// The call sites with most bytes of live tensors in a process.
fn largest(process: Tgid, rows: &[SiteMemory], capture: &mut Capture) -> Vec<TensorHolder> {
    let is_wanted = |row: &&SiteMemory| row.process.tgid == process && row.live.live_allocations > 0;
    let rows: Vec<_> = rows.iter().filter(is_wanted).copied().collect();
    let infos = rows.iter().map(|row| (row.process, ProcessInfo::default())).collect();
    let mut tensors = LiveMemory::new(Rules { warm_up_ns: 0 }, true);
    tensors.feed(&rows, &infos, 0);
    for site in tensors.unnamed().into_iter().take(MOST_SITES) {
        tensors.name(site, capture.frames_of(site).to_vec());
    }
    let holder = |site: LiveSite| TensorHolder {
        call_site: site.call_site.into(),
        tensors: site.allocations,
        bytes: site.bytes,
    };
    let sites = tensors.report(&Losses::default(), 0).by_site().sites;
    sites.into_iter().take(OutOfMemoryEvent::MOST_HOLDERS).map(holder).collect()
}
