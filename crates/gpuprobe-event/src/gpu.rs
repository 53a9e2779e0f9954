//! Identifies GPUs, by the host's numbers or by those of a process.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A GPU. A process numbers the GPUs that it may use in its own order, so its numbers differ from the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpu {
    /// The host's number, see [`HostGpu::index`].
    Host(u8),
    /// The process's number, if the host's is not certain.
    OfProcess(u8),
}

impl Gpu {
    /// The number, of the host or of the process.
    pub fn number(self) -> u8 {
        match self {
            Self::Host(number) | Self::OfProcess(number) => number,
        }
    }
}

/// The UUID of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

/// Bytes between two hyphens.
const UUID_GROUPS: [usize; 5] = [4, 2, 2, 2, 6];

impl Uuid {
    /// From `GPU-11223344-5566-...`. `None` if it is incomplete, as for a GPU that is not initialized.
    pub fn parse(text: &str) -> Option<Self> {
        let mut uuid = [0; 16];
        let mut bytes = uuid.iter_mut();
        let mut groups = text.strip_prefix("GPU-")?.split('-');
        for length in UUID_GROUPS {
            let group = groups.next().filter(|g| g.len() == 2 * length && g.is_ascii())?;
            for (at, byte) in (0..length).zip(bytes.by_ref()) {
                let digits = group.get(2 * at..2 * at + 2)?;
                // from_str_radix accepts a sign
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

/// A PCI address. Ordered as the host numbers its GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    /// The device on it.
    pub device: u8,
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

/// A GPU of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostGpu {
    /// Its number: in the order of PCI addresses, as in `nvidia-smi` and NVML.
    pub index: u8,
    /// `None` if the kernel module has not initialized the GPU yet.
    #[serde(serialize_with = "maybe_as_text", skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    #[serde(serialize_with = "as_text")]
    pub pci: PciAddress,
    /// The minor number of its device file, which may differ from the index.
    pub minor: Option<u32>,
    /// Whether it is in MIG mode: its instances are numbered by other rules.
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

pub(crate) fn maybe_uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Uuid>, D::Error> {
    from_text(deserializer, Uuid::parse)
}

pub(crate) fn maybe_pci<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PciAddress>, D::Error> {
    from_text(deserializer, PciAddress::parse)
}

fn from_text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    parse(&text).map(Some).ok_or_else(|| D::Error::custom("no identity of a GPU"))
}

/// An identity of a GPU that the CUDA driver returned to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Its UUID. For a MIG instance it may be that of the instance, which the host does not list.
    Uuid(Uuid),
    Pci(PciAddress),
}

impl Identity {
    /// The GPU with this identity.
    pub fn among(self, gpus: &[HostGpu]) -> Option<&HostGpu> {
        gpus.iter().find(|gpu| match self {
            Self::Uuid(uuid) => gpu.uuid == Some(uuid),
            // the CUDA driver always returns function 0
            Self::Pci(pci) => PciAddress { function: 0, ..gpu.pci } == PciAddress { function: 0, ..pci },
        })
    }
}

/// The GPU numbers of one process mapped to the host's, as far as they are certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuNumbers {
    known: BTreeMap<u8, u8>,
    only: Option<u8>,
}

impl GpuNumbers {
    /// Every number of the process means this GPU of the host.
    pub fn only(host: u8) -> Self {
        Self { known: BTreeMap::new(), only: Some(host) }
    }

    /// Maps a number of the process to a GPU of the host.
    pub fn set(&mut self, of_process: u8, host: u8) {
        self.known.insert(of_process, host);
    }

    /// The GPU with this number of the process.
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
    fn a_uuid_round_trips() {
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
    fn a_pci_address_is_parsed_with_any_length_of_its_domain() {
        let address = PciAddress { domain: 0, bus: 0x1b, device: 2, function: 0 };
        for text in ["0000:1b:02.0", "00000000:1B:02.0", "1b:02.0"] {
            assert_eq!(PciAddress::parse(text), Some(address), "{text}");
        }
        assert_eq!(address.to_string(), "0000:1b:02.0");
        assert_eq!(PciAddress::parse("10000:1b:02.0").unwrap().to_string(), "10000:1b:02.0");
        for wrong in
            ["", ":", "1b:02", "0000:1b:002.0", "+000:1b:02.0", "123456789:1b:02.0", "x:1b:02.0", ":1b:02.0"]
        {
            assert_eq!(PciAddress::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_uncertain_gpu_keeps_the_number_of_the_process() {
        let mut numbers = GpuNumbers::default();
        numbers.set(0, 3);
        assert_eq!([numbers.of(0), numbers.of(1)], [Gpu::Host(3), Gpu::OfProcess(1)]);
        assert_eq!(GpuNumbers::only(2).of(7), Gpu::Host(2));
        assert_eq!((numbers.of(0).number(), numbers.of(1).number()), (3, 1));
    }
}
