//! Parses a line of JSON. Values are kept one after the other in a list that the next line uses again, and strings are
//! borrowed from the line: to parse a line allocates nothing, unless a string in it is escaped.
//!
//! It accepts what serde_json accepts: to parse lines is most of the work of reading a trace.

mod quotes;

use quotes::quote_or_backslash;

/// The values of one line.
#[derive(Debug)]
pub(super) struct Document {
    nodes: Vec<Node>,
    /// Escaped strings without their escapes, one after the other.
    unescaped: String,
    /// The last field of the outermost object for each [`slot`]; only those in `taken` are of this line.
    slots: [u32; SLOTS],
    /// The slots of all fields of the outermost object: most fields that a reader asks for are not there.
    taken: u64,
}

/// A value, with its name if it is a field.
#[derive(Clone, Copy, Debug)]
struct Node {
    name: Span,
    value: Value,
    /// The node after this one and all inside of it.
    next: u32,
    /// The field of the outermost object before this one with the same slot; 0 if there is none.
    before: u32,
}

/// A part of the line, or of the unescaped texts.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    end: u32,
    is_unescaped: bool,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Null,
    Bool(bool),
    Uint(u64),
    Int(i64),
    /// A positive number by all of its digits, and how many of them are decimal places.
    Decimal(u64, u8),
    Float(f64),
    Text(Span),
    List,
    Object,
}

const SLOTS: usize = 64;

/// One of 64 slots for a name.
#[inline(always)]
fn slot(name: &[u8]) -> usize {
    let at = |place: usize| usize::from(name.get(place).copied().unwrap_or_default());
    (name.len() + 5 * at(0) + 3 * at(name.len() / 2)) % SLOTS
}

impl Default for Document {
    fn default() -> Self {
        Self { nodes: Vec::new(), unescaped: String::new(), slots: [0; SLOTS], taken: 0 }
    }
}

impl Document {
    /// Parses one value; `None` if it is not valid JSON.
    pub(super) fn parse<'a>(&'a mut self, text: &'a str) -> Option<Json<'a>> {
        const MOST: usize = u32::MAX as usize;
        let has_control = text.bytes().fold(false, |has, byte| has | (byte < b' '));
        self.nodes.clear();
        self.unescaped.clear();
        self.taken = 0;
        let mut parser = Parser { document: self, text, at: 0, has_control, room: DEEPEST };
        parser.value(Span::default())?;
        let is_valid = parser.skip_blanks().is_none() && text.len() < MOST;
        is_valid.then_some(Json { document: self, text, at: 0 })
    }
}

/// A value of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Json<'a> {
    document: &'a Document,
    text: &'a str,
    at: u32,
}

/// Fields by name. If a name occurs twice, the last one counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object<'a>(Json<'a>);

