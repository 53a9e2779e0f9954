//! CUPTI's records, by the fields at their beginning, which keep their places when newer versions append others.

use gpuprobe_event::agent::{Activity, ActivityKind};

/// What CUPTI is asked to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Copy,
    Memset,
    Kernel,
    PeerCopy,
    Graph,
}

impl Kind {
    /// All but graphs, which are recorded as a whole only on certain conditions.
    pub(crate) const OPERATIONS: [Self; 4] = [Self::Kernel, Self::Copy, Self::Memset, Self::PeerCopy];

    /// `CUpti_ActivityKind`
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Copy => 1,
            Self::Memset => 2,
            Self::Kernel => 10,
            Self::PeerCopy => 22,
            Self::Graph => 51,
        }
    }
}

/// Offsets of fields in a record.
struct Layout {
    /// `CUpti_ActivityKind`. Kernels have two numbers.
    numbers: &'static [u32],
    kind: ActivityKind,
    /// The end follows.
    start: usize,
    correlation: usize,
    device: usize,
    context: usize,
    stream: usize,
    graph: usize,
    graph_node: Option<usize>,
    copy_kind: Option<usize>,
    bytes: Option<usize>,
    /// Of CUDA kernels only.
    kernel: Option<KernelLayout>,
}

struct KernelLayout {
    /// Three numbers each.
    grid: usize,
    block: usize,
    static_shared: usize,
    dynamic_shared: usize,
    name: usize,
}

const LAYOUTS: [Layout; 5] = [
    Layout {
        numbers: &[10, 3],
        kind: ActivityKind::Kernel,
        start: 16,
        correlation: 92,
        device: 40,
        context: 44,
        stream: 48,
        graph: 156,
        graph_node: Some(144),
        copy_kind: None,
        bytes: None,
        kernel: Some(KernelLayout { grid: 52, block: 64, static_shared: 76, dynamic_shared: 80, name: 104 }),
    },
    Layout {
        numbers: &[1],
        kind: ActivityKind::Copy,
        start: 16,
        correlation: 44,
        device: 32,
        context: 36,
        stream: 40,
        graph: 72,
        graph_node: Some(64),
        copy_kind: Some(4),
        bytes: Some(8),
        kernel: None,
    },
    Layout {
        numbers: &[2],
        kind: ActivityKind::Memset,
        start: 16,
        correlation: 44,
        device: 32,
        context: 36,
        stream: 40,
        graph: 72,
        graph_node: Some(64),
        copy_kind: None,
        bytes: Some(8),
        kernel: None,
    },
    Layout {
        numbers: &[22],
        kind: ActivityKind::Copy,
        start: 16,
        correlation: 60,
        device: 32,
        context: 36,
        stream: 40,
        graph: 80,
        graph_node: Some(72),
        copy_kind: Some(4),
        bytes: Some(8),
        kernel: None,
    },
    Layout {
        numbers: &[51],
        kind: ActivityKind::Graph,
        start: 8,
        correlation: 4,
        device: 24,
        context: 32,
        stream: 36,
        graph: 28,
        graph_node: None,
        copy_kind: None,
        bytes: None,
        kernel: None,
    },
];

/// A record with its times as CUPTI stamped them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) activity: Activity,
    /// The address of the text of a CUDA kernel's name; 0 if there is none.
    pub(crate) name: u64,
}

