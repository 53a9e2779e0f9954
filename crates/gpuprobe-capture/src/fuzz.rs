//! For the fuzzer only: decodes any bytes as records of the rings.

use gpuprobe_event::{Api, Event};

use crate::host::clock::Clock;
use crate::ring::decoder::{Control, Decoder};
use crate::stacks::call_sites::CallSites;
use crate::stacks::resolver::NoResolver;
use crate::wire::from_bytes;

/// The library number of the CUDA driver.
const DRIVER: u16 = 1;

/// The result of decoding.
#[derive(Debug, Default)]
pub struct Decoded {
    pub events: Vec<Event>,
    /// How many records there were.
    pub records: u64,
    /// How many of these could not be decoded.
    pub undecodable: u64,
}

/// Decodes records one after another. Each is preceded by two bytes: its length in the lower 15 bits, and in the
/// highest bit whether it is a record of the control ring.
pub fn decode(mut bytes: &[u8]) -> Decoded {
    let mut decoder = Decoder::new(Clock::start(), true, CallSites::new(1000), Box::new(NoResolver));
    decoder.add_library(DRIVER, Api::Driver, None);
    let mut decoded = Decoded::default();
    while let Some((head, rest)) = bytes.split_first_chunk() {
        let head = u16::from_le_bytes(*head);
        let (record, after) = rest.split_at(usize::from(head & 0x7fff).min(rest.len()));
        bytes = after;
        decoded.records += 1;
        if head & 0x8000 == 0 {
            decoded.events.extend(decoder.call(record));
            decoded
                .events
                .extend(decoder.open_call(&from_bytes(record)).map(|call| Event::Call(Box::new(call))));
        } else if let Control::Process(_, event) = decoder.control(record) {
            decoded.events.push(Event::Process(event));
        }
    }
    decoded.undecodable = decoder.undecodable;
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{as_bytes, gp_call, number};

    #[test]
    fn records_of_both_rings_are_decoded_and_invalid_ones_are_counted() {
        let raw = gp_call { kind: number::RECORD_CALL, reported: 1, ..gp_call::default() };
        let call = as_bytes(&raw);
        let head = u16::try_from(call.len()).unwrap().to_le_bytes();
        let bytes = [&head[..], call, &[3, 0x80, 1, 2, 3], &[200, 0]].concat();
        let decoded = decode(&bytes);
        assert_eq!((decoded.records, decoded.undecodable), (3, 2), "{decoded:?}");
        // the call as a returned one and as an open one; an empty record is not reported
        assert_eq!(decoded.events.len(), 2, "{decoded:?}");
    }
}
