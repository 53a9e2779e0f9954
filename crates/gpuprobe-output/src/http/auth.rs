//! Basic authentication. Passwords are stored as bcrypt hashes, which are slow on purpose, so they are compared on
//! another thread, one at a time. Right passwords and recent wrong ones are remembered, so that they are not compared
//! again.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::task::spawn_blocking;

use super::password_queue::{Client, PasswordQueue};

/// User names and the bcrypt hashes of their passwords.
pub(super) type Users = BTreeMap<String, String>;

/// Compared with if the user does not exist, so that the answer takes as long. Its password is unknown.
const UNKNOWN_USER: &str = "$2y$10$Ro0CUfOqk6cXEKf3dyaM7OOie4dnOqb/y25HGohFaC5MC9efDlKv6";
/// Right passwords that are remembered.
const MOST_KNOWN: usize = 100;
/// Wrong passwords that are remembered: a client that keeps sending an old password costs nothing.
const MOST_WRONG: usize = 1024;

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Welcome,
    Unknown,
    /// Too many requests wait for a password comparison.
    Busy,
}

/// A keyed hash of a name, its bcrypt hash and a password.
type Tag = [u8; 32];

#[derive(Debug)]
pub(super) struct Authenticator {
    /// Passwords are remembered as HMAC tags with this key, so that the time of a lookup does not reveal how much of a
    /// guess was right.
    key: hmac::Key,
    known: Mutex<HashSet<Tag>>,
    wrong: Mutex<HashSet<Tag>>,
    queue: PasswordQueue,
}

impl Authenticator {
    /// `None` if the operating system provides no random numbers.
    pub(super) fn new() -> Option<Self> {
        Some(Self {
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?,
            known: Mutex::default(),
            wrong: Mutex::default(),
            queue: PasswordQueue::default(),
        })
    }

    /// Checks the value of an `Authorization` header.
    pub(super) async fn check(&self, users: &Users, authorization: Option<&[u8]>, client: Client) -> Verdict {
        let Some((name, password)) = authorization.and_then(credentials) else { return Verdict::Unknown };
        let user = users.get(&name);
        let hash = user.map_or(UNKNOWN_USER, String::as_str).to_owned();
        let tag = self.tag(&[name.as_bytes(), hash.as_bytes(), &password]);
        if user.is_some() && has(&self.known, &tag) {
            return Verdict::Welcome;
        }
        if has(&self.wrong, &tag) {
            return Verdict::Unknown;
        }
        let Some(turn) = self.queue.turn(client).await else { return Verdict::Busy };
        let is_user = user.is_some();
        let compared = spawn_blocking(move || {
            let is_right = bcrypt::verify(&password, &hash).unwrap_or(false) && is_user;
            // the turn lasts to the end of this closure, even if the client has disconnected
            if is_right {
                turn.succeeded()
            } else {
                turn.failed()
            }
            is_right
        });
        match compared.await.unwrap_or(false) {
            true => remember(&self.known, tag, MOST_KNOWN),
            false => {
                remember(&self.wrong, tag, MOST_WRONG);
                return Verdict::Unknown;
            }
        }
        Verdict::Welcome
    }

