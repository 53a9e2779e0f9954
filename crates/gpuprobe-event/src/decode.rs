//! Decodes raw registers and stack words into named, typed arguments. Pure functions: no I/O and no state.

mod communicators;
mod launch_sizes;
mod saved_words;

use std::borrow::Cow;

use self::communicators::made_list;
use self::launch_sizes::{launch_of_sizes, show_sizes};
use self::saved_words::words_of;
pub use self::saved_words::{MAX_STACK_WORDS, copied_structs, stack_words};
use crate::catalogue::{
    Api, Arg, ArgKind, Class, Direction, EnumTable, Field, Function, Pointee, ResultKind, StructLayout,
};
pub use crate::catalogue::{MAX_POINTEE, SIZES, UNIQUE_ID};
use crate::copy_kind::CopyDirection;
use crate::effect::{Effect, GraphLaunch, Launch, Transfer};
use crate::errno;
use crate::event::{Name, Value};

/// What a probe saved of one call. A slice that could not be read is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words<'a> {
    /// Integer argument registers in order.
    pub registers: &'a [u64],
    /// Stack words from the first stack argument on, then those of [`copied_structs`].
    pub stack: &'a [u64],
    /// The values requested by [`out_reads`], read when the call returned; `None` if unreadable.
    pub outs: [Option<u64>; MAX_OUTS],
    /// The bytes that the argument named by [`struct_arg`] or [`text_arg`] pointed to at entry.
    pub pointee: &'a [u8],
    /// The text was cut.
    pub is_text_cut: bool,
}

/// How many out arguments a probe reads.
pub const MAX_OUTS: usize = 4;

/// A word that is read through a pointer argument when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutRead {
    /// The pointer argument.
    pub arg: u8,
    /// The offset in bytes from the pointer.
    pub offset: u8,
    /// 4 or 8.
    pub bytes: u8,
}

/// The values to read when the call returns: first the address of an allocation, then its pitch; then other out
/// arguments, and the status of hooked functions last.
pub fn out_reads(f: &Function) -> Vec<OutRead> {
    if let Some(arg) = made_list(f) {
        return [0, 8, 16, 24].map(|offset| OutRead { arg, offset, bytes: 8 }).into();
    }
    if let Some(arg) = f.roles.pitched_out {
        // cudaPitchedPtr: the address, then the pitch
        return vec![OutRead { arg, offset: 0, bytes: 8 }, OutRead { arg, offset: 8, bytes: 8 }];
    }
    let narrow = |arg| {
        let ty = f.arg(Some(arg)).map_or("", |a| a.ty);
        ["CUdeviceptr_v1*", "unsigned int*", "int*", "cl_int*"].contains(&ty)
    };
    let error = f.roles.error_out;
    let read = |arg| OutRead { arg, offset: 0, bytes: if narrow(arg) { 4 } else { 8 } };
    let first = f.roles.out.or(f.roles.func_out).or(f.roles.name_out);
    let known = [first, f.roles.pitch_out];
    let is_other = |(position, arg): (usize, &Arg)| {
        let position = u8::try_from(position).ok().filter(|_| arg.out.is_some());
        position.filter(|_| !known.contains(&position) && position != error)
    };
    let others = f.args.iter().flatten().enumerate().filter_map(is_other);
    known.into_iter().flatten().chain(others).chain(error).map(read).collect()
}

/// The argument whose struct is copied at entry, with its layout: launch configurations and copy descriptions.
pub fn struct_arg(f: &Function) -> Option<(u8, &'static StructLayout)> {
    match f.pointee {
        Some((position, Pointee::Struct(layout))) => Some((position, layout)),
        _ => None,
    }
}

/// Bytes of an entry of a list of launches, the same for the CUDA driver and the runtime.
pub const LIST_ENTRY: usize = 56;

/// The argument that is a list of launches, one for each GPU. Its first entry is copied at entry.
pub fn launch_list(f: &Function) -> Option<u8> {
    f.roles.params.filter(|_| f.class == Class::Launch)
}

