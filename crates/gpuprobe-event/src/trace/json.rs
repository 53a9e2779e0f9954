//! Parses a line of JSON. Strings are borrowed from the line and objects are lists, because a line has few fields and
//! each is read once.
//!
//! It accepts what serde_json accepts, in two thirds of the time: to parse lines is half of the work of reading a trace.

use std::borrow::Cow;

use memchr::memchr2;

#[derive(Debug, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Uint(u64),
    Int(i64),
    Float(f64),
    String(Cow<'a, str>),
    Array(Vec<Self>),
    Object(Object<'a>),
}

/// Fields by name. If a name occurs twice, the last one counts.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Object<'a> {
    fields: Vec<(Cow<'a, str>, Json<'a>)>,
    /// The bits of all names: most fields that a reader asks for are not there.
    names: u64,
}

/// One of 64 bits for a name.
#[inline]
fn bit(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let at = |place: usize| usize::from(bytes.get(place).copied().unwrap_or_default());
    1 << ((bytes.len() + 5 * at(0) + 3 * at(bytes.len() / 2)) % 64)
}

impl<'a> Object<'a> {
    #[inline]
    pub(super) fn get(&self, name: &str) -> Option<&Json<'a>> {
        if self.names & bit(name) == 0 {
            return None;
        }
        self.fields.iter().rev().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    pub(super) fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Json<'a>)> {
        self.fields.iter().map(|(name, value)| (&**name, value))
    }
}

impl<'a> Json<'a> {
    pub(super) fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(is) => Some(*is),
            _ => None,
        }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Uint(n) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Uint(n) => i64::try_from(*n).ok(),
            Self::Int(n) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Uint(n) => Some(*n as f64),
            Self::Int(n) => Some(*n as f64),
            Self::Float(n) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_array(&self) -> Option<&Vec<Self>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    pub(super) fn as_object(&self) -> Option<&Object<'a>> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }
}

/// Parses one value; `None` if it is not valid JSON.
pub(super) fn parse(text: &str) -> Option<Json<'_>> {
    let has_control = text.bytes().fold(false, |has, byte| has | (byte < b' '));
    let mut parser = Parser { text, at: 0, has_control, room: DEEPEST };
    let value = parser.value()?;
    parser.skip_blanks().is_none().then_some(value)
}

/// Objects and lists inside each other.
const DEEPEST: u32 = 127;

/// Fields that most lines have at most, which saves copying as the list grows. Larger blocks than 1032 bytes take longer
/// to get.
const FIELDS: usize = 18;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Strings must not contain control characters, and nearly no line has any.
    has_control: bool,
    /// How many more objects and lists can be inside each other.
    room: u32,
}

impl<'a> Parser<'a> {
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

