//! Which GPU is meant: as the host counts them, or as a process does.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

/// A GPU. A process counts those that it may use, in an order of its own, so its numbers are not the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpu {
    /// As the host counts them: by their places on the bus, see [`HostGpu::index`].
    Host(u8),
    /// As the process counts them, where it is not certain which of the host's that is.
    OfProcess(u8),
}

impl Gpu {
    /// The number, whoever counts.
    pub fn number(self) -> u8 {
        match self {
            Self::Host(number) | Self::OfProcess(number) => number,
        }
    }
}

/// What a GPU is called that no other one is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

/// How many bytes stand between two hyphens.
const UUID_GROUPS: [usize; 5] = [4, 2, 2, 2, 6];

impl Uuid {
    /// From `GPU-11223344-5566-...`. `None` where it is not whole, as of a GPU that is not started.
    pub fn parse(text: &str) -> Option<Self> {
        let mut uuid = [0; 16];
        let mut bytes = uuid.iter_mut();
        let mut groups = text.strip_prefix("GPU-")?.split('-');
        for length in UUID_GROUPS {
            let group = groups.next().filter(|g| g.len() == 2 * length && g.is_ascii())?;
            for (at, byte) in (0..length).zip(bytes.by_ref()) {
                let digits = group.get(2 * at..2 * at + 2)?;
                // a number may have a sign before it, a digit not
                *byte = u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
            }
        }
        groups.next().is_none().then_some(Self(uuid))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        f.write_str("GPU")?;
        for length in UUID_GROUPS {
            let (group, after) = rest.split_at(length);
            rest = after;
            f.write_str("-")?;
            group.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A place on the bus. Ordered as the host counts its GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// The domain.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on it.
    pub device: u8,
    /// Its function.
    pub function: u8,
}

impl PciAddress {
    /// From `0000:1b:00.0`, `00000000:1B:00.0` or `1b:00.0`.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str, most: usize| {
            let fits = (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            u32::from_str_radix(digits, 16).ok().filter(|_| fits)
        };
        let byte = |digits: &str| u8::try_from(number(digits, 2)?).ok();
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        Some(Self {
            domain: number(domain, 8)?,
            bus: byte(bus)?,
            device: byte(device)?,
            function: byte(function)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn as_text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// One of the host's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostGpu {
    /// Its number: they are counted by their places on the bus, as `nvidia-smi` and NVML do.
    pub index: u8,
    /// What it is called; `None` where the driver has not asked it yet.
    #[serde(serialize_with = "maybe_as_text", skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// Its place.
    #[serde(serialize_with = "as_text")]
    pub pci: PciAddress,
    /// The number of its device file, which need not be the index.
    pub minor: Option<u32>,
    /// Whether it is divided into parts (MIG), which are counted in a way of their own.
    pub is_parted: bool,
}

#[expect(clippy::ref_option, reason = "this is how serde calls it")]
pub(crate) fn maybe_as_text<T: fmt::Display, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => as_text(value, serializer),
        None => serializer.serialize_none(),
    }
}

/// What the driver told a process of one of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Its UUID. Of a part of a GPU it may be the part's, which the host does not know.
    Uuid(Uuid),
    /// Its place.
    Pci(PciAddress),
}

impl Identity {
    /// Which of these it is.
    pub fn among(self, gpus: &[HostGpu]) -> Option<&HostGpu> {
        gpus.iter().find(|gpu| match self {
            Self::Uuid(uuid) => gpu.uuid == Some(uuid),
            // the driver tells the function of a place as 0 always
            Self::Pci(pci) => PciAddress { function: 0, ..gpu.pci } == PciAddress { function: 0, ..pci },
        })
    }
}

/// Which of the host's GPUs those of one process are, as far as it is certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuNumbers {
    known: BTreeMap<u8, u8>,
    only: Option<u8>,
}

impl GpuNumbers {
    /// Every number of the process means this one of the host.
    pub fn only(host: u8) -> Self {
        Self { known: BTreeMap::new(), only: Some(host) }
    }

    /// Notes that a number of the process means this one of the host.
    pub fn set(&mut self, of_process: u8, host: u8) {
        self.known.insert(of_process, host);
    }

    /// The GPU that a number of the process means.
    pub fn of(&self, of_process: u8) -> Gpu {
        let host = self.known.get(&of_process).copied().or(self.only);
        host.map_or(Gpu::OfProcess(of_process), Gpu::Host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "GPU-11223344-5566-7788-99aa-bbccddeeff0f";

    #[test]
    fn a_uuid_is_read_as_it_is_written() {
        let uuid = Uuid::parse(TEXT).unwrap();
        assert_eq!((uuid.0[0], uuid.0[15]), (0x11, 0x0f));
        assert_eq!(uuid.to_string(), TEXT);
        for wrong in [
            "",
            "GPU-",
            "GPU-????????-????-????-????-????????????",
            "11223344-5566-7788-99aa-bbccddeeff0f",
            "GPU-11223344-5566-7788-99aa-bbccddeeff0",
            "GPU-11223344-5566-7788-99aa-bbccddeeff0f-00",
            "GPU-112233445566-7788-99aa-bbccddeeff0f-00",
            "GPU-+1223344-5566-7788-99aa-bbccddeeff0f",
            "GPU-ä223344-5566-7788-99aa-bbccddeeff0f",
        ] {
            assert_eq!(Uuid::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_place_is_read_in_every_length_of_its_domain() {
        let place = PciAddress { domain: 0, bus: 0x1b, device: 2, function: 0 };
        for text in ["0000:1b:02.0", "00000000:1B:02.0", "1b:02.0"] {
            assert_eq!(PciAddress::parse(text), Some(place), "{text}");
        }
        assert_eq!(place.to_string(), "0000:1b:02.0");
        assert_eq!(PciAddress::parse("10000:1b:02.0").unwrap().to_string(), "10000:1b:02.0");
        for wrong in
            ["", ":", "1b:02", "0000:1b:002.0", "+000:1b:02.0", "123456789:1b:02.0", "x:1b:02.0", ":1b:02.0"]
        {
            assert_eq!(PciAddress::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_not_certain_keeps_the_number_of_the_process() {
        let mut numbers = GpuNumbers::default();
        numbers.set(0, 3);
        assert_eq!([numbers.of(0), numbers.of(1)], [Gpu::Host(3), Gpu::OfProcess(1)]);
        assert_eq!(GpuNumbers::only(2).of(7), Gpu::Host(2));
        assert_eq!((numbers.of(0).number(), numbers.of(1).number()), (3, 1));
    }
}