/// Whether the entries of a list of launches are those of the CUDA runtime, in which shared memory and stream follow the
/// arguments of the kernel. HIP has such a list and one like that of the CUDA driver.
pub fn is_runtime_list(f: &Function) -> bool {
    let list = launch_list(f).and_then(|position| f.arg(Some(position)));
    list.is_some_and(|list| ["cudaLaunchParams*", "hipLaunchParams*"].contains(&list.ty))
}

/// The handle of what is launched.
pub fn launched(f: &Function, words: &Words<'_>) -> Option<u64> {
    match launch_list(f) {
        Some(_) => words.pointee.get(..8).map(little_endian),
        None => argument_number(f, f.roles.func, words),
    }
}

/// The argument whose text is copied at entry.
pub fn text_arg(f: &Function) -> Option<u8> {
    f.pointee.filter(|(_, pointee)| *pointee == Pointee::Text).map(|(position, _)| position)
}

/// The arguments by name, in order; `None` if no prototype is known.
pub fn arguments(f: &Function, words: &Words<'_>) -> Option<Vec<(Name, Value)>> {
    let args = f.args.as_ref()?;
    let mut values: Vec<_> = args.iter().map(|a| (Cow::Borrowed(a.name), argument(a, words))).collect();
    if let Some((_, value)) = f.roles.id.and_then(|id| values.get_mut(usize::from(id))) {
        *value = communicators::unique_id(f, words).map_or(Value::Unread, Value::Hex);
    }
    if made_list(f).is_some() {
        communicators::show_made_list(f, words, &mut values);
    } else if args.iter().any(|arg| arg.out.is_some()) {
        show_outs(f, args, words, &mut values);
    }
    if let Some((_, value)) = text_arg(f).and_then(|position| values.get_mut(usize::from(position))) {
        // a null pointer is shown as the pointer
        if *value != Value::Hex(0) {
            *value = text(words).map_or(Value::Unread, Value::Text);
        }
    }
    if let Some((global, Pointee::Sizes)) = f.pointee {
        show_sizes(f, global, words, &mut values);
    }
    Some(values)
}

/// Replaces pointers by the values that the call wrote there. If nothing was read the pointer stays.
fn show_outs(f: &Function, args: &[Arg], words: &Words<'_>, values: &mut [(Name, Value)]) {
    for (read, word) in out_reads(f).iter().zip(words.outs) {
        let position = usize::from(read.arg);
        let kind = args.get(position).and_then(|arg| arg.out);
        if let (Some(kind), Some(word), Some((_, value))) = (kind, word, values.get_mut(position)) {
            *value = scalar(kind, Number { word, bytes: kind.bytes() });
        }
    }
}

/// The copied text. It is untrusted.
fn text(words: &Words<'_>) -> Option<String> {
    let end = words.pointee.iter().position(|b| *b == 0)?;
    let mut text = String::from_utf8_lossy(&words.pointee[..end]).into_owned();
    if words.is_text_cut {
        text.push('…');
    }
    Some(text)
}

fn argument(arg: &Arg, words: &Words<'_>) -> Value {
    match (arg.kind, passed(arg, words)) {
        (ArgKind::Struct { layout: Some(layout), bytes }, Some(passed)) => {
            let all = in_memory(passed);
            all.get(..usize::from(bytes)).map_or(Value::Unread, |bytes| structure(layout, bytes))
        }
        (kind, Some([first, ..])) => scalar(kind, Number { word: *first, bytes: kind.bytes() }),
        (_, Some([]) | None) => Value::Unread,
    }
}

/// The words in which an argument was passed.
fn passed<'a>(arg: &Arg, words: &Words<'a>) -> Option<&'a [u64]> {
    words_of(arg, words.registers, words.stack)
}

/// A struct passed by value, as it is in memory. None is larger than the copied component of the stack.
fn in_memory(passed: &[u64]) -> [u8; 8 * MAX_STACK_WORDS] {
    let mut bytes = [0; 8 * MAX_STACK_WORDS];
    bytes.chunks_exact_mut(8).zip(passed).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    bytes
}

/// A number of at most eight bytes. The higher bytes of its word are undefined.
#[derive(Clone, Copy)]
struct Number {
    word: u64,
    bytes: u16,
}

