//! Who may ask. Passwords are kept as bcrypt hashes, which are slow on purpose: they are compared by another thread, one
//! at a time, and what was right once is known from then on.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Names with the hashes of their passwords.
pub(super) type Users = BTreeMap<String, String>;

/// What is compared with where nobody has that name, so that it takes as long. The password is not known to anybody.
const NOBODY: &str = "$2y$10$Ro0CUfOqk6cXEKf3dyaM7OOie4dnOqb/y25HGohFaC5MC9efDlKv6";
/// Requests that may wait for their turn.
const MOST_WAITING: usize = 16;
/// Right answers that are remembered.
const MOST_KNOWN: usize = 100;

/// Whether a request may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Welcome,
    Unknown,
    /// Too many passwords are being compared.
    Busy,
}

#[derive(Debug)]
pub(super) struct Doorkeeper {
    /// What is remembered is not the password but what this makes of it: nobody can tell by the time a look takes how much
    /// of a guess was right.
    key: hmac::Key,
    known: Mutex<HashSet<[u8; 32]>>,
    waiting: Semaphore,
    turn: Arc<Semaphore>,
}

impl Doorkeeper {
    /// `None` where the system has no random numbers.
    pub(super) fn new() -> Option<Self> {
        Some(Self {
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?,
            known: Mutex::default(),
            waiting: Semaphore::new(MOST_WAITING),
            turn: Arc::new(Semaphore::new(1)),
        })
    }

    /// Judges by the value of an `Authorization` header.
    pub(super) async fn judge(&self, users: &Users, authorization: Option<&[u8]>) -> Verdict {
        let Some((name, password)) = authorization.and_then(credentials) else { return Verdict::Unknown };
        let user = users.get(&name);
        let hash = user.map_or(NOBODY, String::as_str).to_owned();
        let tag = self.tag(&[name.as_bytes(), hash.as_bytes(), &password]);
        if user.is_some() && self.known().contains(&tag) {
            return Verdict::Welcome;
        }
        let Ok(_seat) = self.waiting.try_acquire() else { return Verdict::Busy };
        // neither is ever closed
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else { return Verdict::Busy };
        let compared = spawn_blocking(move || {
            // kept to the end of this, also where the client has gone away meanwhile
            let _turn = turn;
            bcrypt::verify(&password, &hash).unwrap_or(false)
        });
        if !compared.await.unwrap_or(false) || user.is_none() {
            return Verdict::Unknown;
        }
        let mut known = self.known();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(tag);
        Verdict::Welcome
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashSet<[u8; 32]>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tag(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in parts {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        let mut tag = [0; 32];
        tag.iter_mut().zip(context.sign().as_ref()).for_each(|(to, from)| *to = *from);
        tag
    }
}

/// Name and password of a `Basic` header.
pub(super) fn credentials(authorization: &[u8]) -> Option<(String, Vec<u8>)> {
    let (scheme, rest) = authorization.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let mut name = STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = name.iter().position(|&b| b == b':')?;
    let password = name.split_off(colon + 1);
    name.pop();
    Some((String::from_utf8(name).ok()?, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(pair: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(pair)).into_bytes()
    }

    fn ask(door: &Doorkeeper, users: &Users, authorization: Option<&[u8]>) -> Verdict {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(door.judge(users, authorization))
    }

    #[test]
    fn a_name_ends_at_the_first_colon_and_a_password_may_have_some() {
        assert_eq!(credentials(&basic("a:b:c")), Some(("a".to_owned(), b"b:c".to_vec())));
        assert_eq!(
            credentials(b"bAsIc   Ojo="),
            Some((String::new(), b":".to_vec())),
            "{:?}",
            STANDARD.encode("::")
        );
        for wrong in ["", "Basic", "Basic ", "Bearer YTpi", "Basic YTpi!", "Basic YQ==", "Basic /zph"] {
            assert_eq!(credentials(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn the_right_password_is_known_until_its_hash_changes() {
        let hashed = |password: &str| bcrypt::hash(password, 4).unwrap();
        let mut users = Users::from([("ann".to_owned(), hashed("secret"))]);
        let door = Doorkeeper::new().unwrap();
        assert_eq!(ask(&door, &users, None), Verdict::Unknown);
        assert_eq!(ask(&door, &users, Some(&basic("ann:wrong"))), Verdict::Unknown);
        assert_eq!(ask(&door, &users, Some(&basic("bob:secret"))), Verdict::Unknown);
        assert!(door.known().is_empty(), "only right answers are remembered");
        for _ in 0..2 {
            assert_eq!(ask(&door, &users, Some(&basic("ann:secret"))), Verdict::Welcome);
            assert_eq!(door.known().len(), 1);
        }
        users.insert("ann".to_owned(), hashed("other"));
        assert_eq!(ask(&door, &users, Some(&basic("ann:secret"))), Verdict::Unknown);
        assert_eq!(ask(&door, &users, Some(&basic("ann:other"))), Verdict::Welcome);
    }

    #[test]
    fn no_more_wait_than_there_are_seats_but_who_is_known_need_not() {
        let users = Users::from([("ann".to_owned(), bcrypt::hash("secret", 4).unwrap())]);
        let door = Doorkeeper::new().unwrap();
        assert_eq!(ask(&door, &users, Some(&basic("ann:secret"))), Verdict::Welcome);
        let all = u32::try_from(MOST_WAITING).unwrap();
        let _taken = door.waiting.try_acquire_many(all).unwrap();
        assert_eq!(ask(&door, &users, Some(&basic("ann:wrong"))), Verdict::Busy);
        assert_eq!(ask(&door, &users, Some(&basic("ann:secret"))), Verdict::Welcome);
    }

    #[test]
    fn nobodys_hash_takes_as_long_as_one_of_the_usual_cost() {
        let parts: bcrypt::HashParts = NOBODY.parse().unwrap();
        assert_eq!(parts.get_cost(), 10);
    }
}
