//! Names the functions behind exported thunks. An export of libcuda checks a flag and jumps to a function without a name,
//! so the stack of a thread in it has only that function. The target of the jump tells which export it belongs to.

use std::collections::HashMap;

use gpuprobe_event::Api;

use crate::elf::{Elf, Table};
use crate::library::Names;
use crate::probe_point::branch_targets;

/// The largest thunk: longer exports do their work themselves.
const THUNK_BYTES: u64 = 64;
/// The most exports of a library that are examined; libcuda has about a thousand.
const EXPORT_LIMIT: usize = 1 << 14;

/// The exports of one library by the functions that they jump to.
#[derive(Debug, Default)]
pub(crate) struct ExportThunks {
    /// `None` if different functions jump there.
    by_target: HashMap<u64, Option<String>>,
}

impl ExportThunks {
    pub(crate) fn read(elf: &Elf<'_>, api: Api) -> Self {
        let mut thunks = Self::default();
        let symbols = elf.symbols(Table::Dynamic, &|name| api.owns(name)).unwrap_or_default();
        let is_thunk = |size: u64| (1..=THUNK_BYTES).contains(&size);
        for symbol in symbols.iter().filter(|s| s.is_function && is_thunk(s.size)).take(EXPORT_LIMIT) {
            let Ok(code) = elf.loaded(symbol.address, symbol.size, "an export") else { continue };
            let own = symbol.address..symbol.address.saturating_add(symbol.size);
            let mut targets: Vec<u64> = branch_targets(elf.machine, &code, symbol.address)
                .into_iter()
                .filter(|target| !own.contains(target))
                .collect();
            targets.dedup();
            if let [target] = targets[..] {
                thunks.add(target, &symbol.name);
            }
        }
        thunks
    }

    fn add(&mut self, target: u64, name: &str) {
        // `pncclAllReduce` is a second name of the same function, for profilers
        let name = name.strip_prefix('p').filter(|plain| plain.starts_with("nccl")).unwrap_or(name);
        let known = self.by_target.entry(target).or_insert_with(|| Some(name.to_owned()));
        // variants such as `cuStreamSynchronize_ptsz` may share a function; the plain name stands for all
        *known = known.take().and_then(|known| match () {
            () if name.starts_with(known.as_str()) => Some(known),
            () if known.starts_with(name) => Some(name.to_owned()),
            () => None,
        });
    }

    /// The export that jumps to the function that begins here.
    pub(crate) fn name_of(&self, begin: u64) -> Option<&str> {
        self.by_target.get(&begin)?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_share_the_plain_name_and_others_share_none() {
        let mut thunks = ExportThunks::default();
        for name in ["cuStreamSynchronize_ptsz", "cuStreamSynchronize"] {
            thunks.add(0x100, name);
        }
        for name in ["cuInit", "cuCtxCreate_v2", "cuInit"] {
            thunks.add(0x200, name);
        }
        thunks.add(0x300, "cuMemFree_v2");
        for name in ["pncclAllReduce", "ncclAllReduce"] {
            thunks.add(0x400, name);
        }
        let names = [0x100, 0x200, 0x300, 0x400, 0x500].map(|at| thunks.name_of(at));
        let expected = [Some("cuStreamSynchronize"), None, Some("cuMemFree_v2"), Some("ncclAllReduce"), None];
        assert_eq!(names, expected);
    }
}