impl Number {
    /// From the little-endian bytes of a field.
    fn in_field(field: &[u8]) -> Self {
        let word = field.iter().take(8).rev().fold(0, |n, b| n << 8 | u64::from(*b));
        Self { word, bytes: u16::try_from(field.len()).unwrap_or(8) }
    }

    fn unused_bits(self) -> u32 {
        64 - 8 * u32::from(self.bytes.clamp(1, 8))
    }

    fn unsigned(self) -> u64 {
        self.word << self.unused_bits() >> self.unused_bits()
    }

    fn signed(self) -> i64 {
        (self.word << self.unused_bits()).cast_signed() >> self.unused_bits()
    }
}

/// An unsigned number from up to eight bytes.
fn little_endian(bytes: &[u8]) -> u64 {
    Number::in_field(bytes).unsigned()
}

fn scalar(kind: ArgKind, number: Number) -> Value {
    match kind {
        ArgKind::Pointer | ArgKind::Handle | ArgKind::DevicePointer | ArgKind::Flags(_) => {
            Value::Hex(number.unsigned())
        }
        ArgKind::Size | ArgKind::Uint(_) => Value::Uint(number.unsigned()),
        ArgKind::Int(_) => Value::Int(number.signed()),
        ArgKind::Enum(table) => enum_value(table, number),
        ArgKind::Struct { .. } | ArgKind::Float => Value::Unread,
    }
}

fn enum_value(table: &'static EnumTable, number: Number) -> Value {
    let n = number.signed();
    table.name_of(n).map_or(Value::Int(n), |name| Value::Name(Cow::Borrowed(name)))
}

fn structure(layout: &StructLayout, bytes: &[u8]) -> Value {
    if layout.name == "dim3" {
        return dim3(bytes).map_or(Value::Unread, Value::Dim3);
    }
    let field = |f: &Field| (Cow::Borrowed(f.name), field_value(f, bytes));
    Value::Struct(layout.fields.iter().map(field).collect())
}

fn field_value(field: &Field, bytes: &[u8]) -> Value {
    let Some(bytes) = field_bytes(field, bytes) else { return Value::Unread };
    if let Some(layout) = crate::catalogue().layout(field.ty) {
        return structure(layout, bytes);
    }
    let number = Number::in_field(bytes);
    match crate::catalogue().enum_table(field.ty) {
        Some(table) => enum_value(table, number),
        None if field.ty.ends_with('*') || field.ty.contains("deviceptr") => Value::Hex(number.unsigned()),
        None if field.bytes > 8 => Value::Unread,
        None if field.ty == "int" => Value::Int(number.signed()),
        None => Value::Uint(number.unsigned()),
    }
}

fn field_bytes<'a>(field: &Field, bytes: &'a [u8]) -> Option<&'a [u8]> {
    bytes.get(usize::from(field.offset)..usize::from(field.offset + field.bytes))
}

fn dim3(bytes: &[u8]) -> Option<[u32; 3]> {
    let component =
        |i: usize| bytes.get(4 * i..)?.first_chunk().map(|component| u32::from_le_bytes(*component));
    Some([component(0)?, component(1)?, component(2)?])
}

/// The status a function returned, as a number.
pub fn status(f: &Function, ret: u64) -> Option<i64> {
    match f.result {
        // an enum is in the low half of the register; the high half is undefined
        ResultKind::Status(_) => Some(i64::from(ret as u32 as i32)),
        ResultKind::Errno => Some(ret.cast_signed()).filter(|n| errno::is_error(*n)),
        _ => None,
    }
}

/// The name of a failure without a status.
const NULL: &str = "returned NULL";

/// The name of a status, if known.
pub fn known_error_name(f: &Function, status: i64) -> Option<&'static str> {
    match f.result {
        ResultKind::Status(table) => table.name_of(status),
        ResultKind::Errno => errno::known_name(status),
        // the names of the statuses that its API writes through arguments
        _ if f.api.is_failure(status) => f.api.statuses()?.name_of(status),
        _ => f.returns_what_it_makes().then_some(NULL),
    }
}