    fn tag(&self, parts: &[&[u8]]) -> Tag {
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

fn has(tags: &Mutex<HashSet<Tag>>, tag: &Tag) -> bool {
    tags.lock().unwrap_or_else(PoisonError::into_inner).contains(tag)
}

fn remember(tags: &Mutex<HashSet<Tag>>, tag: Tag, most: usize) {
    let mut tags = tags.lock().unwrap_or_else(PoisonError::into_inner);
    if tags.len() >= most {
        tags.clear();
    }
    tags.insert(tag);
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
    use std::sync::Arc;

    use super::super::password_queue::MOST_WAITING;
    use super::*;

    fn basic(pair: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(pair)).into_bytes()
    }

    fn ask(auth: &Authenticator, users: &Users, authorization: Option<&[u8]>) -> Verdict {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(auth.check(users, authorization, client(1)))
    }

    fn client(last: u8) -> Client {
        std::net::IpAddr::from([10, 0, 0, last]).into()
    }

    fn count(tags: &Mutex<HashSet<Tag>>) -> usize {
        tags.lock().unwrap().len()
    }

    #[test]
    fn a_name_ends_at_the_first_colon_and_a_password_may_contain_colons() {
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
    fn a_right_password_is_remembered_until_its_hash_changes() {
        let hashed = |password: &str| bcrypt::hash(password, 4).unwrap();
        let mut users = Users::from([("ann".to_owned(), hashed("secret"))]);
        let auth = Authenticator::new().unwrap();
        assert_eq!(ask(&auth, &users, None), Verdict::Unknown);
        assert_eq!(ask(&auth, &users, Some(&basic("ann:wrong"))), Verdict::Unknown);
        assert_eq!(ask(&auth, &users, Some(&basic("bob:secret"))), Verdict::Unknown);
        assert_eq!((count(&auth.known), count(&auth.wrong)), (0, 2));
        for _ in 0..2 {
            assert_eq!(ask(&auth, &users, Some(&basic("ann:secret"))), Verdict::Welcome);
            assert_eq!(count(&auth.known), 1);
        }
        users.insert("ann".to_owned(), hashed("other"));
        assert_eq!(ask(&auth, &users, Some(&basic("ann:secret"))), Verdict::Unknown);
        assert_eq!(ask(&auth, &users, Some(&basic("ann:other"))), Verdict::Welcome);
    }

    /// Sends more wrong passwords than may wait at a time, from these clients, without waiting for the answers.
    fn flood(auth: &Arc<Authenticator>, users: &Arc<Users>, clients: &[u8], wave: usize) {
        for (i, last) in clients.iter().cycle().take(2 * MOST_WAITING).enumerate() {
            let (auth, users, from) = (Arc::clone(auth), Arc::clone(users), client(*last));
            let wrong = basic(&format!("ann:{wave}-{i}"));
            tokio::spawn(async move { auth.check(&users, Some(&wrong), from).await });
        }
    }

    #[test]
    fn a_flood_of_wrong_passwords_does_not_lock_out_the_right_one_from_another_address() {
        let users = Arc::new(Users::from([("ann".to_owned(), bcrypt::hash("secret", 4).unwrap())]));
        let right = basic("ann:secret");
        for clients in [vec![1], (1..80).collect::<Vec<_>>()] {
            let auth = Arc::new(Authenticator::new().unwrap());
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let welcome = runtime.block_on(async {
                // all clients rank the same before the first failure
                flood(&auth, &users, &clients, 0);
                let known =
                    |auth: &Authenticator| clients.iter().all(|last| auth.queue.has_failed(client(*last)));
                while !known(&auth) {
                    flood(&auth, &users, &clients, 1);
                    tokio::task::yield_now().await;
                }
                let mut welcome = 0;
                for wave in 2..47 {
                    // forget right passwords of the previous wave
                    auth.known.lock().unwrap().clear();
                    flood(&auth, &users, &clients, wave);
                    tokio::task::yield_now().await;
                    let verdict = auth.check(&users, Some(&right), client(99)).await;
                    welcome += u32::from(verdict == Verdict::Welcome);
                }
                welcome
            });
            runtime.shutdown_background();
            assert_eq!(welcome, 45, "during a flood from {} clients", clients.len());
        }
    }

    #[test]
    fn a_remembered_wrong_password_is_not_compared_again() {
        let users = Users::from([("ann".to_owned(), bcrypt::hash("secret", 4).unwrap())]);
        let auth = Authenticator::new().unwrap();
        assert_eq!(ask(&auth, &users, Some(&basic("ann:wrong"))), Verdict::Unknown);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // block the queue
        let _turn = runtime.block_on(auth.queue.turn(client(2))).unwrap();
        assert_eq!(ask(&auth, &users, Some(&basic("ann:wrong"))), Verdict::Unknown);
        for i in 0..2 * MOST_WRONG {
            remember(&auth.wrong, auth.tag(&[&i.to_le_bytes()]), MOST_WRONG);
        }
        assert!(count(&auth.wrong) <= MOST_WRONG);
    }

    #[test]
    fn the_hash_for_unknown_users_has_the_usual_cost() {
        let parts: bcrypt::HashParts = UNKNOWN_USER.parse().unwrap();
        assert_eq!(parts.get_cost(), 10);
    }
}