impl<'a> Json<'a> {
    #[inline]
    fn node(self) -> Option<&'a Node> {
        self.document.nodes.get(self.at as usize)
    }

    #[inline]
    fn value(self) -> Value {
        self.node().map_or(Value::Null, |node| node.value)
    }

    #[inline]
    fn span(self, span: Span) -> &'a str {
        let text = if span.is_unescaped { &self.document.unescaped } else { self.text };
        text.get(span.start as usize..span.end as usize).unwrap_or_default()
    }

    /// The values inside of it.
    fn inner(self) -> impl Iterator<Item = Self> + Clone {
        let end = self.node().map_or(0, |node| node.next);
        let mut next = self.at + 1;
        std::iter::from_fn(move || {
            let inner = Self { at: next, ..self };
            next = inner.node().filter(|_| next < end)?.next;
            Some(inner)
        })
    }

    #[inline]
    pub(super) fn as_bool(self) -> Option<bool> {
        match self.value() {
            Value::Bool(is) => Some(is),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn as_u64(self) -> Option<u64> {
        match self.value() {
            Value::Uint(n) => Some(n),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn as_i64(self) -> Option<i64> {
        match self.value() {
            Value::Uint(n) => i64::try_from(n).ok(),
            Value::Int(n) => Some(n),
            _ => None,
        }
    }

    pub(super) fn as_f64(self) -> Option<f64> {
        match self.value() {
            Value::Uint(n) => Some(n as f64),
            Value::Int(n) => Some(n as f64),
            Value::Decimal(digits, places) => Some(digits as f64 / 10f64.powi(places.into())),
            Value::Float(n) => Some(n),
            _ => None,
        }
    }

    /// A number times this power of ten, rounded to a whole number; `None` if it is negative or too large.
    #[inline]
    pub(super) fn scaled(self, power: u8) -> Option<u64> {
        let (digits, places) = match self.value() {
            Value::Uint(n) => (n, 0),
            Value::Decimal(digits, places) => (digits, places),
            Value::Int(_) | Value::Float(_) => {
                let scaled = (self.as_f64()? * 10f64.powi(power.into())).round();
                return (0.0..u64::MAX as f64).contains(&scaled).then_some(scaled as u64);
            }
            _ => return None,
        };
        match power.checked_sub(places) {
            Some(more) => digits.checked_mul(power_of_ten(more)?),
            None => {
                let unit = power_of_ten(places - power)?;
                Some(digits / unit + u64::from(digits % unit >= unit / 2))
            }
        }
    }

    #[inline]
    pub(super) fn as_str(self) -> Option<&'a str> {
        match self.value() {
            Value::Text(span) => Some(self.span(span)),
            _ => None,
        }
    }

    /// The items of a list.
    #[inline]
    pub(super) fn as_list(self) -> Option<impl Iterator<Item = Self> + Clone> {
        matches!(self.value(), Value::List).then(|| self.inner())
    }

    /// The items of a list that has so many.
    #[inline]
    pub(super) fn as_array<const N: usize>(self) -> Option<[Self; N]> {
        let mut items = self.as_list()?;
        let mut array = [self; N];
        for item in &mut array {
            *item = items.next()?;
        }
        items.next().is_none().then_some(array)
    }

    #[inline]
    pub(super) fn as_object(self) -> Option<Object<'a>> {
        matches!(self.value(), Value::Object).then_some(Object(self))
    }

    #[cfg(test)]
    pub(super) fn is_null(self) -> bool {
        matches!(self.value(), Value::Null)
    }
}

impl<'a> Object<'a> {
    #[inline(always)]
    pub(super) fn get(self, name: &str) -> Option<Json<'a>> {
        if self.0.at > 0 {
            return self.get_inside(name);
        }
        let (document, slot) = (self.0.document, slot(name.as_bytes()));
        if document.taken & 1 << slot == 0 {
            return None;
        }
        let mut at = document.slots[slot];
        loop {
            let node = document.nodes.get(at as usize).filter(|_| at > 0)?;
            if self.0.span(node.name) == name {
                return Some(Json { at, ..self.0 });
            }
            at = node.before;
        }
    }

    /// Of an object that is not the outermost one.
    fn get_inside(self, name: &str) -> Option<Json<'a>> {
        self.iter().filter(|(field, _)| *field == name).last().map(|(_, value)| value)
    }

    #[inline(always)]
    pub(super) fn contains_key(self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn iter(self) -> impl Iterator<Item = (&'a str, Json<'a>)> {
        self.0
            .inner()
            .map(|value| (value.span(value.node().map_or_else(Span::default, |node| node.name)), value))
    }
}

/// Objects and lists inside each other.
const DEEPEST: u32 = 127;

struct Parser<'a, 'd> {
    document: &'d mut Document,
    text: &'a str,
    at: usize,
    /// Strings must not contain control characters, and nearly no line has any.
    has_control: bool,
    /// How many more objects and lists can be inside each other.
    room: u32,
}