/// The name of a failed status; `unknown` with its number if it has none.
pub fn error_name(f: &Function, status: i64) -> Option<Name> {
    if f.result == ResultKind::Errno {
        return errno::is_error(status).then(|| errno::name(status));
    }
    let ResultKind::Status(table) = f.result else { return None };
    f.api.is_failure(status).then(|| match table.name_of(status) {
        Some(name) => Cow::Borrowed(name),
        None if f.api == Api::Hook => coded_error(status),
        None => Cow::Owned(format!("unknown {} {status}", table.name)),
    })
}

/// The name of a failure by status; a call without a failed status was to return a pointer and returned NULL.
pub fn failure_name(f: &Function, status: i64) -> Name {
    let named = || known_error_name(f, status).map(Cow::Borrowed);
    error_name(f, status)
        .or_else(named)
        .unwrap_or_else(|| if f.api.is_failure(status) { coded_error(status) } else { Cow::Borrowed(NULL) })
}

/// The failure of a call whose return value is not a status: it wrote a failed status, or returned NULL.
pub fn output_error(f: &Function, ret: u64, words: &Words<'_>) -> Option<Name> {
    let status = f.roles.error_out.and_then(|_| {
        let last = out_reads(f).len().checked_sub(1)?;
        words.outs.get(last).copied().flatten()
    });
    let status = status.map(|word| i64::from(word as u32 as i32)).filter(|status| f.api.is_failure(*status));
    let returned_null = f.returns_what_it_makes() && ret == 0;
    (status.is_some() || returned_null).then(|| failure_name(f, status.unwrap_or(0)))
}

fn coded_error(status: i64) -> Name {
    Cow::Owned(format!("error {status}"))
}

/// An argument as a plain number.
pub fn argument_number(f: &Function, position: Option<u8>, words: &Words<'_>) -> Option<u64> {
    let arg = f.arg(position)?;
    let word = *passed(arg, words)?.first()?;
    Some(Number { word, bytes: arg.kind.bytes() }.unsigned())
}

/// The effect of a call as far as its arguments show it: direction, CUDA kernels, grid and block. Bytes and addresses
/// are added from BPF, because only it knows what was counted.
pub fn effect(f: &Function, words: &Words<'_>) -> Effect {
    match f.class {
        Class::Launch => Effect::Launch(launch(f, words)),
        Class::GraphLaunch => Effect::GraphLaunch(GraphLaunch::default()),
        Class::Memcpy | Class::Memset => {
            let waits = argument_number(f, f.roles.waits, words).is_some_and(|waits| waits != 0);
            Effect::Transfer(Transfer::new(direction(f, words), f.roles.asynchronous && !waits))
        }
        _ => Effect::None,
    }
}

/// The stream argument of a call. Some launches have it in a struct; the entries of launch lists of the runtime have
/// it after the arguments.
pub fn stream(f: &Function, words: &Words<'_>) -> Option<u64> {
    if let Some(layout) = config_layout(f) {
        let field = layout.fields.iter().find(|field| ["stream", "hStream"].contains(&field.name))?;
        field_bytes(field, words.pointee).map(little_endian)
    } else if launch_list(f).is_some() {
        let at = if is_runtime_list(f) { 48 } else { 40 };
        words.pointee.get(at..at + 8).map(little_endian)
    } else {
        argument_number(f, f.roles.stream, words)
    }
}

/// The direction of a copy, as far as its arguments show it.
fn direction(f: &Function, words: &Words<'_>) -> CopyDirection {
    if f.class == Class::Memset {
        return CopyDirection::Fill;
    }
    let known = match f.roles.direction {
        Some(Direction::Fixed(word)) => CopyDirection::from_word(word),
        Some(Direction::FromKind) => f.arg(f.roles.kind).and_then(|a| match argument(a, words) {
            Value::Name(word) => CopyDirection::from_word(&word),
            _ => None,
        }),
        Some(Direction::FromStruct) => struct_direction(f, words),
        _ => None,
    };
    known.unwrap_or(CopyDirection::Unknown)
}

