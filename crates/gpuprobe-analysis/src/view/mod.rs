//! The model of the live views, `gpuprobe top` and the page of the daemon: rows for GPUs and processes with rates and
//! short histories, and the details of one process. It is computed from successive readings of snapshots.

mod arrange;
mod details;
mod host_history;
mod live_growth;
mod live_view;
mod reading;
mod rows;

pub use self::arrange::{Arranged, Column, Line, Order};
pub use self::details::{CallRow, CopyRow, Details, ErrorRow, GapRow, KernelRow, SiteRow, StreamTotals};
pub use self::host_history::{GpuHistory, History, LENGTH_SECONDS, LogEntry, LogEvent, ProcessHistory};
pub use self::live_growth::LiveGrowth;
pub use self::live_view::LiveView;
pub use self::reading::Reading;
pub use self::rows::{GpuRow, PendingCall, ProcessId, ProcessRow, View, XidRow};

#[cfg(test)]
mod tests;
