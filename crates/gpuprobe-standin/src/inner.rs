//! Which driver function each stand-in runtime function calls; read from the table that the C code calls through.

use std::collections::HashMap;
use std::sync::LazyLock;

use gpuprobe_event::catalogue::{Api, catalogue};

use crate::sources::INNER_CALLS;

/// What every runtime function calls that the table does not name.
const FALLBACK: &str = "cuDriverGetVersion";

/// `cudaMemcpyKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyKind {
    /// 0
    H2H,
    /// 1
    H2D,
    /// 2
    D2H,
    /// 3
    D2D,
    /// 4
    Default,
}

impl CopyKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::H2H, Self::H2D, Self::D2H, Self::D2D, Self::Default];

    /// The word of the table and of the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::H2H => "H2H",
            Self::H2D => "H2D",
            Self::D2H => "D2H",
            Self::D2D => "D2D",
            Self::Default => "Default",
        }
    }
}

/// Driver names by runtime name and, for copies, kind (empty otherwise); `None` for functions that call nothing.
static TABLE: LazyLock<HashMap<(&'static str, &'static str), Option<&'static str>>> =
    LazyLock::new(|| INNER_CALLS.lines().filter_map(parse_row).collect());

fn parse_row(line: &'static str) -> Option<((&'static str, &'static str), Option<&'static str>)> {
    let (word, rest) = line.split_once('(')?;
    let mut columns = rest.trim_end_matches(')').split(", ");
    let function = columns.next()?;
    match word {
        "INNER" => Some(((function, ""), Some(columns.next()?))),
        "INNER_KIND" => Some(((function, columns.next()?), Some(columns.next()?))),
        "NO_INNER" => Some(((function, ""), None)),
        _ => None,
    }
}

/// The name whose code a per-thread variant shares.
pub(crate) fn without_thread_suffix(name: &str) -> &str {
    name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name)
}

/// The one driver function that a runtime function calls, once per call. `None` for those that reach no driver (error
/// names, registration) and for names that are no runtime functions. Copies by kind answer as for `Default`; see
/// [`inner_copy_call`].
pub fn inner_call(name: &str) -> Option<&'static str> {
    let base = without_thread_suffix(name);
    if let Some(row) = TABLE.get(&(base, "")).or_else(|| TABLE.get(&(base, CopyKind::Default.as_str()))) {
        return *row;
    }
    catalogue().lookup(Api::Runtime, None, name).map(|_| FALLBACK)
}

/// As [`inner_call`], for a copy of this kind.
pub fn inner_copy_call(name: &str, kind: CopyKind) -> Option<&'static str> {
    let row = TABLE.get(&(without_thread_suffix(name), kind.as_str()));
    row.copied().unwrap_or_else(|| inner_call(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_rows_and_their_variants_are_found() {
        assert_eq!(inner_call("cudaMalloc"), Some("cuMemAlloc_v2"));
        assert_eq!(inner_call("cudaLaunchKernel_ptsz"), Some("cuLaunchKernel"));
        assert_eq!(inner_copy_call("cudaMemcpy", CopyKind::H2D), Some("cuMemcpyHtoD_v2"));
        assert_eq!(inner_copy_call("cudaMemcpyAsync_ptsz", CopyKind::D2D), Some("cuMemcpyDtoDAsync_v2"));
        assert_eq!(inner_call("cudaMemcpy"), Some("cuMemcpy"));
    }

    #[test]
    fn other_runtime_functions_ask_for_the_version_and_strangers_have_none() {
        assert_eq!(inner_call("cudaGetLastError"), Some(FALLBACK));
        assert_eq!(inner_call("cudaGetErrorString"), None);
        assert_eq!(inner_call("no_such_function"), None);
    }

    #[test]
    fn every_row_names_functions_of_the_catalogue() {
        for ((function, _), driver) in TABLE.iter() {
            assert!(catalogue().lookup(Api::Runtime, None, function).is_some(), "{function}");
            if let Some(driver) = driver {
                assert!(catalogue().lookup(Api::Driver, None, driver).is_some(), "{driver}");
            }
        }
        assert!(TABLE.len() > 90, "{}", TABLE.len());
    }
}