    fn value(&mut self) -> Option<Json<'a>> {
        match self.skip_blanks()? {
            b'"' => self.string().map(Json::String),
            b'-' | b'0'..=b'9' => self.number(),
            b'{' => self.inside(Self::object),
            b'[' => self.inside(Self::list),
            b't' => self.word("true", Json::Bool(true)),
            b'f' => self.word("false", Json::Bool(false)),
            b'n' => self.word("null", Json::Null),
            _ => None,
        }
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Option<Json<'a>> {
        let is_word = self.text.as_bytes().get(self.at..)?.starts_with(word.as_bytes());
        self.at += word.len();
        is_word.then_some(value)
    }

    fn inside(&mut self, parse: impl Fn(&mut Self) -> Option<Json<'a>>) -> Option<Json<'a>> {
        self.room = self.room.checked_sub(1)?;
        self.at += 1;
        let value = parse(self);
        self.room += 1;
        value
    }

    fn list(&mut self) -> Option<Json<'a>> {
        let mut list = Vec::new();
        if self.take(b']') {
            return Some(Json::Array(list));
        }
        loop {
            list.push(self.value()?);
            if !self.take(b',') {
                return self.take(b']').then_some(Json::Array(list));
            }
        }
    }

    fn object(&mut self) -> Option<Json<'a>> {
        let mut object = Object { fields: Vec::with_capacity(FIELDS), names: 0 };
        if self.take(b'}') {
            return Some(Json::Object(object));
        }
        loop {
            if self.skip_blanks() != Some(b'"') {
                return None;
            }
            let name = self.string()?;
            if !self.take(b':') {
                return None;
            }
            object.names |= bit(&name);
            object.fields.push((name, self.value()?));
            if !self.take(b',') {
                return self.take(b'}').then_some(Json::Object(object));
            }
        }
    }

    /// A string, from its quote on. It is borrowed if nothing in it is escaped.
    #[inline(always)]
    fn string(&mut self) -> Option<Cow<'a, str>> {
        let start = self.at + 1;
        let mut at = start;
        let mut is_escaped = false;
        let end = loop {
            let rest = self.text.as_bytes().get(at..)?;
            let found = at + quote_or_backslash(rest)?;
            if self.text.as_bytes().get(found) == Some(&b'"') {
                break found;
            }
            is_escaped = true;
            at = found + 2;
        };
        self.at = end + 1;
        if is_escaped {
            return serde_json::from_str(self.text.get(start - 1..=end)?).ok().map(Cow::Owned);
        }
        let text = self.text.get(start..end)?;
        (!self.has_control || text.bytes().all(|byte| byte >= b' ')).then_some(Cow::Borrowed(text))
    }

    fn digits(&mut self) -> Option<&'a [u8]> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let length = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length)
    }

    fn number(&mut self) -> Option<Json<'a>> {
        let start = self.at;
        let is_negative = self.peek() == Some(b'-');
        self.at += usize::from(is_negative);
        let whole = self.digits()?;
        if whole.is_empty() || whole.len() > 1 && whole.starts_with(b"0") {
            return None;
        }
        let mut fraction: &[u8] = &[];
        let mut is_simple = true;
        if self.peek() == Some(b'.') {
            self.at += 1;
            fraction = self.digits().filter(|digits| !digits.is_empty())?;
        } else if let Some(n) = unsigned(whole) {
            // -0 is a floating-point number, so that its sign is kept
            let json = match is_negative {
                false => Some(Json::Uint(n)),
                true => 0i64.checked_sub_unsigned(n).filter(|n| *n < 0).map(Json::Int),
            };
            if json.is_some() && !matches!(self.peek(), Some(b'e' | b'E')) {
                return json;
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits().filter(|digits| !digits.is_empty())?;
            is_simple = false;
        }
        if is_simple
            && !is_negative
            && let Some(n) = decimal(whole, fraction)
        {
            return Some(Json::Float(n));
        }
        let n: f64 = self.text.get(start..self.at)?.parse().ok()?;
        n.is_finite().then_some(Json::Float(n))
    }
}

/// The place of the first quote or backslash.
#[inline]
fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    const LOWEST: u64 = 0x0101_0101_0101_0101;
    const HIGHEST: u64 = LOWEST << 7;
    // the lowest set bit is right, and only that is used
    let zeros = |word: u64| word.wrapping_sub(LOWEST) & !word & HIGHEST;
    // nearly all strings are short, and a search in longer ones takes a while to begin
    let mut at = 0;
    while let Some(first) = bytes.get(at..).and_then(<[u8]>::first_chunk)
        && at < 16
    {
        let word = u64::from_le_bytes(*first);
        let found = zeros(word ^ (LOWEST * u64::from(b'"'))) | zeros(word ^ (LOWEST * u64::from(b'\\')));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr2(b'"', b'\\', bytes.get(at..)?).map(|found| at + found)
}

/// A whole number, if it has 64 bits.
fn unsigned(digits: &[u8]) -> Option<u64> {
    const ALWAYS_FIT: usize = 19;
    let value = |byte: &u8| u64::from(byte - b'0');
    if digits.len() <= ALWAYS_FIT {
        return Some(digits.iter().fold(0, |n, byte| n * 10 + value(byte)));
    }
    digits.iter().try_fold(0u64, |n, byte| n.checked_mul(10)?.checked_add(value(byte)))
}

/// The number nearest to one with so few digits that the division alone rounds.
fn decimal(whole: &[u8], fraction: &[u8]) -> Option<f64> {
    const EXACT: usize = 15;
    const POWERS: [f64; EXACT + 1] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    if whole.len() + fraction.len() > EXACT {
        return None;
    }
    let power = POWERS.get(fraction.len())?;
    let digits = whole.iter().chain(fraction);
    Some(digits.fold(0u64, |n, byte| n * 10 + u64::from(byte - b'0')) as f64 / power)
}