fn launch(f: &Function, words: &Words<'_>) -> Launch {
    if config_layout(f).is_some() {
        return launch_config(words);
    }
    if launch_list(f).is_some() {
        return first_of_list(f, words);
    }
    if f.roles.global.is_some() {
        return launch_of_sizes(f, words);
    }
    Launch {
        grid: f
            .roles
            .grid
            .and_then(|at| dimensions(f, at, words))
            .or_else(|| plane(f, words))
            .or_else(|| blocks(f, words)),
        block: f.roles.block.and_then(|at| dimensions(f, at, words)),
        shared: argument_number(f, f.roles.shared, words).unwrap_or(0),
        ..Launch::default()
    }
}

/// The first launch of a list: the CUDA kernel, six dimensions, then shared memory and stream, which for the runtime
/// follow the arguments.
fn first_of_list(f: &Function, words: &Words<'_>) -> Launch {
    let shared = if is_runtime_list(f) { 40..48 } else { 32..36 };
    Launch {
        grid: words.pointee.get(8..20).and_then(dim3),
        block: words.pointee.get(20..32).and_then(dim3),
        shared: words.pointee.get(shared).map_or(0, little_endian),
        kernels: argument_number(f, f.roles.count, words).unwrap_or(1).min(Launch::MOST_KERNELS),
        ..Launch::default()
    }
}

/// A grid given by its width and height.
fn plane(f: &Function, words: &Words<'_>) -> Option<[u32; 3]> {
    let width = f.roles.plane?;
    let side = |at| argument_number(f, Some(at), words).map(|side| side as u32);
    Some([side(width)?, side(width + 1)?, 1])
}

/// A grid that is given in threads.
fn blocks(f: &Function, words: &Words<'_>) -> Option<[u32; 3]> {
    let threads = dimensions(f, f.roles.threads?, words)?;
    let block = dimensions(f, f.roles.block?, words)?;
    Some(std::array::from_fn(|i| threads[i].div_ceil(block[i].max(1))))
}

/// A dim3 argument, or three integers in a row.
fn dimensions(f: &Function, at: u8, words: &Words<'_>) -> Option<[u32; 3]> {
    let arg = f.arg(Some(at))?;
    if matches!(arg.kind, ArgKind::Struct { .. }) {
        return dim3(&in_memory(passed(arg, words)?));
    }
    let component = |i: u8| argument_number(f, Some(at + i), words).map(|n| n as u32);
    Some([component(0)?, component(1)?, component(2)?])
}

/// The struct with the dimensions of a launch.
fn config_layout(f: &Function) -> Option<&'static StructLayout> {
    f.roles.config.and(struct_arg(f)).map(|(_, layout)| layout)
}

/// Grid, block and shared memory of launches that have them in a struct. Both structs begin with the six dimensions.
fn launch_config(words: &Words<'_>) -> Launch {
    Launch {
        grid: words.pointee.get(..12).and_then(dim3),
        block: words.pointee.get(12..24).and_then(dim3),
        shared: words.pointee.get(24..28).map_or(0, little_endian),
        ..Launch::default()
    }
}

/// The direction of a copy described by a struct: its `kind`, or the memory types of its two sides.
fn struct_direction(f: &Function, words: &Words<'_>) -> Option<CopyDirection> {
    const HOST: u64 = 1;
    const UNIFIED: u64 = 4;
    let (_, layout) = struct_arg(f)?;
    let field = |name: &str| {
        let field = layout.fields.iter().find(|field| field.name == name)?;
        field_bytes(field, words.pointee).map(little_endian)
    };
    if let Some(kind) = field("kind") {
        let table = crate::catalogue().enum_table("cudaMemcpyKind")?;
        return table.name_of(kind.cast_signed()).and_then(CopyDirection::from_word);
    }
    let (from, to) = (field("srcMemoryType")?, field("dstMemoryType")?);
    if from == UNIFIED || to == UNIFIED {
        // only the addresses decide
        return None;
    }
    Some(match (from == HOST, to == HOST) {
        (true, true) => CopyDirection::HostToHost,
        (true, false) => CopyDirection::HostToDevice,
        (false, true) => CopyDirection::DeviceToHost,
        (false, false) => CopyDirection::DeviceToDevice,
    })
}

#[cfg(test)]
mod tests;
