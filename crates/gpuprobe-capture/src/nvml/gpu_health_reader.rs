//! Reads the health of a GPU: what became of faulty memory, and its NVLinks.

use gpuprobe_event::gpu_health::{GpuHealth, NvLink, NvLinkError, RemappedRows, RetiredPages};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::RetirementCause;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
    NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, NVML_FI_DEV_NVLINK_GET_SPEED,
    NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_FAILURE,
    NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_UNC,
};

use super::raw_values::fields;

/// More NVLinks than any GPU has.
const MOST_LINKS: u64 = 64;
/// NVML reports the speed of NVLinks in MB/s and their traffic in KiB.
const MB: u64 = 1_000_000;
const KIB: u64 = 1024;

/// The fields of [`NvLinkError::ALL`], in that order.
const ERRORS: [u32; NvLinkError::ALL.len()] = [
    NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
];

pub(super) fn health(device: &Device<'_>) -> GpuHealth {
    GpuHealth { rows: rows(device), pages: pages(device), nvlinks: nvlinks(device) }
}

fn rows(device: &Device<'_>) -> RemappedRows {
    let ids = [
        NVML_FI_DEV_REMAPPED_COR,
        NVML_FI_DEV_REMAPPED_UNC,
        NVML_FI_DEV_REMAPPED_PENDING,
        NVML_FI_DEV_REMAPPED_FAILURE,
    ];
    let [corrected, uncorrected, pending, failure] = fields(device, 0, ids);
    let is_set = |flag: u64| flag != 0;
    RemappedRows { corrected, uncorrected, is_pending: pending.map(is_set), has_failed: failure.map(is_set) }
}

fn pages(device: &Device<'_>) -> RetiredPages {
    let count = |cause| u64::try_from(device.retired_pages(cause).ok()?.len()).ok();
    RetiredPages {
        corrected: count(RetirementCause::MultipleSingleBitEccErrors),
        uncorrected: count(RetirementCause::DoubleBitEccError),
        is_pending: device.are_pages_pending_retired().ok(),
    }
}

fn nvlinks(device: &Device<'_>) -> Vec<NvLink> {
    let [count] = fields(device, 0, [NVML_FI_DEV_NVLINK_LINK_COUNT]);
    let numbers = (0..count.unwrap_or(0).min(MOST_LINKS)).filter_map(|number| u32::try_from(number).ok());
    numbers.filter_map(|number| nvlink(device, number)).collect()
}

/// `None` if NVML does not report whether it is up.
fn nvlink(device: &Device<'_>, number: u32) -> Option<NvLink> {
    let link = device.link_wrapper_for(number);
    let link = NvLink { number, is_up: link.is_active().ok()?, ..NvLink::default() };
    if !link.is_up {
        return Some(link);
    }
    let rates = [
        NVML_FI_DEV_NVLINK_GET_SPEED,
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    ];
    let [speed, received, sent] = fields(device, number, rates);
    Some(NvLink {
        bytes_per_second: speed.map(|mb| mb.saturating_mul(MB)),
        received_bytes: received.map(|kib| kib.saturating_mul(KIB)),
        sent_bytes: sent.map(|kib| kib.saturating_mul(KIB)),
        errors: fields(device, number, ERRORS),
        ..link
    })
}
