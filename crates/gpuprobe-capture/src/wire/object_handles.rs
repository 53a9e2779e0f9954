//! The maps and programs of an object, by the names that the build script generated from it, so that an unknown name
//! does not compile.

use libbpf_rs::{
    Map, MapCore, MapHandle, Object, OpenMapMut, OpenObject, OpenProgramMut, Program, ProgramMut,
};

use crate::error::CaptureError;
use crate::wire::{MapName, ProgramName};

/// A map of a loaded object.
pub(crate) fn map_of(object: &Object, name: MapName) -> Result<Map<'_>, CaptureError> {
    // libbpf omits maps that it has not created, which would shift the following ones
    let map = object.maps().nth(name as usize).filter(|map| map.name() == name.as_str());
    map.ok_or(CaptureError::NotLoaded(name.as_str()))
}

/// A handle of a map of a loaded object, for another thread.
pub(crate) fn handle_of(object: &Object, name: MapName) -> Result<MapHandle, CaptureError> {
    MapHandle::try_from(&map_of(object, name)?).map_err(CaptureError::bpf("open a map again"))
}

/// A program of a loaded object.
pub(crate) fn program_of(object: &Object, name: ProgramName) -> Result<ProgramMut<'_>, CaptureError> {
    object.progs_mut().nth(name as usize).ok_or(CaptureError::NotLoaded(name.as_str()))
}

/// All programs of an object, also those that were not loaded.
pub(crate) fn programs_of(object: &Object) -> impl Iterator<Item = (ProgramName, Program<'_>)> {
    ProgramName::ALL.into_iter().zip(object.progs())
}

/// All maps of an object before it is loaded.
pub(crate) fn open_maps(object: &mut OpenObject) -> impl Iterator<Item = (MapName, OpenMapMut<'_>)> {
    MapName::ALL.into_iter().zip(object.maps_mut())
}

/// All programs of an object before it is loaded.
pub(crate) fn open_programs(
    object: &mut OpenObject,
) -> impl Iterator<Item = (ProgramName, OpenProgramMut<'_>)> {
    ProgramName::ALL.into_iter().zip(object.progs_mut())
}

#[cfg(test)]
mod tests {
    use libbpf_rs::ObjectBuilder;

    use super::*;
    use crate::wire::object;

    #[test]
    fn names_are_in_the_order_of_the_object() {
        let bytes = object().unwrap();
        let mut object = ObjectBuilder::default().name("gpuprobe").unwrap().open_memory(&bytes).unwrap();
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
    fn numbered_programs_are_in_numeric_order() {
        for (number, program) in ProgramName::TRACED_ENTRY.into_iter().enumerate() {
            assert_eq!(program.as_str(), format!("traced_entry_{number}"));
        }
        assert_eq!(ProgramName::TRACED_ENTRY.len(), ProgramName::TRACED_RETURN.len());
    }
}