/// A record from the bytes at its beginning; there may be others behind it. `None` for a kind that is not known, and
/// for one that is cut off.
pub(crate) fn read(bytes: &[u8]) -> Option<Record> {
    let number = u32_at(bytes, 0)?;
    let layout = LAYOUTS.iter().find(|layout| layout.numbers.contains(&number))?;
    let mut activity = Activity {
        kind: layout.kind,
        start_ns: u64_at(bytes, layout.start)?,
        end_ns: u64_at(bytes, layout.start + 8)?,
        correlation: u32_at(bytes, layout.correlation)?,
        device: u32_at(bytes, layout.device)?,
        context: u32_at(bytes, layout.context)?,
        stream: u32_at(bytes, layout.stream)?,
        graph: u32_at(bytes, layout.graph)?,
        ..Activity::default()
    };
    if let Some(at) = layout.graph_node {
        activity.graph_node = u64_at(bytes, at)?;
    }
    if let Some(at) = layout.copy_kind {
        activity.copy_kind = *bytes.get(at)?;
    }
    if let Some(at) = layout.bytes {
        activity.bytes = u64_at(bytes, at)?;
    }
    let mut name = 0;
    if let Some(kernel) = &layout.kernel {
        activity.grid = three_at(bytes, kernel.grid)?;
        activity.block = three_at(bytes, kernel.block)?;
        activity.shared_bytes =
            u32_at(bytes, kernel.static_shared)?.wrapping_add(u32_at(bytes, kernel.dynamic_shared)?);
        name = u64_at(bytes, kernel.name)?;
    }
    Some(Record { activity, name })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn three_at(bytes: &[u8], at: usize) -> Option<[u32; 3]> {
    Some([u32_at(bytes, at)?, u32_at(bytes, at + 4)?, u32_at(bytes, at + 8)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    fn kernel() -> Vec<u8> {
        let mut bytes = vec![0; 216];
        put(&mut bytes, 0, &10_u32.to_ne_bytes());
        put(&mut bytes, 16, &1000_u64.to_ne_bytes());
        put(&mut bytes, 24, &2000_u64.to_ne_bytes());
        for (at, value) in
            [(40, 1), (44, 2), (48, 7), (52, 3), (56, 4), (60, 5), (64, 128), (68, 1), (72, 1)].iter()
        {
            put(&mut bytes, *at, &u32::to_ne_bytes(*value));
        }
        for (at, value) in [(76, 16), (80, 32), (92, 99), (156, 6)] {
            put(&mut bytes, at, &u32::to_ne_bytes(value));
        }
        put(&mut bytes, 104, &0x1234_u64.to_ne_bytes());
        put(&mut bytes, 144, &77_u64.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_kernel_is_read_by_its_common_fields() {
        let record = read(&kernel()).expect("a kernel");
        let expected = Activity {
            kind: ActivityKind::Kernel,
            start_ns: 1000,
            end_ns: 2000,
            correlation: 99,
            device: 1,
            context: 2,
            stream: 7,
            graph: 6,
            graph_node: 77,
            grid: [3, 4, 5],
            block: [128, 1, 1],
            shared_bytes: 48,
            ..Activity::default()
        };
        assert_eq!((record.activity, record.name), (expected, 0x1234));
        let mut longer = kernel();
        longer.extend([0xff; 64]);
        assert_eq!(read(&longer), Some(record));
    }

    #[test]
    fn copies_memsets_and_graphs_have_their_own_places() {
        let of = |number: u32, numbers: &[(usize, u64)]| {
            let mut bytes = vec![0; 96];
            put(&mut bytes, 0, &number.to_ne_bytes());
            for (at, value) in numbers {
                put(&mut bytes, *at, &(*value as u32).to_ne_bytes());
            }
            read(&bytes).expect("a record").activity
        };
        let copy = of(1, &[(4, 2), (8, 4096), (16, 5), (24, 6), (32, 1), (36, 2), (40, 3), (44, 9), (72, 8)]);
        assert_eq!((copy.kind, copy.copy_kind, copy.bytes), (ActivityKind::Copy, 2, 4096));
        assert_eq!((copy.start_ns, copy.end_ns, copy.correlation, copy.graph), (5, 6, 9, 8));
        assert_eq!((copy.device, copy.context, copy.stream), (1, 2, 3));
        let peer = of(22, &[(4, 10), (8, 64), (60, 9), (72, 4), (80, 8)]);
        assert_eq!((peer.copy_kind, peer.correlation, peer.graph, peer.graph_node), (10, 9, 8, 4));
        let memset = of(2, &[(4, 0xff), (8, 512), (44, 9)]);
        assert_eq!((memset.kind, memset.copy_kind, memset.bytes), (ActivityKind::Memset, 0, 512));
        let graph = of(51, &[(4, 9), (8, 5), (16, 6), (24, 1), (28, 8), (32, 2), (36, 3)]);
        assert_eq!((graph.kind, graph.correlation, graph.graph), (ActivityKind::Graph, 9, 8));
        assert_eq!(
            (graph.start_ns, graph.end_ns, graph.device, graph.context, graph.stream),
            (5, 6, 1, 2, 3)
        );
    }

    #[test]
    fn what_is_unknown_or_cut_off_is_no_record() {
        let mut bytes = kernel();
        for end in 0..160 {
            assert_eq!(read(&bytes[..end]), None, "cut at {end}");
        }
        assert!(read(&bytes[..160]).is_some());
        put(&mut bytes, 0, &46_u32.to_ne_bytes());
        assert_eq!(read(&bytes), None);
    }
}
