//! The fields of an event as Perfetto's debug annotations, and interned names: a name, or a frame of a stack, is written
//! once and then referred to by number.

use std::collections::HashMap;

use gpuprobe_event::trace::{Fields, Key};

use crate::proto::{self, Begun};

/// Bytes of names that are interned at a time. A reader of the file has to keep them as well.
const MOST_NAMES: usize = 1 << 20;

mod field {
    pub(super) const IN_EVENT: u32 = 4;
    pub(super) const NAME_IID: u32 = 1;
    pub(super) const BOOL: u32 = 2;
    pub(super) const UINT: u32 = 3;
    pub(super) const INT: u32 = 4;
    pub(super) const DOUBLE: u32 = 5;
    pub(super) const STRING: u32 = 6;
    pub(super) const POINTER: u32 = 7;
    pub(super) const DICT_ENTRIES: u32 = 11;
    /// Of the event, not of an annotation.
    pub(super) const FLOW_IDS: u32 = 47;
    pub(super) const ARRAY_VALUES: u32 = 12;
    pub(super) const STRING_IID: u32 = 17;
}

/// The kind of a name. The values are field numbers of `InternedData`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum NameKind {
    Category = 1,
    Event = 2,
    Annotation = 3,
    Frame = 29,
}

impl NameKind {
    /// Its place in `Interned::numbers`.
    fn index(self) -> usize {
        match self {
            Self::Category => 0,
            Self::Event => 1,
            Self::Annotation => 2,
            Self::Frame => 3,
        }
    }
}

/// Interned names.
#[derive(Default)]
pub(super) struct Interned {
    numbers: [HashMap<Box<str>, u64>; 4],
    bytes: usize,
    new: Vec<u8>,
    taken: bool,
}

impl Interned {
    pub(super) fn category(&mut self, name: &str) -> u64 {
        self.number(NameKind::Category, name)
    }

    pub(super) fn event(&mut self, name: &str) -> u64 {
        self.number(NameKind::Event, name)
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes > MOST_NAMES
    }

    pub(super) fn clear(&mut self) {
        self.numbers.iter_mut().for_each(HashMap::clear);
        self.bytes = 0;
    }

    /// The names interned since the last call, as `InternedData`.
    pub(super) fn take_new(&mut self) -> Option<&[u8]> {
        self.taken = true;
        (!self.new.is_empty()).then_some(&self.new)
    }

    fn number(&mut self, kind: NameKind, name: &str) -> u64 {
        if std::mem::take(&mut self.taken) {
            self.new.clear();
        }
        let numbers = &mut self.numbers[kind.index()];
        if let Some(number) = numbers.get(name) {
            return *number;
        }
        // 0 is not a valid number
        let number = numbers.len() as u64 + 1;
        numbers.insert(name.into(), number);
        self.bytes += name.len() + size_of::<(Box<str>, u64)>();
        let one = proto::begin(&mut self.new, kind as u32);
        proto::uint(&mut self.new, 1, number);
        proto::text(&mut self.new, 2, name);
        proto::end(&mut self.new, one);
        number
    }
}

/// Writes fields into an event that is being written.
pub(super) struct Annotations<'a> {
    out: &'a mut Vec<u8>,
    interned: &'a mut Interned,
    open: Vec<Begun>,
}

impl<'a> Annotations<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, interned: &'a mut Interned) -> Self {
        Self { out, interned, open: Vec::new() }
    }

    /// Connects the event with all others of this number by an arrow.
    pub(super) fn flow(&mut self, number: u64) {
        proto::fixed64(self.out, field::FLOW_IDS, number);
    }

    fn begin(&mut self, key: Key<'_>) -> Begun {
        let at = if self.open.is_empty() { field::IN_EVENT } else { field::DICT_ENTRIES };
        let begun = proto::begin(self.out, at);
        proto::uint(self.out, field::NAME_IID, self.interned.number(NameKind::Annotation, key.as_str()));
        begun
    }

    fn one(&mut self, key: Key<'_>, value: impl FnOnce(&mut Vec<u8>)) {
        let begun = self.begin(key);
        value(self.out);
        proto::end(self.out, begun);
    }

    fn list<T>(&mut self, key: Key<'_>, items: &[T], value: impl Fn(&mut Vec<u8>, &T)) {
        self.one(key, |out| {
            for item in items {
                let one = proto::begin(out, field::ARRAY_VALUES);
                value(out, item);
                proto::end(out, one);
            }
        });
    }
}

impl Fields for Annotations<'_> {
    fn uint<'k>(&mut self, key: impl Into<Key<'k>>, n: u64) {
        self.one(key.into(), |out| proto::uint(out, field::UINT, n));
    }

    fn microseconds<'k>(&mut self, key: impl Into<Key<'k>>, ns: u64) {
        self.one(key.into(), |out| proto::double(out, field::DOUBLE, ns as f64 / 1e3));
    }

    fn int<'k>(&mut self, key: impl Into<Key<'k>>, n: i64) {
        self.one(key.into(), |out| proto::uint(out, field::INT, n.cast_unsigned()));
    }

    fn flag<'k>(&mut self, key: impl Into<Key<'k>>, is: bool) {
        self.one(key.into(), |out| proto::uint(out, field::BOOL, is.into()));
    }

    fn hex<'k>(&mut self, key: impl Into<Key<'k>>, n: u64) {
        self.one(key.into(), |out| proto::uint(out, field::POINTER, n));
    }

    fn text<'k>(&mut self, key: impl Into<Key<'k>>, text: &str) {
        self.one(key.into(), |out| proto::text(out, field::STRING, text));
    }

    fn uints<'k>(&mut self, key: impl Into<Key<'k>>, numbers: &[u64]) {
        self.list(key.into(), numbers, |out, n| proto::uint(out, field::UINT, *n));
    }

    fn texts<'k>(&mut self, key: impl Into<Key<'k>>, texts: &[String]) {
        // frames of stacks, which many calls share
        let numbers: Vec<_> = texts.iter().map(|text| self.interned.number(NameKind::Frame, text)).collect();
        self.list(key.into(), &numbers, |out, number| proto::uint(out, field::STRING_IID, *number));
    }

    fn unread<'k>(&mut self, key: impl Into<Key<'k>>) {
        self.text(key, "unread");
    }

    fn open<'k>(&mut self, key: impl Into<Key<'k>>) {
        let begun = self.begin(key.into());
        self.open.push(begun);
    }

    fn close(&mut self) {
        if let Some(begun) = self.open.pop() {
            proto::end(self.out, begun);
        }
    }

    fn open_list<'k>(&mut self, key: impl Into<Key<'k>>) {
        self.open(key);
    }

    fn open_item(&mut self) {
        let begun = proto::begin(self.out, field::ARRAY_VALUES);
        self.open.push(begun);
    }

    fn close_list(&mut self) {
        self.close();
    }
}
