//! Detaches single functions while the probes cost too much, and attaches them again.

use std::time::{Duration, Instant};

use gpuprobe_event::FunctionId;
use libbpf_rs::{MapCore, MapFlags};

use super::library::DetachableFunction;
use super::uprobe_attacher::UprobeAttacher;
use crate::attach::helper::helper_client::Patience;
use crate::error::CaptureError;
use crate::wire::object_handles::map_of;
use crate::wire::{MapName, as_bytes, from_bytes, gp_function, number};

/// How long calls that are open when a function is paused have to return before its probes are removed.
const RETURN_WITHIN: Duration = Duration::from_millis(500);

impl UprobeAttacher {
    /// How often functions were detached.
    pub(crate) fn times_detached(&self) -> u64 {
        self.detachable.times
    }

    /// Ignores the calls of a function, and has its probes removed some time later. Returns whether it had any.
    pub(crate) fn pause_function(&mut self, id: FunctionId) -> Result<bool, CaptureError> {
        let mut had_some = false;
        for attached in self.attached.values_mut() {
            let probed =
                attached.detachable.iter().filter(|f| f.planned.function == id && !f.links.is_empty());
            let probed = probed.count();
            attached.functions -= probed;
            had_some |= probed > 0;
        }
        if had_some && self.detachable.detached.insert(id) {
            self.detachable.times += 1;
            self.set_paused(id, true)?;
            self.detachable.leaving.push((id, Instant::now()));
        }
        Ok(had_some)
    }

    /// Removes the probes of functions that have been paused for a while.
    pub(crate) fn detach_paused(&mut self) {
        let is_due = |(_, since): &mut (FunctionId, Instant)| since.elapsed() >= RETURN_WITHIN;
        let due: Vec<_> = self.detachable.leaving.extract_if(.., is_due).collect();
        for (id, _) in due {
            let functions = self.attached.values_mut().flat_map(|attached| &mut attached.detachable);
            let functions = functions.filter(|f| f.planned.function == id);
            let links = functions.flat_map(|f| std::mem::take(&mut f.links)).collect();
            self.helper.detach_later(links);
        }
    }

    /// Attaches a function again, in every file.
    pub(crate) fn resume_function(&mut self, id: FunctionId) -> Result<(), CaptureError> {
        self.detachable.detached.remove(&id);
        self.detachable.leaving.retain(|(leaving, _)| *leaving != id);
        let attached = self.attach_again(id);
        self.set_paused(id, false)?;
        attached
    }

    /// Sets whether the BPF programs ignore the calls of a function.
    fn set_paused(&self, id: FunctionId, paused: bool) -> Result<(), CaptureError> {
        let mut row = self.function_row(id)?;
        row.flags &= !number::FUNCTION_DETACHING;
        row.flags |= if paused { number::FUNCTION_DETACHING } else { 0 };
        let map = map_of(&self.object, MapName::Functions)?;
        map.update(&id.0.to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of functions"))
    }

    fn function_row(&self, id: FunctionId) -> Result<gp_function, CaptureError> {
        let row = map_of(&self.object, MapName::Functions)?.lookup(&id.0.to_ne_bytes(), MapFlags::ANY);
        let row = row.map_err(CaptureError::bpf("read the table of functions"))?;
        row.map(|bytes| from_bytes(&bytes)).ok_or(CaptureError::Missing("row of a function"))
    }

    fn attach_again(&mut self, id: FunctionId) -> Result<(), CaptureError> {
        let mut result = Ok(());
        for attached in self.attached.values_mut() {
            let (options, file) = (attached.options, &attached.file);
            let mut patience = Patience::new(attached.may_stall, options.tier);
            let is_it = |f: &&mut DetachableFunction| f.planned.function == id;
            for function in attached.detachable.iter_mut().filter(is_it) {
                if !function.links.is_empty() {
                    attached.functions += 1;
                    continue;
                }
                match function.attach(&mut self.helper, options, file, &mut patience) {
                    Ok(links) => {
                        attached.functions += 1;
                        function.links = links;
                    }
                    Err(error) => result = Err(error),
                }
            }
        }
        result
    }
}
