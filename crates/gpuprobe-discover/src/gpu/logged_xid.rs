//! Parses GPU errors (XIDs) in records of the kernel log.

use gpuprobe_event::{PciAddress, pid_in_xid_message};

/// How the NVIDIA kernel module begins its messages about errors.
const BEGIN: &str = "NVRM: Xid (";

/// A GPU error in the kernel log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedXid {
    /// Microseconds on the clock of the log.
    pub at_us: u64,
    pub gpu: PciAddress,
    pub number: u32,
    /// The process that the message names.
    pub pid: Option<u32>,
}

impl LoggedXid {
    /// From a record as /dev/kmsg returns it: `3,1043,51496806959,-;NVRM: Xid (PCI:0000:0f:00): 31, pid=436, ...`.
    /// `None` for all other messages.
    pub(crate) fn parse(record: &[u8]) -> Option<Self> {
        let text = str::from_utf8(record).ok()?;
        // the head: priority, sequence number, microseconds, flags
        let (head, rest) = text.split_once(';')?;
        // lines after the message are about its device
        let message = rest.lines().next()?;
        let (gpu, error) = message.strip_prefix(BEGIN)?.split_once("): ")?;
        let digits = error.find(|c: char| !c.is_ascii_digit()).unwrap_or(error.len());
        Some(Self {
            at_us: head.split(',').nth(2)?.parse().ok()?,
            gpu: address(gpu)?,
            number: error[..digits].parse().ok()?,
            pid: pid_in_xid_message(&error[digits..]),
        })
    }
}

/// From `PCI:0000:0f:00`, which has no function, also with the numbers of a MIG instance after it. Old versions write no
/// `PCI:`.
fn address(text: &str) -> Option<PciAddress> {
    let address = text.split(' ').next()?;
    let address = address.strip_prefix("PCI:").unwrap_or(address);
    PciAddress::parse(address).or_else(|| PciAddress::parse(&format!("{address}.0")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(record: &str) -> Option<(u64, String, u32, Option<u32>)> {
        let xid = LoggedXid::parse(record.as_bytes())?;
        Some((xid.at_us, xid.gpu.to_string(), xid.number, xid.pid))
    }

    #[test]
    fn every_form_of_the_message_is_parsed() {
        let gpu = || "0000:0f:00.0".to_owned();
        for (message, expected) in [
            ("NVRM: Xid (PCI:0000:0f:00): 31, pid=436, name=python3, Ch 00000008", (31, Some(436))),
            ("NVRM: Xid (PCI:0000:0f:00): 13, pid='436', name=python3, Graphics", (13, Some(436))),
            ("NVRM: Xid (PCI:0000:0f:00): 43, pid='<unknown>', name=<unknown>, Ch 1", (43, None)),
            ("NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.", (79, None)),
            ("NVRM: Xid (PCI:0000:0f:00 GPU-I:05): 43, pid=9, name=x", (43, Some(9))),
            ("NVRM: Xid (PCI:0000:0f:00.0): 48", (48, None)),
            ("NVRM: Xid (0000:0f:00): 56, CMDre 00000000", (56, None)),
        ] {
            let record =
                format!("3,1043,51496806959,-;{message}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:0f:00.0\n");
            let (number, pid) = expected;
            assert_eq!(parsed(&record), Some((51_496_806_959, gpu(), number, pid)), "{message}");
        }
    }

    #[test]
    fn other_messages_are_none() {
        for record in [
            "",
            ";",
            "6,1,5,-;",
            "6,1,5,-;NVRM: GPU at PCI:0000:0f:00: GPU-1234",
            "6,1,5,-;usb 1-1: NVRM: Xid (PCI:0000:0f:00): 31, x",
            "6,1,5,-;a\n NVRM: Xid (PCI:0000:0f:00): 31, x",
            "6,1,5,-;NVRM: Xid (PCI:0000:0f:00) 31",
            "6,1,5,-;NVRM: Xid (PCI:0000:0f): 31",
            "6,1,5,-;NVRM: Xid (PCI:0000:0f:00): x",
            "6,1,5,-;NVRM: Xid (PCI:0000:0f:00): 99999999999, x",
            "6,1;NVRM: Xid (PCI:0000:0f:00): 31, x",
            "6,1,-5,-;NVRM: Xid (PCI:0000:0f:00): 31, x",
        ] {
            assert_eq!(parsed(record), None, "{record}");
        }
        assert_eq!(LoggedXid::parse(b"6,1,5,-;NVRM: Xid (PCI:0000:0f:00): 31, \xff"), None);
    }
}
