//! The driver function that each stand-in runtime function calls, read from the table that the C code uses.

use std::collections::HashMap;
use std::sync::LazyLock;

use gpuprobe_event::catalogue::{Api, catalogue};

use crate::sources::{HIP_FUNCTIONS, INNER_CALLS};

/// The driver function of every runtime function that is not in the table.
const FALLBACK: &str = "cuDriverGetVersion";

/// `cudaMemcpyKind`, in the order of its values.
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
    /// All kinds, in the order of their values.
    pub const ALL: [Self; 5] = [Self::H2H, Self::H2D, Self::D2H, Self::D2D, Self::Default];

    /// The name in the table and in the ledger.
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

/// Driver function by runtime function and, for copies, kind (otherwise empty); `None` for functions that call nothing.
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

/// The function of CUDA whose implementation the stand-in of a function of HIP has.
pub fn cuda_function(name: &str) -> Option<&'static str> {
    static FUNCTIONS: LazyLock<HashMap<&'static str, &'static str>> =
        LazyLock::new(|| HIP_FUNCTIONS.lines().filter_map(parse_hip).collect());
    FUNCTIONS.get(name).copied()
}

fn parse_hip(line: &'static str) -> Option<(&'static str, &'static str)> {
    line.strip_prefix("HIP(")?.strip_suffix(')')?.split_once(", ")
}

/// The base name of a per-thread variant, which shares its code.
pub(crate) fn without_thread_suffix(name: &str) -> &str {
    ["_ptsz", "_ptds", "_spt"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

/// The driver function that a runtime function calls, once per call. `None` for functions that do not call the driver
/// (error names, registration) and for names that are not runtime functions. For a copy that depends on its kind, this is
/// the function for `Default`; see [`inner_copy_call`].
pub fn inner_call(name: &str) -> Option<&'static str> {
    let base = without_thread_suffix(name);
    if let Some(row) = TABLE.get(&(base, "")).or_else(|| TABLE.get(&(base, CopyKind::Default.as_str()))) {
        return *row;
    }
    catalogue().lookup(Api::Runtime, None, name).map(|_| FALLBACK)
}

/// Like [`inner_call`], for a copy of this kind.
pub fn inner_copy_call(name: &str, kind: CopyKind) -> Option<&'static str> {
    let row = TABLE.get(&(without_thread_suffix(name), kind.as_str()));
    row.copied().unwrap_or_else(|| inner_call(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_thread_variants_use_the_row_of_their_base_name() {
        assert_eq!(inner_call("cudaMalloc"), Some("cuMemAlloc_v2"));
        assert_eq!(inner_call("cudaLaunchKernel_ptsz"), Some("cuLaunchKernel"));
        assert_eq!(inner_copy_call("cudaMemcpy", CopyKind::H2D), Some("cuMemcpyHtoD_v2"));
        assert_eq!(inner_copy_call("cudaMemcpyAsync_ptsz", CopyKind::D2D), Some("cuMemcpyDtoDAsync_v2"));
        assert_eq!(inner_call("cudaMemcpy"), Some("cuMemcpy"));
    }

    #[test]
    fn unlisted_runtime_functions_use_the_fallback_and_unknown_names_have_none() {
        assert_eq!(inner_call("cudaGetLastError"), Some(FALLBACK));
        assert_eq!(inner_call("cudaGetErrorString"), None);
        assert_eq!(inner_call("no_such_function"), None);
    }

    #[test]
    fn the_catalogue_has_every_function_of_the_table() {
        for ((function, _), driver) in TABLE.iter() {
            assert!(catalogue().lookup(Api::Runtime, None, function).is_some(), "{function}");
            if let Some(driver) = driver {
                assert!(catalogue().lookup(Api::Driver, None, driver).is_some(), "{driver}");
            }
        }
        assert!(TABLE.len() > 90, "{}", TABLE.len());
    }

    #[test]
    fn the_catalogue_has_every_function_of_hip_and_the_one_it_is_implemented_by() {
        let rows: Vec<_> = HIP_FUNCTIONS.lines().filter_map(parse_hip).collect();
        assert!(rows.len() > 150, "{}", rows.len());
        for (function, implementation) in rows {
            assert!(catalogue().lookup(Api::Hip, None, function).is_some(), "{function}");
            let found = [Api::Runtime, Api::Driver].map(|api| catalogue().lookup(api, None, implementation));
            assert!(found.iter().flatten().count() == 1, "{implementation}");
        }
        assert_eq!(cuda_function("hipHostMalloc"), Some("cudaHostAlloc"));
    }
}
