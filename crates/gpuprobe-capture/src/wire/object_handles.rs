//! The maps and programs of an object, by the names that the build script generated from it: one that does not exist is
//! refused by the compiler.

use libbpf_rs::{Map, MapCore, Object, OpenMapMut, OpenObject, OpenProgramMut, Program, ProgramMut};

use crate::error::CaptureError;
use crate::wire::{MapName, ProgramName};

/// A map of a loaded object.
pub(crate) fn map_of(object: &Object, name: MapName) -> Result<Map<'_>, CaptureError> {
    // libbpf leaves out maps that it has not made, and all that follow would be another's then
    let map = object.maps().nth(name as usize).filter(|map| map.name() == name.as_str());
    map.ok_or(CaptureError::NotLoaded(name.as_str()))
}

/// A program of a loaded object, to attach it.
pub(crate) fn program_of(object: &Object, name: ProgramName) -> Result<ProgramMut<'_>, CaptureError> {
    object.progs_mut().nth(name as usize).ok_or(CaptureError::NotLoaded(name.as_str()))
}

/// All programs of a loaded object, also those that were left out.
pub(crate) fn programs_of(object: &Object) -> impl Iterator<Item = (ProgramName, Program<'_>)> {
    ProgramName::ALL.into_iter().zip(object.progs())
}

/// All maps of an object that is to be loaded.
pub(crate) fn open_maps(object: &mut OpenObject) -> impl Iterator<Item = (MapName, OpenMapMut<'_>)> {
    MapName::ALL.into_iter().zip(object.maps_mut())
}

/// All programs of one.
pub(crate) fn open_programs(
    object: &mut OpenObject,
) -> impl Iterator<Item = (ProgramName, OpenProgramMut<'_>)> {
    ProgramName::ALL.into_iter().zip(object.progs_mut())
}

#[cfg(test)]
mod tests {
    use libbpf_rs::ObjectBuilder;

    use super::*;
    use crate::wire::OBJECT;

    #[test]
    fn names_are_in_the_order_of_the_object() {
        let mut object = ObjectBuilder::default().name("gpuprobe").unwrap().open_memory(OBJECT).unwrap();
        assert_eq!(object.maps().count(), MapName::ALL.len());
        for (name, map) in open_maps(&mut object) {
            assert_eq!(map.name(), name.as_str());
        }
        assert_eq!(object.progs().count(), ProgramName::ALL.len());
        for (name, program) in open_programs(&mut object) {
            assert_eq!(program.name(), name.as_str());
        }
    }

    #[test]
    fn programs_that_differ_by_a_number_are_in_the_order_of_these() {
        for (number, program) in ProgramName::TRACED_ENTRY.into_iter().enumerate() {
            assert_eq!(program.as_str(), format!("traced_entry_{number}"));
        }
        assert_eq!(ProgramName::TRACED_ENTRY.len(), ProgramName::TRACED_RETURN.len());
    }
}
