//! Finds the version of a CUDA runtime that is linked into a program.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

use super::scan::Symbol;
use crate::access::RegularFile;
use crate::elf::Machine;

/// A linked-in runtime has no SONAME, but `cudaRuntimeGetVersion`, or a function that it calls, stores the version
/// (12040 for 12.4) from a constant in the code through its argument. The result is only a hint.
pub(crate) fn static_major(file: &RegularFile, machine: Machine, functions: &[Symbol]) -> Option<u32> {
    if machine != Machine::X86_64 {
        return None;
    }
    let read = |offset, size| file.read_some(offset, size, "code").unwrap_or_default();
    let function = functions.iter().find(|function| function.name == "cudaRuntimeGetVersion")?;
    let code = read(function.offset, function.size.min(512));
    let callees = Decoder::with_ip(64, &code, function.offset, DecoderOptions::NONE)
        .into_iter()
        .filter(Instruction::is_call_near)
        .map(|call| call.near_branch_target());
    let version =
        stored_version(&code).or_else(|| callees.take(4).find_map(|at| stored_version(&read(at, 32))));
    version.map(|version| version / 1000)
}

fn stored_version(code: &[u8]) -> Option<u32> {
    Decoder::new(64, code, DecoderOptions::NONE).iter().find_map(|instruction| {
        let stores_constant = instruction.code() == Code::Mov_rm32_imm32
            && instruction.op0_kind() == OpKind::Memory
            && instruction.memory_index() == Register::None
            && instruction.memory_displacement64() == 0;
        let value = stores_constant.then(|| instruction.immediate32())?;
        ((9000..100_000).contains(&value) && value % 10 == 0).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_version_of_a_linked_in_runtime_is_found_one_call_away() {
        // mov eax, 13000; call +2; ret; nop; mov dword [rdi], 13000; ret
        let code = [0xb8, 0xc8, 0x32, 0, 0, 0xe8, 2, 0, 0, 0, 0xc3, 0x90, 0xc7, 0x07, 0xc8, 0x32, 0, 0, 0xc3];
        assert_eq!(stored_version(&code[..12]), None, "a constant that is not stored");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, code).unwrap();
        let file = RegularFile::open(&path).unwrap();
        let function = Symbol { name: "cudaRuntimeGetVersion".into(), offset: 0, size: 11 };
        assert_eq!(static_major(&file, Machine::X86_64, &[function]), Some(13));
    }
}
