//! The tables that the APIs of one vendor share: types, enums, structs, roles and meanings.

use crate::table::in_ranges;

/// Generated from the vendor's headers: `versions` in order, and three tables. By hand: the other two.
#[derive(Debug)]
pub struct Vendor {
    /// The name that covers all of its APIs.
    pub title: &'static str,
    /// The releases whose headers the tables were generated from, in order.
    pub versions: &'static [&'static str],
    pub(crate) types: &'static str,
    pub(crate) enums: &'static str,
    pub(crate) structs: &'static str,
    pub(crate) roles: &'static str,
    pub(crate) meanings: &'static str,
}

pub(super) static CUDA: Vendor = Vendor {
    title: "CUDA",
    versions: &["11.8", "12.0", "12.4", "12.8", "12.9", "13.0", "13.4"],
    types: include_str!("../../catalogue/types.tbl"),
    enums: include_str!("../../catalogue/enums.tbl"),
    structs: include_str!("../../catalogue/structs.tbl"),
    roles: include_str!("../../catalogue/roles.tbl"),
    meanings: include_str!("../../catalogue/meanings.tbl"),
};

pub(super) static HIP: Vendor = Vendor {
    title: "HIP",
    versions: &["5.2", "6.1", "6.2", "7.1"],
    types: include_str!("../../catalogue/hip/types.tbl"),
    enums: include_str!("../../catalogue/hip/enums.tbl"),
    structs: include_str!("../../catalogue/hip/structs.tbl"),
    roles: include_str!("../../catalogue/hip/roles.tbl"),
    meanings: include_str!("../../catalogue/hip/meanings.tbl"),
};

pub(super) static OPENCL: Vendor = Vendor {
    title: "OpenCL",
    versions: &["1.0", "1.1", "1.2", "2.0", "2.1", "2.2", "3.0"],
    types: include_str!("../../catalogue/opencl/types.tbl"),
    enums: include_str!("../../catalogue/opencl/enums.tbl"),
    structs: include_str!("../../catalogue/opencl/structs.tbl"),
    roles: include_str!("../../catalogue/opencl/roles.tbl"),
    meanings: include_str!("../../catalogue/opencl/meanings.tbl"),
};

pub(super) static LEVEL_ZERO: Vendor = Vendor {
    title: "Level Zero",
    versions: &["1.8"],
    types: include_str!("../../catalogue/level_zero/types.tbl"),
    enums: include_str!("../../catalogue/level_zero/enums.tbl"),
    structs: include_str!("../../catalogue/level_zero/structs.tbl"),
    roles: include_str!("../../catalogue/level_zero/roles.tbl"),
    meanings: include_str!("../../catalogue/level_zero/meanings.tbl"),
};

/// Functions that are not a vendor's. The tables for them are written with CUDA's versions.
pub(super) static OTHER: Vendor =
    Vendor { title: "", versions: CUDA.versions, types: "", enums: "", structs: "", roles: "", meanings: "" };

/// Every vendor. Names of types, enums and functions are different in each, so all tables are read as one.
pub(crate) static VENDORS: [&Vendor; 4] = [&CUDA, &HIP, &OPENCL, &LEVEL_ZERO];

impl Vendor {
    /// Whether a range column such as `11.8,12.4-13.0` includes a version.
    pub(crate) fn version_in(&self, ranges: &str, version: &str) -> bool {
        let rank = |v: &str| self.versions.iter().position(|known| *known == v);
        rank(version).is_some_and(|wanted| in_ranges(ranges, wanted, rank))
    }
}
