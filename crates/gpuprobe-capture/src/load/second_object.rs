//! Loads the BPF object a second time, with other programs on the same maps.

use std::os::fd::AsFd;

use libbpf_rs::{Object, ObjectBuilder, OpenObject};

use super::libbpf_log::without_log;
use crate::wire::object_handles::{map_of, open_maps, open_programs};
use crate::wire::{ProgramName, object};

/// Loads these programs into a second object.
pub(crate) fn load_programs(
    main: &Object,
    is_wanted: impl Fn(ProgramName) -> bool,
) -> Result<Object, libbpf_rs::Error> {
    let mut object = open_again(main)?;
    for (name, mut program) in open_programs(&mut object) {
        program.set_autoload(is_wanted(name));
    }
    without_log(|| object.load())
}

/// Opens the object a second time, with the maps of the first.
pub(crate) fn open_again(main: &Object) -> Result<OpenObject, libbpf_rs::Error> {
    let mut object = ObjectBuilder::default().name("gpuprobe")?.open_memory(&object()?)?;
    for (name, mut map) in open_maps(&mut object) {
        if let Ok(made) = map_of(main, name) {
            map.reuse_fd(made.as_fd())?;
        }
    }
    Ok(object)
}
