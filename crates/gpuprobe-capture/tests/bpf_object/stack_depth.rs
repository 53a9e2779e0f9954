//! The stack that the programs need. Linux 6.1 refuses a program if functions that may be open at the same time need more
//! than 512 bytes together. Programs of the session tier may need more: the kernels that have this tier load them, as
//! tests/vm shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SectionKind, SymbolKind};

use crate::compile;

const MOST_BYTES: u64 = 512;
const MOST_FRAMES: usize = 8;
const INSTRUCTION_BYTES: u64 = 8;
const FRAME_POINTER: u8 = 10;

/// Where a function begins: a section, and an offset in it.
type Place = (usize, u64);

#[derive(Debug)]
struct Function {
    name: String,
    /// A program of the session tier, which Linux 6.1 does not have.
    is_session: bool,
    bytes: u64,
    stack_bytes: u64,
    callees: Vec<Place>,
}

struct Instruction {
    code: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Self {
        let [code, registers, low, high, rest @ ..] = <[u8; 8]>::try_from(bytes).expect("8 bytes");
        Self {
            code,
            destination: registers & 15,
            source: registers >> 4,
            offset: i16::from_le_bytes([low, high]),
            immediate: i32::from_le_bytes(rest),
        }
    }

    /// How far below the frame pointer it reads or writes.
    fn depth(&self) -> u64 {
        let base = match self.code & 7 {
            1 => self.source,
            2 | 3 => self.destination,
            _ => return 0,
        };
        if base == FRAME_POINTER { u64::from(self.offset.min(0).unsigned_abs()) } else { 0 }
    }

    fn copies_frame_pointer(&self) -> bool {
        self.code == 0xbf && self.source == FRAME_POINTER
    }

    /// Not stores, jumps and calls.
    fn writes_register(&self) -> bool {
        matches!(self.code & 7, 0 | 1 | 4 | 7)
    }

    fn adds_constant(&self) -> bool {
        self.code == 0x07
    }

    fn is_call_of_function(&self) -> bool {
        self.code == 0x85 && self.source == 1
    }

    fn is_wide_constant(&self) -> bool {
        self.code == 0x18
    }
}

/// How far below the frame pointer addresses are that the code computes: a copy of it, to which a constant is added.
fn deepest_address(code: &[Instruction]) -> u64 {
    let (mut copies, mut most) = (BTreeSet::new(), 0);
    for it in code {
        if it.copies_frame_pointer() {
            copies.insert(it.destination);
        } else if it.writes_register() && copies.remove(&it.destination) && it.adds_constant() {
            most = most.max(u64::from(it.immediate.min(0).unsigned_abs()));
        }
    }
    most
}

/// A place that is `instructions` after another one.
fn after(start: u64, instructions: i64) -> u64 {
    start.checked_add_signed(instructions * INSTRUCTION_BYTES.cast_signed()).expect("a place in the object")
}

/// The code that the relocations of a section point to, by offset. `None` stands for data, and for functions of Linux.
fn relocations(
    file: &object::File<'_>,
    section: &object::Section<'_, '_>,
) -> BTreeMap<u64, Option<(SectionIndex, u64)>> {
    let code = |target| {
        let RelocationTarget::Symbol(index) = target else { return None };
        let symbol = file.symbol_by_index(index).ok()?;
        let of = symbol.section_index()?;
        let is_code = file.section_by_index(of).ok()?.kind() == SectionKind::Text;
        is_code.then(|| (of, symbol.address()))
    };
    section.relocations().map(|(at, relocation)| (at, code(relocation.target()))).collect()
}

fn functions_of_section(
    file: &object::File<'_>,
    section: &object::Section<'_, '_>,
) -> Vec<(Place, Function)> {
    let code = section.data().expect("the code");
    let relocations = relocations(file, section);
    let symbols = file
        .symbols()
        .filter(|it| it.kind() == SymbolKind::Text && it.section_index() == Some(section.index()));
    let function = |symbol: object::Symbol<'_, '_>| {
        let (start, bytes) = (symbol.address(), symbol.size());
        let range = start as usize..(start + bytes) as usize;
        let all: Vec<Instruction> = code[range].chunks_exact(8).map(Instruction::read).collect();
        let own = all.iter().map(Instruction::depth).max().unwrap_or(0);
        let callee = |(number, it): (usize, &Instruction)| {
            let at = after(start, number as i64);
            let immediate = i64::from(it.immediate);
            let relocated = relocations.get(&at).copied();
            if it.is_call_of_function() {
                // without a relocation, the distance to a function in the same section
                let (of, base) = relocated.unwrap_or(Some((section.index(), at)))?;
                Some((of.0, after(base, immediate + 1)))
            } else if it.is_wide_constant() {
                // the address of a function, for a helper that calls it
                let (of, base) = relocated??;
                Some((of.0, base + u64::from(it.immediate.cast_unsigned())))
            } else {
                None
            }
        };
        let function = Function {
            is_session: section.name().is_ok_and(|name| name.starts_with("uprobe.session")),
            name: symbol.name().expect("a name").to_owned(),
            bytes,
            stack_bytes: own.max(deepest_address(&all)),
            callees: all.iter().enumerate().filter_map(callee).collect(),
        };
        ((section.index().0, start), function)
    };
    symbols.map(function).collect()
}

type Functions = BTreeMap<Place, Function>;

fn read_functions(code: &[u8]) -> Functions {
    let file = object::File::parse(code).expect("the object");
    let sections = file.sections().filter(|section| section.kind() == SectionKind::Text);
    sections.flat_map(|section| functions_of_section(&file, &section)).collect()
}

/// The functions that are open at the same time with the most stack, and how much that is.
fn deepest(functions: &Functions, place: Place) -> (u64, Vec<&Function>) {
    let function = functions.get(&place).unwrap_or_else(|| panic!("no function begins at {place:?}"));
    let below =
        function.callees.iter().map(|callee| deepest(functions, *callee)).max_by_key(|(bytes, _)| *bytes);
    let (bytes, mut chain) = below.unwrap_or_default();
    chain.push(function);
    // as the verifier counts
    (bytes + function.stack_bytes.max(1).next_multiple_of(32), chain)
}

/// How many functions may be open at the same time.
fn most_frames(functions: &Functions, place: Place) -> usize {
    1 + functions[&place].callees.iter().map(|callee| most_frames(functions, *callee)).max().unwrap_or(0)
}

#[test]
fn no_program_needs_more_stack_than_linux_allows() {
    for arch in ["x86", "arm64"] {
        let code = fs::read(compile(arch).object).expect("the object");
        let functions = read_functions(&code);
        assert!(functions.values().map(|it| it.bytes).sum::<u64>() > 100_000, "hardly any code was found");
        assert!(functions.values().any(|it| !it.callees.is_empty()) && functions.len() > 100);
        let mut most = (0, String::new());
        for (place, _) in functions.iter().filter(|(_, function)| !function.is_session) {
            let (bytes, chain) = deepest(&functions, *place);
            let names: Vec<String> =
                chain.iter().rev().map(|it| format!("{} ({})", it.name, it.stack_bytes)).collect();
            let names = names.join(" > ");
            assert!(bytes <= MOST_BYTES, "{arch}: {bytes} bytes: {names}");
            let frames = most_frames(&functions, *place);
            assert!(frames <= MOST_FRAMES, "{arch}: {frames} functions call each other: {names}");
            most = most.max((bytes, names));
        }
        println!("{arch}: at most {} bytes: {}", most.0, most.1);
    }
}
