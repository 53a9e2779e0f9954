//! What the numbers of ROCm SMI mean. Nothing here calls it.

use gpuprobe_event::PciAddress;

use super::rocm_smi_library::Words;

/// More frequencies than any release lists.
const MOST_FREQUENCIES: u32 = 33;
/// No clock is slower, except one that stands still.
const LEAST_HZ: u64 = 1_000_000;

/// The address in an id: domain, then 16 bits that are reserved or have the number of a partition, then bus, device and
/// function.
pub(super) fn pci_address(id: u64) -> PciAddress {
    let bits = |from: u32, count: u32| (id >> from) & ((1 << count) - 1);
    PciAddress {
        domain: (id >> 32) as u32,
        bus: bits(8, 8) as u8,
        device: bits(3, 5) as u8,
        function: bits(0, 3) as u8,
    }
}

/// Degrees of thousandths of a degree. Below zero there is no number for it.
pub(super) fn celsius(thousandths: i64) -> Option<u32> {
    u32::try_from(thousandths / 1000).ok()
}

/// Milliwatts of microwatts.
pub(super) fn milliwatts(microwatts: u64) -> Option<u32> {
    u32::try_from(microwatts / 1000).ok()
}

/// Millijoules of a count of units, each so many microjoules.
pub(super) fn millijoules(count: u64, microjoules: f32) -> Option<u64> {
    let millijoules = count as f64 * f64::from(microjoules) / 1000.0;
    // a double has no fractions above this
    (0.0..9e15).contains(&millijoules).then_some(millijoules as u64)
}

/// The share of the highest speed.
pub(super) fn fan_percent(speed: i64, most: u64) -> Option<u32> {
    let speed = u64::try_from(speed).ok()?;
    let percent = speed.checked_mul(100)?.checked_add(most / 2)?.checked_div(most)?;
    u32::try_from(percent.min(100)).ok()
}

/// The current frequency in MHz. The struct has a count, the index of the current one, and the list, in Hz. Since ROCm 6 a
/// flag is in front of the count, which moves the list by 8 bytes: then the list of older releases would begin with the
/// index, which is no frequency.
pub(super) fn megahertz(frequencies: &Words) -> Option<u32> {
    let half = |index: usize| {
        let word = frequencies[index / 2];
        (if index.is_multiple_of(2) { word } else { word >> 32 }) as u32
    };
    let is_old = frequencies[1] >= LEAST_HZ;
    let (count, current, list) = if is_old { (half(0), half(1), 1) } else { (half(1), half(2), 2) };
    if count > MOST_FREQUENCIES || current >= count {
        return None;
    }
    let hertz = frequencies.get(list + usize::try_from(current).ok()?)?;
    u32::try_from(hertz / 1_000_000).ok()
}

/// The memory of a process on the GPU. Its number and that of its address space are in front of it.
pub(super) fn process_bytes(process: &Words) -> u64 {
    process[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(values: &[u64]) -> Words {
        let mut words = [0; 64];
        words[..values.len()].copy_from_slice(values);
        words
    }

    #[test]
    fn an_id_has_the_address_and_perhaps_a_partition() {
        let address = |domain, bus, device, function| PciAddress { domain, bus, device, function };
        assert_eq!(pci_address(0x0000_0000_0000_c300), address(0, 0xc3, 0, 0));
        assert_eq!(pci_address(0x0001_0002_0000_83fd), address(0x1_0002, 0x83, 31, 5));
        assert_eq!(pci_address(0x0000_0003_5000_0108), address(3, 1, 1, 0), "partition 5");
    }

    #[test]
    fn units_are_converted() {
        assert_eq!(
            [45_000, 45_999, 0, -5000, i64::MAX].map(celsius),
            [Some(45), Some(45), Some(0), None, None]
        );
        assert_eq!([220_000_000, 999, u64::MAX].map(milliwatts), [Some(220_000), Some(0), None]);
        // the unit of an MI200 is 15.3 microjoules
        assert_eq!(millijoules(1_000_000, 15.3), Some(15_300));
        assert_eq!([(u64::MAX, 15.3), (5, f32::NAN), (5, -1.0)].map(|(n, u)| millijoules(n, u)), [None; 3]);
        assert_eq!(
            [(0, 255), (128, 255), (255, 255), (300, 255)].map(|(s, m)| fan_percent(s, m)),
            [Some(0), Some(50), Some(100), Some(100)]
        );
        assert_eq!([(-1, 255), (5, 0), (i64::MAX, 1)].map(|(s, m)| fan_percent(s, m)), [None; 3]);
    }

    #[test]
    fn the_current_frequency_is_read_from_old_and_new_structs() {
        const MHZ: u64 = 1_000_000;
        let two = |low: u64, high: u64| low | high << 32;
        let old = words(&[two(3, 2), 500 * MHZ, 900 * MHZ, 1700 * MHZ]);
        assert_eq!(megahertz(&old), Some(1700));
        let new = words(&[two(0, 3), 1, 500 * MHZ, 900 * MHZ, 1700 * MHZ]);
        assert_eq!(megahertz(&new), Some(900));
        let asleep = words(&[two(1, 3), 0, 31 * MHZ, 500 * MHZ, 1700 * MHZ]);
        assert_eq!(megahertz(&asleep), Some(31));
        assert_eq!(megahertz(&words(&[])), None, "nothing was written");
        assert_eq!(megahertz(&words(&[two(3, 3), 500 * MHZ])), None, "the current one is not in the list");
        assert_eq!(megahertz(&words(&[two(0, 34), 33, 500 * MHZ])), None, "too many");
        assert_eq!(megahertz(&[u64::MAX; 64]), None);
    }

    #[test]
    fn a_process_has_its_memory_after_two_numbers() {
        assert_eq!(process_bytes(&words(&[4711 | 32769 << 32, 5 << 30, 77, 12])), 5 << 30);
    }
}
