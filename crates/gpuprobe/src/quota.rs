//! How many libraries are probed at once, and how many of them for one user: whoever copies libcuda hundreds of times takes
//! the room of nobody else.

use std::collections::{BTreeSet, HashMap, HashSet};

use gpuprobe_discover::{FileId, UserId};

/// Libraries probed at once. A host has one driver, and a few images bring their own; beyond this somebody makes them on
/// purpose.
pub(crate) const MOST_LIBRARIES: usize = 256;
/// Files that only one user has mapped, or only users who have as many each.
pub(crate) const MOST_OF_USER: usize = 64;
/// Files of all users together, and with those of users who have few. What is left is for root and for what lies where the
/// host keeps its libraries.
const MOST_OF_USERS: usize = 192;
const MOST_WITH_SMALL_SHARES: usize = 224;
/// As many files are few: somebody who has several user numbers cannot take the room of everybody else.
const SMALL_SHARE: usize = 8;
/// Users whose refusal was said; those beyond are refused without a word.
const MOST_SAID: usize = 64;

/// Who uses which of the probed files.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    /// Without files that root uses, or that were found where the host keeps them.
    users: HashMap<FileId, BTreeSet<UserId>>,
    said: BTreeSet<UserId>,
}

impl Quota {
    /// The user who has no room left for a file that these use, if it is refused; otherwise it is counted as theirs. It is
    /// refused where everybody who uses it has used up their share.
    pub(crate) fn refuses(&mut self, file: FileId, users: &BTreeSet<UserId>) -> Option<UserId> {
        if users.is_empty() || users.contains(&UserId::ROOT) || self.users.contains_key(&file) {
            return None;
        }
        let share = match self.users.len() {
            0..MOST_OF_USERS => MOST_OF_USER,
            MOST_OF_USERS..MOST_WITH_SMALL_SHARES => SMALL_SHARE,
            _ => 0,
        };
        if !users.iter().any(|user| self.count(*user) < share) {
            return users.first().copied();
        }
        self.users.insert(file, users.clone());
        None
    }

    /// Whether nothing was said yet of what this user is refused.
    pub(crate) fn is_first_refusal(&mut self, user: UserId) -> bool {
        self.said.len() < MOST_SAID && self.said.insert(user)
    }

    /// Whether a file that nobody uses any more should make room for others of its users.
    pub(crate) fn needs_room(&self, file: &FileId) -> bool {
        let is_full = |users: &BTreeSet<UserId>| users.iter().any(|user| self.count(*user) >= MOST_OF_USER);
        self.users.len() >= MOST_OF_USERS || self.users.get(file).is_some_and(is_full)
    }

    /// Takes in who uses the files now. Those that nobody uses stay with whom they were.
    pub(crate) fn update(&mut self, users: &HashMap<FileId, BTreeSet<UserId>>) {
        for (file, known) in &mut self.users {
            if let Some(users) = users.get(file) {
                known.clone_from(users);
            }
        }
        self.users.retain(|_, users| !users.contains(&UserId::ROOT));
    }

    /// Forgets files that are not probed any more.
    pub(crate) fn retain(&mut self, probed: &HashSet<FileId>) {
        self.users.retain(|file, _| probed.contains(file));
    }

    fn count(&self, user: UserId) -> usize {
        self.users.values().filter(|users| users.contains(&user)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: UserId = UserId(1000);
    const BOB: UserId = UserId(1001);

    fn file(inode: usize) -> FileId {
        FileId { dev: 1, inode: inode as u64 }
    }

    fn of(users: &[UserId]) -> BTreeSet<UserId> {
        users.iter().copied().collect()
    }

    /// One user with as many files as there is room for.
    fn flooded() -> Quota {
        let mut quota = Quota::default();
        let refused = (0..300).filter(|i| quota.refuses(file(*i), &of(&[ALICE])).is_some()).count();
        assert_eq!(refused, 300 - MOST_OF_USER);
        quota
    }

    #[test]
    fn one_users_flood_takes_the_room_of_nobody_else() {
        let mut quota = flooded();
        assert_eq!(quota.refuses(file(900), &of(&[ALICE])), Some(ALICE));
        for (i, users) in
            [of(&[BOB]), of(&[ALICE, BOB]), of(&[UserId::ROOT]), of(&[ALICE, UserId::ROOT]), of(&[])]
                .iter()
                .enumerate()
        {
            assert_eq!(quota.refuses(file(1000 + i), users), None, "{users:?}");
        }
        assert_eq!(quota.count(BOB), 2, "what root or the host uses is charged to nobody");
    }

    #[test]
    fn users_with_few_files_have_room_when_others_together_have_many() {
        let mut quota = Quota::default();
        let mut refused = |user: u32, files: usize| {
            let mut refuses =
                |i| quota.refuses(file(1000 * user as usize + i), &of(&[UserId(user)])).is_some();
            (0..files).filter(|i| refuses(*i)).count()
        };
        assert_eq!([2000, 2001, 2002].map(|user| refused(user, MOST_OF_USER)), [0, 0, 0]);
        assert_eq!(refused(2000, MOST_OF_USER + 1), 1);
        assert_eq!(refused(2003, SMALL_SHARE + 1), 1);
        assert_eq!(refused(2004, SMALL_SHARE), 0);
    }

    #[test]
    fn a_file_is_counted_once_and_makes_room_when_it_is_gone() {
        let mut quota = flooded();
        assert_eq!(quota.refuses(file(3), &of(&[ALICE])), None, "it has two libraries");
        assert!(quota.needs_room(&file(3)) && !quota.needs_room(&file(900)));
        quota.retain(&(4..300).map(file).collect());
        assert_eq!(quota.count(ALICE), MOST_OF_USER - 4);
        assert_eq!(quota.refuses(file(900), &of(&[ALICE])), None);
    }

    #[test]
    fn many_users_together_leave_room_for_root() {
        let mut quota = Quota::default();
        let user = |i: usize| of(&[UserId(2000 + i as u32)]);
        assert!((0..MOST_WITH_SMALL_SHARES).all(|i| quota.refuses(file(i), &user(i)).is_none()));
        assert_eq!(quota.refuses(file(900), &user(900)), Some(UserId(2900)));
        assert_eq!(quota.refuses(file(900), &of(&[UserId::ROOT])), None);
        const { assert!(MOST_WITH_SMALL_SHARES < MOST_LIBRARIES) };
    }

    #[test]
    fn a_file_that_root_comes_to_use_is_charged_to_nobody() {
        let mut quota = flooded();
        let now = HashMap::from([(file(0), of(&[ALICE, UserId::ROOT])), (file(1), of(&[BOB]))]);
        quota.update(&now);
        assert_eq!((quota.count(ALICE), quota.count(BOB)), (MOST_OF_USER - 2, 1));
    }

    #[test]
    fn a_refusal_is_said_once_for_each_user() {
        let mut quota = Quota::default();
        assert!(quota.is_first_refusal(ALICE) && quota.is_first_refusal(BOB));
        assert!(!quota.is_first_refusal(ALICE));
        let said = (0..1000).filter(|i| quota.is_first_refusal(UserId(5000 + i))).count();
        assert_eq!(said, MOST_SAID - 2);
    }
}
