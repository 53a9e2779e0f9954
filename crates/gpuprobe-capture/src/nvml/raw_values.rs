//! Values that nvml-wrapper has no function for, or only one that cannot name a part of a GPU.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::struct_wrappers::device::FieldValueSample;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlFieldValue_t, nvmlReturn_t};

/// A function that sets one number.
type Number = unsafe extern "C" fn(nvmlDevice_t, *mut u32) -> nvmlReturn_t;
/// A function that sets a utilization in percent and its sampling period.
type Utilization = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut u32) -> nvmlReturn_t;

/// The values of some fields by one call into NVML; `None` for those that are not supported or no whole number. The
/// scope is the number of an NVLink for fields of NVLinks, and zero for others.
///
/// NVML has renumbered fields from 251 on, so this is not for them.
pub(super) fn fields<const N: usize>(device: &Device<'_>, scope: u32, ids: [u32; N]) -> [Option<u64>; N] {
    let Ok(function) = device.nvml().lib().nvmlDeviceGetFieldValues.as_ref() else { return [None; N] };
    let Ok(count) = i32::try_from(N) else { return [None; N] };
    let mut values = ids.map(|id| nvmlFieldValue_t {
        fieldId: id,
        scopeId: scope,
        // SAFETY: the rest is numbers, for which zeroes are valid.
        ..unsafe { std::mem::zeroed() }
    });
    // SAFETY: the handle belongs to this library, and the count is that of the array.
    let result = unsafe { function(device.handle(), count, values.as_mut_ptr()) };
    values.map(|value| if result == 0 { whole(value) } else { None })
}

fn whole(field: nvmlFieldValue_t) -> Option<u64> {
    match FieldValueSample::try_from(field).ok()?.value.ok()? {
        SampleValue::U32(number) => Some(number.into()),
        SampleValue::U64(number) => Some(number),
        SampleValue::I64(number) => u64::try_from(number).ok(),
        SampleValue::F64(_) => None,
    }
}

pub(super) fn jpeg_percent(device: &Device<'_>) -> Option<u32> {
    utilization(device, *device.nvml().lib().nvmlDeviceGetJpgUtilization.as_ref().ok()?)
}

pub(super) fn optical_flow_percent(device: &Device<'_>) -> Option<u32> {
    utilization(device, *device.nvml().lib().nvmlDeviceGetOfaUtilization.as_ref().ok()?)
}

/// The number of the GPU instance (MIG) that a handle is for.
pub(super) fn gpu_instance(device: &Device<'_>) -> Option<u32> {
    number(device, *device.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref().ok()?)
}

/// The number of the compute instance (MIG) that a handle is for.
pub(super) fn compute_instance(device: &Device<'_>) -> Option<u32> {
    number(device, *device.nvml().lib().nvmlDeviceGetComputeInstanceId.as_ref().ok()?)
}

fn utilization(device: &Device<'_>, function: Utilization) -> Option<u32> {
    let (mut percent, mut period) = (0, 0);
    // SAFETY: the handle and the function belong to the same library, and both pointers are valid for the call.
    let result = unsafe { function(device.handle(), &mut percent, &mut period) };
    (result == 0).then_some(percent)
}

fn number(device: &Device<'_>, function: Number) -> Option<u32> {
    let mut number = 0;
    // SAFETY: the handle and the function belong to the same library, and the pointer is valid for the call.
    let result = unsafe { function(device.handle(), &mut number) };
    (result == 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_a_whole_number_by_the_type_that_nvml_names() {
        let read = |kind, bits: u64, result| {
            // SAFETY: numbers only.
            let mut field: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
            (field.valueType, field.nvmlReturn, field.value.ullVal) = (kind, result, bits);
            whole(field)
        };
        const UNSIGNED_INT: u32 = 1;
        const UNSIGNED_LONG_LONG: u32 = 3;
        const SIGNED_LONG_LONG: u32 = 4;
        let large = (7 << 32) | 5;
        assert_eq!(read(UNSIGNED_INT, large, 0), Some(5));
        assert_eq!(read(UNSIGNED_LONG_LONG, large, 0), Some(large));
        assert_eq!(read(SIGNED_LONG_LONG, large, 0), Some(large));
        assert_eq!(read(SIGNED_LONG_LONG, u64::MAX, 0), None, "a negative number");
        assert_eq!(read(0, 5, 0), None, "a floating-point number");
        assert_eq!(read(99, 5, 0), None, "an unknown type");
        assert_eq!(read(UNSIGNED_INT, 5, 3), None, "not supported");
    }
}