impl Parser<'_, '_> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next byte that is no white space.
    #[inline]
    fn skip_blanks(&mut self) -> Option<u8> {
        match self.peek() {
            // there is none in lines that gpuprobe wrote
            Some(byte) if byte > b' ' => Some(byte),
            _ => self.skip_all_blanks(),
        }
    }

    #[cold]
    fn skip_all_blanks(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
        self.peek()
    }

    /// Whether the next byte that is no white space is this one, which is consumed.
    #[inline]
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.skip_blanks() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Adds a value with this name.
    fn value(&mut self, name: Span) -> Option<()> {
        let value = match self.skip_blanks()? {
            b'"' => Value::Text(self.string()?),
            b'-' | b'0'..=b'9' => self.number()?,
            b'{' => return self.inside(name, Value::Object, Self::object),
            b'[' => return self.inside(name, Value::List, Self::list),
            b't' => self.word("true", Value::Bool(true))?,
            b'f' => self.word("false", Value::Bool(false))?,
            b'n' => self.word("null", Value::Null)?,
            _ => return None,
        };
        self.push(name, value);
        Some(())
    }

    #[inline]
    fn push(&mut self, name: Span, value: Value) {
        let next = self.document.nodes.len() as u32 + 1;
        self.document.nodes.push(Node { name, value, next, before: 0 });
    }

    fn word(&mut self, word: &str, value: Value) -> Option<Value> {
        let is_word = self.text.as_bytes().get(self.at..)?.starts_with(word.as_bytes());
        self.at += word.len();
        is_word.then_some(value)
    }

    fn inside(&mut self, name: Span, value: Value, parse: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.room = self.room.checked_sub(1)?;
        self.at += 1;
        let at = self.document.nodes.len();
        self.push(name, value);
        parse(self)?;
        let next = self.document.nodes.len() as u32;
        self.document.nodes.get_mut(at)?.next = next;
        self.room += 1;
        Some(())
    }

    fn list(&mut self) -> Option<()> {
        if self.take(b']') {
            return Some(());
        }
        loop {
            self.value(Span::default())?;
            if !self.take(b',') {
                return self.take(b']').then_some(());
            }
        }
    }

    fn object(&mut self) -> Option<()> {
        let is_outermost = self.document.nodes.len() == 1;
        if self.take(b'}') {
            return Some(());
        }
        loop {
            if self.skip_blanks() != Some(b'"') {
                return None;
            }
            let name = self.string()?;
            if !self.take(b':') {
                return None;
            }
            let at = self.document.nodes.len();
            self.value(name)?;
            if is_outermost {
                self.note_field(at, name)?;
            }
            if !self.take(b',') {
                return self.take(b'}').then_some(());
            }
        }
    }

    /// Notes where a field of the outermost object is.
    #[inline]
    fn note_field(&mut self, at: usize, name: Span) -> Option<()> {
        let document = &mut *self.document;
        let text = if name.is_unescaped { &document.unescaped } else { self.text };
        let slot = slot(text.as_bytes().get(name.start as usize..name.end as usize)?);
        if document.taken & 1 << slot != 0 {
            document.nodes.get_mut(at)?.before = document.slots[slot];
        }
        document.taken |= 1 << slot;
        document.slots[slot] = at as u32;
        Some(())
    }

    /// A string, from its quote on.
    #[inline(always)]
    fn string(&mut self) -> Option<Span> {
        let start = self.at + 1;
        let found = start + quote_or_backslash(self.text.as_bytes().get(start..)?)?;
        if self.text.as_bytes().get(found) != Some(&b'"') {
            return self.escaped(start, found);
        }
        self.at = found + 1;
        if self.has_control && self.text.as_bytes().get(start..found)?.iter().any(|byte| *byte < b' ') {
            return None;
        }
        Some(Span { start: start as u32, end: found as u32, is_unescaped: false })
    }

    /// A string that has its first backslash here.
    #[cold]
    fn escaped(&mut self, start: usize, mut backslash: usize) -> Option<Span> {
        let end = loop {
            let at = backslash + 2;
            let found = at + quote_or_backslash(self.text.as_bytes().get(at..)?)?;
            if self.text.as_bytes().get(found) == Some(&b'"') {
                break found;
            }
            backslash = found;
        };
        self.at = end + 1;
        let text: String = serde_json::from_str(self.text.get(start - 1..=end)?).ok()?;
        let unescaped = &mut self.document.unescaped;
        let start = unescaped.len() as u32;
        unescaped.push_str(&text);
        Some(Span { start, end: unescaped.len() as u32, is_unescaped: true })
    }

    /// Reads digits after those of a number. Returns how many there were.
    #[inline]
    fn digits(&mut self, number: &mut u64) -> usize {
        let start = self.at;
        while let Some(byte @ b'0'..=b'9') = self.peek() {
            *number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Option<Value> {
        let start = self.at;
        let is_negative = self.peek() == Some(b'-');
        self.at += usize::from(is_negative);
        let begins_with_0 = self.peek() == Some(b'0');
        let mut number = 0;
        let length = self.digits(&mut number);
        if length == 0 || length > 1 && begins_with_0 {
            return None;
        }
        let whole_end = self.at;
        let mut places = 0;
        if self.peek() == Some(b'.') {
            self.at += 1;
            places = self.digits(&mut number);
            if places == 0 {
                return None;
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            if self.digits(&mut 0) == 0 {
                return None;
            }
        } else if length + places <= ALWAYS_FIT {
            match (places, is_negative) {
                (0, false) => return Some(Value::Uint(number)),
                (1..=MOST_PLACES, false) if number < EXACT => {
                    return Some(Value::Decimal(number, places as u8));
                }
                // -0 is a floating-point number, so that its sign is kept
                (0, true) if number > 0 => return 0i64.checked_sub_unsigned(number).map(Value::Int),
                _ => {}
            }
        } else if self.at == whole_end {
            let text = self.text.get(start..whole_end)?;
            let whole = text.parse().map(Value::Uint).ok().or_else(|| text.parse().map(Value::Int).ok());
            if whole.is_some() {
                return whole;
            }
        }
        let n: f64 = self.text.get(start..self.at)?.parse().ok()?;
        n.is_finite().then_some(Value::Float(n))
    }
}

/// So many digits always fit into 64 bits, and into 63.
const ALWAYS_FIT: usize = 18;
/// Whole numbers below this one are exact as floating-point numbers, as are powers of ten with so many zeros. Dividing one
/// by the other is then the only step that rounds.
const EXACT: u64 = 1 << 53;
const MOST_PLACES: usize = 15;

fn power_of_ten(power: u8) -> Option<u64> {
    10u64.checked_pow(power.into())
}
