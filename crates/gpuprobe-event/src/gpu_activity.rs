//! How busy the parts of a GPU are, as GPM reports it: NVML's performance monitoring of Hopper and later GPUs.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A part of a GPU whose use is a share of what is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Any engine for compute or graphics.
    Graphics,
    /// Multiprocessors that have at least one warp.
    Sm,
    /// Warps, compared with what the multiprocessors have room for.
    SmOccupancy,
    /// Tensor cores.
    Tensor,
    TensorFp64,
    TensorFp16,
    TensorInteger,
    /// Bandwidth of the memory.
    Dram,
    Fp64,
    Fp32,
    Fp16,
    Integer,
}

impl Part {
    /// All of them, in the order of [`Activity::shares`].
    pub const ALL: [Self; 12] = [
        Self::Graphics,
        Self::Sm,
        Self::SmOccupancy,
        Self::Tensor,
        Self::TensorFp64,
        Self::TensorFp16,
        Self::TensorInteger,
        Self::Dram,
        Self::Fp64,
        Self::Fp32,
        Self::Fp16,
        Self::Integer,
    ];

    /// The word in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Graphics => "graphics",
            Self::Sm => "sm",
            Self::SmOccupancy => "sm_occupancy",
            Self::Tensor => "tensor",
            Self::TensorFp64 => "tensor_fp64",
            Self::TensorFp16 => "tensor_fp16",
            Self::TensorInteger => "tensor_integer",
            Self::Dram => "dram",
            Self::Fp64 => "fp64",
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Integer => "integer",
        }
    }
}

/// Traffic of a GPU with others, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Received from the host.
    PcieRx,
    /// Sent to the host.
    PcieTx,
    NvlinkRx,
    NvlinkTx,
}

impl Traffic {
    /// All of them, in the order of [`Activity::bytes_per_second`].
    pub const ALL: [Self; 4] = [Self::PcieRx, Self::PcieTx, Self::NvlinkRx, Self::NvlinkTx];

    /// The link and the direction, as in metrics.
    pub fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::PcieRx => ("pcie", "rx"),
            Self::PcieTx => ("pcie", "tx"),
            Self::NvlinkRx => ("nvlink", "rx"),
            Self::NvlinkTx => ("nvlink", "tx"),
        }
    }

    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PcieRx => "pcie_rx",
            Self::PcieTx => "pcie_tx",
            Self::NvlinkRx => "nvlink_rx",
            Self::NvlinkTx => "nvlink_tx",
        }
    }
}

/// A share in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    const WHOLE: u32 = 1_000_000;

    /// From a number of percent; `None` if it is none. NVML may report a little more than 100%.
    pub fn from_percent(percent: f64) -> Option<Self> {
        let millionths = (percent * f64::from(Self::WHOLE) / 100.0).round();
        // the cast of a number between these is exact
        (0.0..=f64::from(2 * Self::WHOLE)).contains(&millionths).then_some(Self(millionths as u32))
    }

    pub fn millionths(self) -> u32 {
        self.0
    }

    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE)
    }
}

/// What a GPU did between two readings, on average. What GPM does not report is `None`, and not in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// By [`Part`].
    #[serde(serialize_with = "shares_by_name", deserialize_with = "named_shares")]
    pub shares: [Option<Share>; Part::ALL.len()],
    /// By [`Traffic`].
    #[serde(serialize_with = "traffic_by_name", deserialize_with = "named_traffic")]
    pub bytes_per_second: [Option<u64>; Traffic::ALL.len()],
}

impl Activity {
    pub fn shares(&self) -> impl Iterator<Item = (Part, Share)> {
        known(Part::ALL, self.shares)
    }

    pub fn traffic(&self) -> impl Iterator<Item = (Traffic, u64)> {
        known(Traffic::ALL, self.bytes_per_second)
    }
}

fn known<K, V, const N: usize>(keys: [K; N], values: [Option<V>; N]) -> impl Iterator<Item = (K, V)> {
    keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)))
}

fn shares_by_name<S: Serializer>(
    shares: &[Option<Share>; Part::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(known(Part::ALL, *shares).map(|(part, share)| (part.as_str(), share.as_f64())))
}

fn traffic_by_name<S: Serializer>(
    rates: &[Option<u64>; Traffic::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(known(Traffic::ALL, *rates).map(|(traffic, rate)| (traffic.as_str(), rate)))
}

/// What is not named is `None`.
fn named_shares<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<[Option<Share>; Part::ALL.len()], D::Error> {
    let named = HashMap::<String, f64>::deserialize(deserializer)?;
    Ok(Part::ALL.map(|part| Share::from_percent(named.get(part.as_str())? * 100.0)))
}

fn named_traffic<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<[Option<u64>; Traffic::ALL.len()], D::Error> {
    let named = HashMap::<String, u64>::deserialize(deserializer)?;
    Ok(Traffic::ALL.map(|traffic| named.get(traffic.as_str()).copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_number_of_percent_that_makes_sense() {
        let share = |percent| Share::from_percent(percent).map(Share::millionths);
        assert_eq!([0.0, 12.3456, 100.0].map(share), [Some(0), Some(123_456), Some(1_000_000)]);
        assert_eq!(share(100.4), Some(1_004_000));
        assert_eq!([-1.0, 1e9, f64::NAN, f64::INFINITY].map(share), [None; 4]);
    }

    #[test]
    fn what_is_not_known_is_not_in_json() {
        let mut activity = Activity::default();
        activity.shares[Part::Sm as usize] = Share::from_percent(86.0);
        activity.bytes_per_second[Traffic::NvlinkTx as usize] = Some(7);
        let json = serde_json::to_string(&activity).unwrap();
        assert_eq!(json, r#"{"shares":{"sm":0.86},"bytes_per_second":{"nvlink_tx":7}}"#);
        assert_eq!(serde_json::from_str::<Activity>(&json).unwrap(), activity);
        assert!(Part::ALL.iter().enumerate().all(|(at, part)| *part as usize == at));
        assert!(Traffic::ALL.iter().enumerate().all(|(at, traffic)| *traffic as usize == at));
    }
}
