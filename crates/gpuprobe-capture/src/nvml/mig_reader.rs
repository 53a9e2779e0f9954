//! Reads the instances of a partitioned GPU (MIG).

use std::collections::BTreeMap;
use std::time::Instant;

use gpuprobe_event::gpu_activity::Activity;
use gpuprobe_event::mig::{Mig, MigInstance};
use nvml_wrapper::Device;

use super::gpu_activity_reader::ActivityReader;
use super::gpu_reader::memory;
use super::raw_values::{compute_instance, gpu_instance};
use super::seldom::Seldom;

/// More instances than any GPU can have.
const MOST_INSTANCES: u32 = 64;

/// The partition of one GPU. Who changes it takes seconds, so it is looked at seldom; memory and activity are read
/// every time.
#[derive(Debug, Default)]
pub(super) struct MigReader<'a> {
    partition: Seldom<Option<Partition<'a>>>,
    /// By GPU instance.
    activities: BTreeMap<u32, ActivityReader<'a>>,
}

#[derive(Debug)]
struct Partition<'a> {
    is_enabled: bool,
    will_be_enabled: bool,
    instances: Vec<(Device<'a>, MigInstance)>,
}

impl<'a> MigReader<'a> {
    /// `None` if the GPU cannot be partitioned.
    pub(super) fn read(&mut self, device: &Device<'a>, has_gpm: bool, now: Instant) -> Option<Mig> {
        let partition = self.partition.get(now, || partition(device)).as_ref()?;
        let measured = |(instance, known): &(Device<'a>, MigInstance)| MigInstance {
            memory: memory(instance),
            ..known.clone()
        };
        let instances: Vec<MigInstance> = partition.instances.iter().map(measured).collect();
        let is_there = |number: &u32| instances.iter().any(|instance| instance.gpu_instance == *number);
        self.activities.retain(|number, _| is_there(number));
        if has_gpm {
            for instance in &instances {
                self.activities.entry(instance.gpu_instance).or_default();
            }
        }
        let read = |(number, reader): (&u32, &mut ActivityReader<'a>)| -> Option<(u32, Activity)> {
            Some((*number, reader.read(device.gpm_mig_sample(*number).ok()?)?))
        };
        Some(Mig {
            is_enabled: partition.is_enabled,
            will_be_enabled: partition.will_be_enabled,
            instances,
            activities: self.activities.iter_mut().filter_map(read).collect(),
        })
    }
}

fn partition<'a>(device: &Device<'a>) -> Option<Partition<'a>> {
    let mode = device.mig_mode().ok()?;
    let is_enabled = mode.current != 0;
    let count = if is_enabled { device.mig_device_count().unwrap_or(0).min(MOST_INSTANCES) } else { 0 };
    // numbers without an instance are not found
    let instances =
        (0..count).filter_map(|index| instance(device.mig_device_by_index(index).ok()?)).collect();
    Some(Partition { is_enabled, will_be_enabled: mode.pending != 0, instances })
}

fn instance(device: Device<'_>) -> Option<(Device<'_>, MigInstance)> {
    let known = MigInstance {
        gpu_instance: gpu_instance(&device)?,
        compute_instance: compute_instance(&device)?,
        uuid: device.uuid().unwrap_or_default(),
        profile: profile(&device.name().unwrap_or_default()).to_owned(),
        multiprocessors: device.attributes().ok().map(|attributes| attributes.multiprocessor_count),
        memory: None,
    };
    Some((device, known))
}

/// The profile in the name of an instance, which is that of the GPU, `MIG` and the profile.
fn profile(name: &str) -> &str {
    name.rsplit_once("MIG ").map_or(name, |(_, profile)| profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_the_end_of_the_name_of_an_instance() {
        let names = ["NVIDIA H200 MIG 1g.18gb", "MIG 1c.2g.35gb", "NVIDIA H200", ""];
        assert_eq!(names.map(profile), ["1g.18gb", "1c.2g.35gb", "NVIDIA H200", ""]);
    }
}
